"""Users' own files at the command line: calibrate, apply, evaluate; and what bad files meet with."""

from __future__ import annotations

import csv
import html
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcal
from commands import command
from fedcal import FedCalError, FedCalWarning
from fedcal.base import arrays
from fedcal.cli.main import main
from fedcal.data.logit_files import read_site
from fedcal.protocol import Scaler
from fedcal.transport.files import start

FILES = ["siteA.npz", "siteB.csv", "siteC.parquet"]
K = 3


def draw(seed: int, n: int = 150, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    """Labels follow softmax(z), the logits are 3 z: a model that is too confident; every site with its own skew."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) + np.eye(k)[seed % k]
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(1)


def softmax(z: np.ndarray) -> np.ndarray:
    return arrays.softmax(z, 1)


def write_csv(path: str | Path, columns: dict[str, Any]) -> None:
    rows = zip(*(np.asarray(c).tolist() for c in columns.values()), strict=True)
    Path(path).write_text("\n".join(",".join(map(repr, row)) for row in rows).join([",".join(columns) + "\n", "\n"]))


def columns(prefix: str, scores: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{prefix}_{k}": scores[:, k] for k in range(scores.shape[1])}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites, each in a form of its own, and a scaler of them."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("sites")
    (za, ya), (zb, yb), (zc, yc) = (draw(s) for s in range(3))
    np.savez(folder / "siteA.npz", logits=za, labels=ya)
    write_csv(folder / "siteB.csv", {**columns("logit", zb), "label": yb})
    parquet.write_table(arrow.table({**columns("logit", zc), "label": yc}), folder / "siteC.parquet")
    with pytest.raises(SystemExit):
        main(["calibrate", *(str(folder / f) for f in FILES), "--method", "fed-ts", "--out", f"{folder}/ts", "-q"])
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them to work in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- ordinary use -----------------------------------------------------------------------------------------------------


def test_calibrate_apply_evaluate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = command(capsys, f"calibrate {' '.join(FILES)} --out cal")
    assert "global scaler" in text and "held-out fifth of each client" in text and "fitted on all samples: " in text
    summary = json.loads(Path("cal/summary.json").read_text())
    assert summary["method"] == "fedcal-plus" and summary["classes"] == K and summary["n"] == 450
    assert summary["clients"] == {"siteA": 150, "siteB": 150, "siteC": 150}
    assert summary["estimate"]["global"]["pooled"]["n"] == 90  # a fifth, held out
    assert summary["estimate"]["global"]["pooled"]["nll"] < summary["estimate"]["before"]["pooled"]["nll"]
    for view in ("global", "own"):
        value, low, high = summary["estimate"]["ece_change"][view]
        eces = [summary["estimate"][name]["pooled"]["ece"] for name in (view, "before")]
        assert value == pytest.approx(eces[0] - eces[1], abs=1e-12) and low <= value <= high
    assert "global scaler against before: ECE " in text and "95 % interval of the change" in text
    page, figures = Path("cal/report.html").read_text(), json.loads(Path("cal/report.json").read_text())
    assert "Report: cal/report.html" in text and figures["verdict"][0] in page and figures["verdict"][0] in text
    assert (
        "<svg" in page
        and "fedcal apply cal/scaler.safetensors" in page
        and "90 samples that the scaler was not" in page
    )
    assert figures["pooled"]["n"] == figures["before"]["pooled"]["n"] == 90
    assert figures["before"]["pooled"]["nll"]["value"] == pytest.approx(summary["estimate"]["before"]["pooled"]["nll"])
    assert figures["pooled"]["nll"]["value"] == pytest.approx(summary["estimate"]["own"]["pooled"]["nll"])

    scaler = Scaler.load("cal/scaler.safetensors")
    assert scaler.method.name == "fedcal-plus" and list(scaler.personal) == ["siteA", "siteB", "siteC"]
    whole = fedcal.calibrate({f"site{s}": draw(i) for i, s in enumerate("ABC")}, "fedcal-plus")
    assert np.array_equal(whole.predict_proba(draw(7)[0], "siteB"), scaler.predict_proba(draw(7)[0], "siteB"))

    for ending in ("npz", "csv", "parquet"):
        command(capsys, f"apply cal/scaler.safetensors siteA.npz --client siteA --out probs.{ending}")
        _, logits, labels, probs = read_site(Path(f"probs.{ending}"))
        assert np.allclose(np.exp(logits), scaler.predict_proba(draw(0)[0], "siteA"), atol=1e-15)
        assert probs and labels is not None and np.array_equal(labels, draw(0)[1])
    with np.load("probs.npz") as held:
        assert sorted(held.files) == ["labels", "predictions", "probs"]
        assert np.array_equal(held["predictions"], held["probs"].argmax(1))
    np.savez("new.npz", logits=draw(8)[0])  # without labels
    command(capsys, "apply cal/scaler.safetensors new.npz --out new-probs.npz")
    assert sorted(np.load("new-probs.npz").files) == ["predictions", "probs"]

    text = command(capsys, f"evaluate {' '.join(FILES)} --scaler cal/scaler.safetensors --own --report out.html")
    assert "pooled, before" in text and "siteC, after" in text and "worst client: site" in text
    assert "after against before: ECE " in text and "a clear difference on these samples" in text
    page = Path("out.html").read_text()
    assert page.count("<svg") == 8 and "siteB" in page and "<script" not in page  # all sites, 4 forests, 3 sites


def test_sorted_labels_are_shown_as_columns(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("x.npz", logits=Z, labels=np.array(["cat", "owl", "dog"])[Y])
    taken = "Columns: cat, dog, owl (labels, sorted; if the order is another, pass --classes)"
    assert taken in command(capsys, "calibrate x.npz --method fed-ts --no-report --out sorted")
    assert taken in command(capsys, "evaluate x.npz")
    assert "Columns:" not in command(capsys, "evaluate x.npz --scaler sorted/scaler.safetensors")
    assert "Columns:" not in command(capsys, "evaluate x.npz --classes cat,owl,dog")


def test_a_single_score_of_the_first_of_two_words(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P(default) with the labels default and repaid: sorted, it would be taken for P(repaid)."""
    p = np.random.default_rng(0).uniform(size=500)
    labels = np.where(np.random.default_rng(1).uniform(size=500) < p, "default", "repaid")
    np.savez("x.npz", probs=p, labels=labels)
    for text in ("calibrate x.npz --out cal", "evaluate x.npz"):
        with pytest.warns(FedCalWarning, match="--classes repaid,default"):
            shown = command(capsys, text)
        assert "Columns: default, repaid (labels, sorted; a single score is that of repaid; if" in shown
    assert "no sign of miscalibration" in command(capsys, "evaluate x.npz --classes repaid,default")
    command(capsys, "server start srv --classes 2 --sites x")
    with pytest.warns(FedCalWarning, match="scores are lower where the label is 'repaid'"):
        command(capsys, "client reply srv/request-0001.safetensors x.npz")


def test_columns_in_another_order_than_the_sorted_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model with classes owl, cat, dog: sorted, its columns would be taken for those of cat, dog, owl."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, 600, p=[0.7, 0.25, 0.05])
    z, names = 2 * (2 * np.eye(3)[y] + rng.normal(size=(600, 3))), np.array(["owl", "cat", "dog"])
    np.savez("x.npz", logits=z, labels=names[y])
    with pytest.warns(FedCalWarning, match="for 2 more of 3 classes: .* for cat, dog, owl .labels were sorted."):
        command(capsys, "calibrate x.npz --method fed-ts --out cal")
    with pytest.warns(FedCalWarning, match="labels were sorted"):
        fedcal.calibrate([(z, names[y])], "fed-ts")
    command(capsys, "calibrate x.npz --method fed-ts --classes owl,cat,dog --out right")  # without a warning
    command(capsys, "server start srv --classes cat,dog,owl --sites x")
    with pytest.warns(FedCalWarning, match="write the file"):
        command(capsys, "client reply srv/request-0001.safetensors x.npz")
    for text in (
        "client reply srv/request-0001.safetensors x.npz",
        "client finish cal/scaler.safetensors x.npz --out y",
        "client evaluate x.npz --scaler cal/scaler.safetensors --out y",
        "evaluate x.npz --scaler cal/scaler.safetensors",
        "apply cal/scaler.safetensors x.npz --out y.npz",
        "monitor sums x.npz --scaler cal/scaler.safetensors --out y",
    ):
        said = command(capsys, f"{text} --classes owl,cat,dog", code=2)
        assert "--classes owl,cat,dog: the order is cat,dog,owl: write the file's columns in this one" in said
    z[:] = rng.normal(size=3)  # a model that says the same of everybody agrees with any order
    fedcal.calibrate([(z, names[y])], "fed-ts")


def test_columns_in_another_order_than_numbered_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P(class 1) was written first: without a warning, most decisions would silently be the wrong ones."""
    rng = np.random.default_rng(0)
    p = 1 / (1 + np.exp(-2 * rng.normal(size=400)))
    y, columns = (rng.random(400) < p).astype(int), np.stack([p, 1 - p], 1)
    np.savez("x.npz", probs=columns, labels=y)
    said = "for 1 more of 2 classes: the columns are taken for 0, 1 .label 0 is the first.; .*"
    with pytest.warns(FedCalWarning, match=f"{said} pass classes="):
        command(capsys, "calibrate x.npz --method fed-ts --out cal")
    command(capsys, "server start srv --classes 2 --sites x")
    with pytest.warns(FedCalWarning, match=f"{said} write the file"):
        command(capsys, "client reply srv/request-0001.safetensors x.npz")
    right = fedcal.calibrate([(columns, y)], "fed-ts", probs=True, classes=[1, 0])  # without a warning
    assert 0.5 < right.params["temperature"] < 2


def test_a_site_of_few_samples_is_told_that_they_do_not_count(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("x.npz", logits=Z[:9], labels=Y[:9])
    command(capsys, "server start srv --classes 3 --sites x")
    reply = "client reply srv/request-0001.safetensors x.npz --out a"
    assert "a is for the server.\n" in command(capsys, reply)
    said = command(capsys, f"{reply} --min-count 10")
    assert "a is for the server, without x's samples: 9 are fewer than the policy's min_count, 10." in said


def test_the_page_says_what_it_measures_and_its_commands_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name, share in (("north", 0.2), ("south sea", 0.6)):
        y = rng.uniform(size=200) < share
        np.savez(f"{name}.npz", logits=3 * (2 * y - 1 + rng.normal(size=200)), labels=np.where(y, "ill", "well"))
    with pytest.raises(SystemExit):
        main(["calibrate", "north.npz", "south sea.npz", "--classes", "well,ill", "--out", "cal"])
    said, page = capsys.readouterr().out, html.unescape(Path("cal/report.html").read_text())
    assert "With each site's personal scaler:\n" in said and "calibrated by their site's personal scaler" in page
    assert "An event, or case, is a sample of class ill. Results" in page
    commands = [shlex.split(line) for line in re.findall("fedcal ((?:apply|evaluate) .*?)</", page)]
    assert [words[0] for words in commands] == ["apply", "evaluate"]
    shutil.copy("north.npz", "new.npz")
    for words in commands:
        given = ["south sea.npz" if word == "FILE..." else word.replace("new.csv", "new.npz") for word in words]
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 0, capsys.readouterr().err
    command(capsys, "calibrate north.npz --method fed-ts --classes well,ill --out ts2")
    assert "personal scaler," not in Path("ts2/report.html").read_text()  # the method makes none


def test_a_warning_is_one_line(place: Path) -> None:
    p = np.random.default_rng(0).uniform(size=500)
    np.savez("x.npz", probs=p, labels=np.where(p < 0.5, "repaid", "default"))
    words = [sys.executable, "-m", "fedcal", "evaluate", "x.npz"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("warning: scores are lower where the label is 'repaid'")
    assert done.stderr.count("\n") == 1


def test_sets_from_files_to_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    text = command(capsys, f"calibrate {' '.join(FILES)} --method fed-bias --alpha 0.2 --coverage site --out cal")
    assert "sets, personal scalers: " in text and "hold the label (target 80.0%)" in text
    summary = json.loads(Path("cal/summary.json").read_text())
    assert summary["options"] == {"alpha": 0.2, "coverage": "site"}
    assert set(summary["estimate"]["sets"]["own"]) == {"coverage", "target", "size"}
    scaler = Scaler.load("cal/scaler.safetensors")
    sets = np.zeros(0)
    for client in ("", " --client siteA"):
        sets = scaler.predict_set(draw(0)[0], client=client[-5:] or None)
        for ending in ("npz", "csv", "parquet"):
            command(capsys, f"apply cal/scaler.safetensors siteA.npz --sets{client} --out s.{ending}")
            assert read_site(Path(f"s.{ending}"))[1].shape == sets.shape  # and is read as probabilities again
        assert np.array_equal(np.load("s.npz")["sets"], sets)
        rows = list(csv.DictReader(Path("s.csv").read_text().splitlines()))
        assert [row["set"] for row in rows] == ["|".join(map(str, np.flatnonzero(one))) for one in sets]
        listed = parquet.read_table("s.parquet")["set"].to_pylist()
        assert listed == [np.flatnonzero(one).tolist() for one in sets]
    command(capsys, "apply cal/scaler.safetensors siteA.npz --sets --alpha 0.4 --out t.npz")
    assert np.load("t.npz")["sets"].sum() < sets.sum()
    text = command(capsys, "apply cal/scaler.safetensors siteA.npz --sets --alpha 0.005 --out t.npz")
    assert "Sets: 90 held-out samples, where alpha=0.005 needs 199: every class is in every set." in text
    command(capsys, "apply cal/scaler.safetensors siteA.npz --sets --alpha 0.7 --out t.npz", 2)
    command(capsys, "calibrate siteA.npz --method avg-t --alpha 0.1 --out no", 2)
    command(capsys, f"calibrate {FILES[0]} --no-report --method fed-ts --out plain -q")
    assert "made without sets" in command(capsys, "apply plain/scaler.safetensors siteA.npz --sets --out t.npz", 2)


def test_the_same_seed_gives_the_same_bytes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, order in (("one", FILES), ("two", FILES[::-1])):
        assert command(capsys, f"calibrate {' '.join(order)} --no-report --method fed-ts --out {out} --quiet") == ""
    assert snapshot(place / "one") == snapshot(place / "two")


def test_options_reach_the_method(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(
        capsys,
        "calibrate siteA.npz siteB.csv --method fedcal-plus:accuracy=keep,informed=false --no-report --out cal -q",
    )
    options = json.loads(Path("cal/summary.json").read_text())["options"]
    assert options == {"accuracy": "keep", "informed": False}
    scaler = Scaler.load("cal/scaler.safetensors")
    assert np.array_equal(scaler.predict_proba(draw(9)[0]).argmax(1), draw(9)[0].argmax(1))


def test_sites_of_a_few_samples(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        np.savez(f"{name}.npz", logits=draw(1, 3)[0], labels=draw(1, 3)[1])
    text = command(capsys, "calibrate a.npz b.npz --out cal")
    assert "the quality of the scaler was not measured" in text and "fell back on a temperature" in text
    assert json.loads(Path("cal/summary.json").read_text())["estimate"] is None


def test_probabilities_by_name_and_by_word(place: Path) -> None:
    z, y = draw(0)
    p = softmax(z)
    np.savez("named.npz", probabilities=p, labels=y)
    np.savez("other.npz", scores=p, labels=y)
    np.savez("both.npz", probs=p, logits=z)
    write_csv("plain.csv", {"cat": p[:, 0], "dog": p[:, 1], "hen": p[:, 2], "label": y})
    write_csv("more.csv", {"id": y + 7, **columns("prob", p)})
    want = np.log(p)
    assert np.array_equal(read_site(Path("named.npz"))[1], want)
    assert np.array_equal(read_site(Path("other.npz"), "probs")[1], want)
    assert np.array_equal(read_site(Path("both.npz"), "probs")[1], want)
    assert np.array_equal(read_site(Path("both.npz"), "logits")[1], z)
    assert np.array_equal(read_site(Path("plain.csv"), "probs")[1], want)
    assert np.array_equal(read_site(Path("more.csv"))[1], want)
    assert read_site(Path("more.csv"))[2] is None
    np.savez("zero.npz", probs=np.eye(3), labels=np.arange(3))
    assert np.isfinite(read_site(Path("zero.npz"))[1]).all()


def test_parquet_without_pyarrow(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FedCalError, match=r"siteC.parquet: Parquet needs pyarrow: pip install 'fedcal\[parquet\]'"):
        read_site(Path("siteC.parquet"))


# --- bad files --------------------------------------------------------------------------------------------------------


def npz(**changes: Any) -> Callable[[], Any]:
    """x.npz as siteA's, with arrays changed, or left out where None."""

    def write() -> None:
        z, y = draw(0)
        held = {"logits": z, "labels": y, **changes}
        np.savez("x.npz", **{name: value for name, value in held.items() if value is not None})

    return write


def text(content: str | bytes, name: str = "x.csv") -> Callable[[], Any]:
    return lambda: Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def spoilt(value: float) -> np.ndarray:
    z = draw(0)[0]
    z[4, 1] = value
    return z


Z, Y = draw(0)
HEAD = "logit_0,logit_1,logit_2,label\n"
CAL = "calibrate siteA.npz x.npz --out new"
CSV = "calibrate siteA.npz x.csv --out new"
BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "probabilities as logits": (npz(logits=softmax(Z)), CAL, "x.npz: logits look like probabilities"),
    "logits as probabilities": (npz(logits=None, probs=Z), CAL, "are not probabilities"),
    "logits said to be probs": (npz(), CAL + " --probs", "--probs is given, but the file has logits"),
    "both": (npz(probs=softmax(Z)), CAL, "which of logits, probs is meant?"),
    "neither": (npz(logits=None, scores=Z), CAL, "neither logits nor probs, but scores"),
    "other K": (npz(logits=draw(0, k=4)[0], labels=draw(0, k=4)[1]), CAL, "x.npz: 4 classes, where siteA.npz has 3"),
    "NaN row": (npz(logits=spoilt(np.nan)), CAL, "x.npz: logits must be finite: row 4 holds NaN or infinity"),
    "infinite row": (npz(logits=spoilt(np.inf)), CAL, "row 4 holds NaN or infinity"),
    "NaN probabilities": (npz(logits=None, probs=spoilt(np.nan)), CAL, "row 4 holds NaN"),
    "no labels": (npz(labels=None), CAL, "x.npz: no labels: add an array `labels`"),
    "empty site": (npz(logits=Z[:0], labels=Y[:0]), CAL, "x.npz: no samples: leave this site out"),
    "label too high": (npz(labels=Y + 1), CAL, "x.npz: labels must lie in 0..2: found 3"),
    "label negative": (npz(labels=Y - 1), CAL, "found -1"),
    "labels too few": (npz(labels=Y[:-1]), CAL, "149 labels for 150 rows"),
    "pickled objects": (npz(logits=Z.astype(object)), CAL, "x.npz: logits holds Python objects: save numbers ("),
    "not a zip": (text("hello", "x.npz"), CAL, "x.npz: damaged"),
    "cut short": (lambda: text(Path("siteA.npz").read_bytes()[:900], "x.npz")(), CAL, "x.npz: damaged"),
    "one array": (lambda: (np.save("x.npy", Z), Path("x.npy").rename("x.npz")), CAL, "a single array"),
    "missing file": (lambda: None, CAL, "x.npz: no such file"),
    "missing csv": (lambda: None, CSV, "x.csv: no such file"),
    "a folder": (lambda: None, "calibrate ts --out new", "ts: this is a folder: name its files, one per site"),
    "ending unknown": (lambda: None, "calibrate x.txt --out new", "one of .npz, .csv, .parquet, not '.txt'"),
    "one name twice": (
        lambda: (npz()(), write_csv("x.csv", {**columns("logit", Z), "label": Y})),
        "calibrate x.csv x.npz --out new",
        "x.npz: another file has a site 'x' too",
    ),
    "csv empty": (text(""), CSV, "x.csv: it is empty"),
    "csv without rows": (text(HEAD), CSV, "x.csv: no samples"),
    "csv without header": (text("1,2,3,0\n"), CSV, "x.csv: columns 1, 2, 3, 0: name the scores logit_0"),
    "csv with words": (
        text(HEAD + "1,2,x,0\n"),
        CSV,
        "x.csv: row 1 below the header, column logit_2: 'x' is not a number",
    ),
    "csv with a short row": (text(HEAD + "1,2,3,0\n1,2\n"), CSV, "x.csv: line 3 has 2 cells, where the header has 4"),
    "csv with a gap": (
        text(HEAD + "1,2,,0\n"),
        CSV,
        "x.csv: row 1 below the header, column logit_2: the cell is empty",
    ),
    "csv with a number of no class": (
        text("cat,dog,patient,label\n0.5,0.5,7,cat\n"),
        "calibrate x.csv --probs --out new",
        "Every column but the label and the site is taken as a class: leave out all others",
    ),
    "csv not UTF-8": (text(b"\xff\xfe,\n1\n"), CSV, "x.csv: it is not text in UTF-8"),
    "csv without a class": (text("logit_0,logit_2,label\n1,2,0\n"), CSV, "column logit_1 is missing"),
    "csv with one name twice": (text("p_0,p_0,label\n1,2,0\n"), CSV, "two columns have the same name"),
    "parquet damaged": (text("hello", "x.parquet"), "calibrate x.parquet --out new", "cannot be read as Parquet"),
    "method unknown": (npz(), CAL + " --method fedcla", "did you mean 'fedcal'?"),
    "method of training": (npz(), CAL + " --method fedcal-literal", "fitted while a model is trained"),
    "option unknown": (npz(), CAL + " --method fedcal:hiden=3", "unknown option 'hiden'"),
    "option without value": (npz(), CAL + " --method fedcal-plus:informed", "option 'informed' has no value"),
    "option of other kind": (npz(), CAL + " --method fedcal-plus:informed=3", "informed must be true or false"),
    "accuracy unknown": (
        npz(),
        CAL + " --method fedcal-plus:accuracy=kep",
        "unknown accuracy 'kep': did you mean 'keep'?",
    ),
    "out a file": (npz(), "calibrate x.npz --out siteB.csv", "--out siteB.csv is a file: choose a folder"),
    "out taken": (npz(), "calibrate x.npz --out ts", "ts/scaler.safetensors exists"),
    "apply other K": (npz(logits=draw(0, k=4)[0]), "apply ts/scaler.safetensors x.npz --out p.npz", "4 classes for a"),
    "apply unknown client": (
        npz(),
        "apply ts/scaler.safetensors x.npz --client sitB --out p.npz",
        "unknown client 'sitB': did you mean 'siteB'?",
    ),
    "apply to a new site": (
        npz(),
        "apply ts/scaler.safetensors x.npz --client berlin --out p.npz",
        "or make a personal one for a new client: `Scaler.welcome`, `fedcal client finish`",
    ),
    "apply a request": (
        lambda: start(Path("srv"), "fed-ts", 3, ["x"]),
        "apply srv/request-0001.safetensors siteA.npz --out p.npz",
        "srv/request-0001.safetensors is a request or a reply",
    ),
    "apply to other ending": (npz(), "apply ts/scaler.safetensors x.npz --out p.txt", "not '.txt'"),
    "apply no scaler": (npz(), "apply x.npz x.npz --out p.npz", "x.npz is damaged or not a file of fedcal's"),
    "evaluate without labels": (npz(labels=None), "evaluate x.npz", "x.npz: no labels"),
    "evaluate own of a stranger": (
        npz(),
        "evaluate x.npz --scaler ts/scaler.safetensors --own",
        "--own: a file's site is its name, or its column `site`: unknown client 'x'",
    ),
    "evaluate own of nothing": (npz(), "evaluate x.npz --own", "needs --scaler"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_files(case: tuple[Callable[[], Any], str, str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, line, word = case
    spoil()
    before = snapshot(place)
    said = command(capsys, line, code=2).splitlines()
    assert len(said) == 1 and said[0].startswith("fedcal: ") and word in said[0]
    assert snapshot(place) == before


def test_no_site_is_named_like_the_pooled_row(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("siteA.npz").rename("pooled.npz")
    for line in ("evaluate pooled.npz", "calibrate pooled.npz siteB.csv --no-report --method fed-ts --out new -q"):
        assert "a site cannot be named 'pooled'" in command(capsys, line, code=2)
    assert not Path("new").exists()
