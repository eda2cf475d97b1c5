"""Files of logits, probabilities, labels and sites: the same samples in every form; words, binary scores, several sites."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcal
from commands import command
from fedcal import FedCalError, Scaler
from fedcal.base.arrays import softmax
from fedcal.data.logit_files import read_rows, read_site, read_sites, write_probs

K = 3
WORDS = np.array(["cat", "dog", "owl, or so"])
NAMES = np.array(["north", "south"])
SCALER = "cal/scaler.safetensors"


def draw(seed: int, n: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, K)) + np.eye(K)[seed % K]
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(1)


def write(path: str, scores: dict[str, np.ndarray], **more: np.ndarray) -> None:
    """A table, or an .npz with its columns joined again."""
    if path.endswith(".npz"):
        (name,) = {key.split("_")[0] for key in scores}
        joined = np.stack(list(scores.values()), 1) if "_0" in next(iter(scores)) else next(iter(scores.values()))
        np.savez(path, **{name: joined, **more})
        return
    columns = {**scores, **more}
    if path.endswith(".parquet"):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({name: arrow.array(v.tolist()) for name, v in columns.items()}), path)
        return
    with Path(path).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(v.tolist() for v in columns.values()), strict=True))


def logits_of(z: np.ndarray) -> dict[str, np.ndarray]:
    return {f"logit_{k}": z[:, k] for k in range(z.shape[1])}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


ENDINGS = pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])

# --- reading -------------------------------------------------------------------------------------------------------


@ENDINGS
def test_words_and_sites(ending: str) -> None:
    z, y = draw(0)
    site = NAMES[np.arange(80) % 2]
    write(f"all.{ending}", logits_of(z), label=WORDS[y], site=site)
    rows = read_rows(Path(f"all.{ending}"))
    assert np.allclose(rows.logits, z) and rows.labels is not None and rows.labels.tolist() == WORDS[y].tolist()
    sites = read_sites([Path(f"all.{ending}")])
    assert list(sites.samples) == ["north", "south"] and sites.classes is not None
    assert sites.classes.tolist() == WORDS.tolist()
    for number, name in enumerate(NAMES):
        assert np.allclose(sites.samples[name][0], z[number::2])
        assert sites.samples[name][1].tolist() == y[number::2].tolist()


@ENDINGS
@pytest.mark.parametrize("kind", ["logit", "score", "p", "prob", "probability"])
def test_a_single_column_is_of_class_1(ending: str, kind: str) -> None:
    z = draw(0)[0][:, 0]
    p = 1 / (1 + np.exp(-z))
    given = z if kind in ("logit", "score") else p
    write(f"one.{ending}", {kind: given}, label=(z > 0).astype(int), client=np.arange(80) % 3)
    rows = read_rows(Path(f"one.{ending}"))
    assert np.allclose(softmax(rows.logits, 1)[:, 1], p) and rows.logits.shape == (80, 2)
    assert rows.sites is not None and rows.sites.tolist() == [str(i % 3) for i in range(80)]
    assert rows.probs == (kind not in ("logit", "score"))


def test_a_score_may_be_said_to_be_a_probability() -> None:
    write("x.csv", {"score": np.linspace(0.01, 0.99, 40)})
    with pytest.raises(
        FedCalError,
        match=r"x.csv: logits look like probabilities .*: name them probs \(columns p_0 .*\), or pass --logits",
    ):
        read_rows(Path("x.csv"))
    assert read_rows(Path("x.csv"), "probs").probs and not read_rows(Path("x.csv"), "logits").probs


def test_numbers_stay_columns_and_whole(tmp_path: Path) -> None:
    z, y = draw(0)
    write("a.csv", logits_of(z), label=y)
    labels = read_rows(Path("a.csv")).labels
    assert labels is not None and labels.dtype == np.int64
    assert read_sites([Path("a.csv")]).classes is None
    write("b.csv", logits_of(z), label=y + 1)
    with pytest.raises(FedCalError, match=r"b.csv: labels must lie in 0\.\.2: found 3"):
        read_sites([Path("b.csv")])
    assert read_sites([Path("b.csv")], classes=[1, 2, 3]).classes is not None
    with pytest.raises(FedCalError, match=r"b.csv: labels must lie in 0\.\.2: found 3"):
        read_site(Path("b.csv"))  # a site by itself cannot know what the others' labels are
    assert read_site(Path("b.csv"), classes=[1, 2, 3])[2].tolist() == y.tolist()  # type: ignore[union-attr]


def test_rows_of_one_site_in_several_files_are_one_client() -> None:
    (za, ya), (zb, yb) = draw(0), draw(1)
    write("january.csv", logits_of(za), label=ya, site=NAMES[np.arange(80) % 2])
    write("february.npz", logits_of(zb), labels=yb, sites=NAMES[np.zeros(80, int)])
    for order in (["january.csv", "february.npz"], ["february.npz", "january.csv"]):
        samples = read_sites([Path(name) for name in order]).samples
        assert [len(labels) for _, labels in samples.values()] == [120, 40]
        assert samples["north"][1].tolist() == [*yb, *ya[::2]]  # in the order of the files' names
    write("north.csv", logits_of(zb), label=yb)
    with pytest.raises(FedCalError, match="another file has a site 'north' too"):
        read_sites([Path("january.csv"), Path("north.csv")])


def test_sites_of_other_types_are_named_by_their_text() -> None:
    z, y = draw(0, 4)
    for number, sites in enumerate(
        (np.array([1, 2, 1, 1]), np.array([1.0, 2, 1, 1]), np.array([b"1", b"2", b"1", b"1"]))
    ):
        write(f"{number}.npz", logits_of(z), labels=y, site=sites)
        assert list(read_sites([Path(f"{number}.npz")]).samples) == ["1", "2"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "pickled labels": ({"labels": np.array(["a", None] * 2)}, "x.npz: labels holds Python objects"),
    "sites too few": ({"sites": np.array(["a"])}, "1 sites for 4 rows"),
    "site empty": ({"site": np.array(["a", "", "a", "a"])}, "sites must not be empty: row 1"),
    "site and client": ({"site": np.arange(4), "client": np.arange(4)}, "site and client mean the same"),
    "labels and label": ({"label": np.arange(4) % 3}, "labels and label mean the same"),
    "sites NaN": ({"site": np.array([1, 2, np.nan, 1])}, "sites must be finite"),
    "words, not all": (
        {"labels": np.array(["a", "b"] * 2)},
        "2 different labels for 3 columns (a, b): use 0..2, or give",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_arrays_are_one_line(case: tuple[dict[str, Any], str]) -> None:
    z, y = draw(0, 4)
    write("x.npz", logits_of(z), **({"labels": y} | case[0]))
    with pytest.raises(FedCalError) as caught:
        read_sites([Path("x.npz")])
    assert case[1] in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("logit_0,logit_1,label\n1,2,cat\n1,2,\n", "x.csv: labels must not be empty: row 1"),
        ("logit_0,logit_1,label\n1,b,cat\n", "x.csv: row 1 below the header, column logit_1: 'b' is not a number"),
        ("logit,p,label\n1,0.5,cat\n", "x.csv: which of logit, p is meant?"),
        ("site,label\na,cat\n", "x.csv: columns site, label: name the scores logit_0"),
    ],
)
def test_bad_tables_are_one_line(text: str, words: str) -> None:
    Path("x.csv").write_text(text)
    with pytest.raises(FedCalError) as caught:
        read_sites([Path("x.csv")])
    assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_tables_from_other_programs() -> None:
    """A byte-order mark, Windows line ends, blanks, quotes."""
    Path("x.csv").write_bytes(b'\xef\xbb\xbfsite, logit_0 ,logit_1,label\r\n"a, b",1,2, cat\r\n c ,3,4,"dog"\r\n')
    rows = read_rows(Path("x.csv"))
    assert rows.labels is not None and rows.labels.tolist() == ["cat", "dog"]
    assert rows.sites is not None and rows.sites.tolist() == ["a, b", "c"]


@ENDINGS
def test_what_is_written_reads_back(ending: str) -> None:
    z, y = draw(0)
    write("x.npz", logits_of(z), labels=WORDS[y], sites=NAMES[y % 2])
    rows, path = read_rows(Path("x.npz")), Path(f"out.{ending}")
    write_probs(path, softmax(z, 1), tuple(WORDS), rows)
    again = read_rows(path)
    assert np.allclose(np.exp(again.logits), softmax(z, 1)) and again.probs
    assert again.labels is not None and again.labels.tolist() == WORDS[y].tolist()
    assert again.sites is not None and again.sites.tolist() == NAMES[y % 2].tolist()
    if ending == "csv":
        with path.open(newline="") as file:
            predictions = [row["prediction"] for row in csv.DictReader(file)]
        assert predictions == WORDS[z.argmax(1)].tolist()


# --- the commands --------------------------------------------------------------------------------------------------


@ENDINGS
def test_commands_on_words_and_sites(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {name: draw(number) for number, name in enumerate(NAMES)}
    z, y = (np.concatenate(pair) for pair in zip(*parts.values(), strict=True))
    write(f"all.{ending}", logits_of(z), label=WORDS[y], site=np.repeat(NAMES, 80))
    command(capsys, f"calibrate all.{ending} --no-report --out cal")
    scaler = Scaler.load(SCALER)
    whole = fedcal.calibrate({name: (logits, WORDS[labels]) for name, (logits, labels) in parts.items()})
    assert scaler.classes == whole.classes == tuple(WORDS) and sorted(scaler.personal) == sorted(NAMES)
    said = command(capsys, f"evaluate all.{ending} --scaler {SCALER} --own")
    assert "north, after" in said and "south, before" in said and "pooled, after" in said

    command(capsys, f"apply {SCALER} all.{ending} --own --out own.npz")
    with np.load("own.npz") as held:
        assert held["sites"].tolist() == np.repeat(NAMES, 80).tolist() and held["labels"].tolist() == WORDS[y].tolist()
        for number, name in enumerate(NAMES):
            rows = slice(80 * number, 80 * (number + 1))
            assert np.allclose(held["probs"][rows], whole.predict_proba(z[rows], name))
            assert held["predictions"][rows].tolist() == WORDS[held["probs"][rows].argmax(1)].tolist()
    write(f"few.{ending}", logits_of(z[:5]), label=WORDS[y[:5]])  # not all classes: the scaler knows them
    assert "few" in command(capsys, f"evaluate few.{ending} --scaler {SCALER}")


def test_commands_on_binary_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    z = draw(0, 300)[0][:, 0]
    y = (np.random.default_rng(1).random(300) < 1 / (1 + np.exp(-z / 3))).astype(int)
    write("x.csv", {"p": 1 / (1 + np.exp(-z))}, label=np.array(["no", "yes"])[y])
    command(capsys, "calibrate x.csv --no-report --method fed-bias --out cal")
    scaler = Scaler.load(SCALER)
    assert scaler.probs is True and scaler.classes == ("no", "yes")
    expected = fedcal.calibrate([(z, y)], "fed-bias").predict_proba(z)
    assert np.allclose(scaler.predict_proba(1 / (1 + np.exp(-z))), expected, atol=1e-6)
    command(capsys, f"apply {SCALER} x.csv --out out.csv")
    assert "yes" in Path("out.csv").read_text()


def test_classes_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    z, y = draw(0)
    few = y < 2
    write("x.csv", logits_of(z[few]), label=np.array(["dog", "cat"])[y[few]])
    assert "give `classes`" in command(capsys, "evaluate x.csv", code=2)
    command(capsys, "evaluate x.csv --classes dog,cat,owl")
    command(capsys, "calibrate x.csv --no-report --method fed-ts --classes dog,cat,owl --out cal -q")
    assert Scaler.load(SCALER).classes == ("dog", "cat", "owl")
    write("y.npz", logits_of(z), labels=y)
    command(capsys, "calibrate y.npz --no-report --method fed-ts --out plain -q")
    command(capsys, "apply plain/scaler.safetensors y.npz --classes dog,cat,owl --out named.npz")
    assert set(np.load("named.npz")["predictions"]) <= {"dog", "cat", "owl"}
    assert "must be a list of 3 different" in command(
        capsys, "apply plain/scaler.safetensors y.npz --classes dog --out named.npz", code=2
    )
    assert "--own needs a column `site`" in command(capsys, f"apply {SCALER} y.npz --own --out p.npz", code=2)
    assert "contradict" in command(capsys, f"apply {SCALER} y.npz --own --client x --out p.npz", code=2)


def test_a_federation_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's request names the classes, so that a site need not show all; a site is a part of a file."""
    parts = {name: draw(number) for number, name in enumerate(NAMES)}
    z, y = (np.concatenate(pair) for pair in zip(*parts.values(), strict=True))
    labels = np.array(["dog", "cat", "owl"])[y]
    write("all.csv", logits_of(z), label=labels, site=np.repeat(NAMES, 80))
    command(capsys, "calibrate all.csv --no-report --method fed-ts --classes dog,cat,owl --out cal -q")
    command(capsys, "server start srv --method fed-ts --classes dog,cat,owl --sites north,south")
    refused = command(capsys, "client reply srv/request-0001.safetensors all.csv", code=2)
    assert "2 sites: choose one with --name, such as --name north" in refused
    refused = command(capsys, "client reply srv/request-0001.safetensors all.csv --name nort", code=2)
    assert "unknown site 'nort': did you mean 'north'?" in refused
    number = 1
    while (request := Path(f"srv/request-{number:04d}.safetensors")).exists():
        for name in NAMES:
            command(capsys, f"client reply {request} all.csv --name {name} --out {name}.safetensors")
        command(capsys, "server receive srv north.safetensors south.safetensors")
        number += 1
    command(capsys, "client finish srv/scaler.safetensors all.csv --name south --out south-own.safetensors")
    by_hand, whole = Scaler.load("south-own.safetensors"), Scaler.load(SCALER)
    assert by_hand.classes == whole.classes == ("dog", "cat", "owl")
    assert np.array_equal(by_hand.params["temperature"], whole.params["temperature"])
    assert "classes must be" in command(capsys, "server start other --classes dog --sites a", code=2)


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_further_columns(ending: str, tmp_path: Path) -> None:
    """They are no scores, follow their rows to the sites, and count towards the limit of memory."""
    z, y = draw(0)
    sex, age = np.array(["f", "m"] * 40), np.arange(80) // 20
    path = tmp_path / f"x.{ending}"
    sites = np.where(np.arange(80) % 4 < 2, "north", "south")
    write(str(path), {f"logit_{k}": z[:, k] for k in range(K)}, label=y, site=sites, sex=sex, p_0=age)
    found = read_sites([path], "logits", columns=["sex", "p_0"])
    assert found.samples["north"][0].shape == (40, K)
    for name in ("north", "south"):
        chosen = sites == name
        assert found.groups[name]["sex"].tolist() == sex[chosen].tolist()
        assert found.groups[name]["p_0"].astype(np.str_).tolist() == age[chosen].astype(np.str_).tolist()
    assert read_sites([path], "logits").groups == {}
    with pytest.raises(FedCalError, match=r"x\.\w+: unknown column 'sexe': did you mean 'sex'"):
        read_sites([path], columns=["sexe", "p_0"])
    least = 8 * 80 * (K + 1) + 80 * 4 * 5  # scores, labels and sites, but no further column
    with pytest.raises(FedCalError, match="GiB of numbers"):
        read_sites([path], None, None, least + 8, ["sex", "p_0"])
