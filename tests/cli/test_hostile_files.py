"""Commands on files that would overwrite, overflow, mislead or mix: refused in one line; what they write is private."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import stat
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fedcal
from commands import run
from fedcal import Scaler
from fedcal.cli import main as cli

pytestmark = pytest.mark.usefixtures("built_once")
K = 3
Run = pytest.CaptureFixture[str]


def draw(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, K))
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(1)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sites' files, a scaler and the first request of a federation."""
    monkeypatch.chdir(tmp_path)
    for number, site in enumerate(("siteA", "siteB")):
        logits, labels = draw(number)
        np.savez(f"{site}.npz", logits=logits, labels=labels)
    logits, labels = draw(0)
    rows = [",".join(map(str, [*z, y])) for z, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    Path("siteA.csv").write_text("\n".join(["logit_0,logit_1,logit_2,label", *rows]))
    fedcal.calibrate({"siteA": draw(0), "siteB": draw(1)}, "avg-t").save("scaler.safetensors")
    with contextlib.redirect_stdout(io.StringIO()):
        assert run("server start srv --method fed-ts --classes 3 --sites siteA,siteB") == 0
    return tmp_path


def refused(capsys: Run, line: str, words: str) -> None:
    capsys.readouterr()
    assert run(line) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("fedcal: ") and words in lines[0] and lines[0].isprintable(), lines


# --- outputs over inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "apply scaler.safetensors siteA.npz --out siteA.npz",
        "apply scaler.safetensors siteA.npz --out ./srv/../siteA.npz",
        "apply scaler.safetensors siteA.npz --out soft.npz",
        "apply scaler.safetensors siteA.npz --out hard.npz",
        "evaluate siteA.npz siteB.npz --report siteB.npz",
        "evaluate siteA.npz --scaler scaler.safetensors --report scaler.safetensors",
        "evaluate siteA.npz --json siteA.npz",
        "evaluate tables/evaluation.csv --tables tables",
        "evaluate siteA.npz --json x.md --tables x.md",
        "evaluate siteA.npz --json x --report x",
        "client evaluate siteA.npz --out siteA.npz",
        "client evaluate siteA.npz --scaler scaler.safetensors --out scaler.safetensors",
        "server evaluate siteA.npz --json siteA.npz",
        "server merge scaler.safetensors part.safetensors --out scaler.safetensors",
        "server merge scaler.safetensors part.safetensors --out part.safetensors",
        "client reply srv/request-0001.safetensors siteA.npz --out siteA.npz",
        "client reply srv/request-0001.safetensors siteA.npz --out srv/request-0001.safetensors",
        "client reply srv/request-0001.safetensors siteA.npz --state siteA.npz",
        "client reply srv/request-0001.safetensors siteA.npz --state x --out x",
        "client finish scaler.safetensors siteA.npz --out scaler.safetensors",
        "client finish scaler.safetensors siteA.npz --out siteA.npz",
        "client finish scaler.safetensors siteA.npz --state x --out x",
    ],
)
def test_nothing_is_written_over_what_is_read(line: str, capsys: Run) -> None:
    Path("soft.npz").symlink_to("siteA.npz")
    Path("hard.npz").hardlink_to("siteA.npz")
    Path("part.safetensors").write_bytes(Path("scaler.safetensors").read_bytes())
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    refused(capsys, line, "choose")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


# --- bombs ----------------------------------------------------------------------------------------------------------------


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB


def npz_that_claims(path: str, shape: tuple[int, ...], dtype: str = "<f8") -> None:
    """An .npz whose logits claim a shape; of the numbers only the first are there."""
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr("logits.npy", magic + header + b"\0" * (1 << 20))


COMMANDS = [
    "calibrate {} --out cal",
    "apply scaler.safetensors {} --out out.npz",
    "evaluate {}",
    "client reply srv/request-0001.safetensors {} --name siteA",
    "client finish scaler.safetensors {} --name siteA --out own.safetensors",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_files_that_unfold_to_more_than_the_limit(line: str, capsys: Run) -> None:
    """On every command: an .npz of 128 GiB of claims, integers that become numbers, an endless line, a device."""
    npz_that_claims("claims.npz", (1 << 31, 8))
    npz_that_claims("whole.npz", (1 << 28, 8), "|i1")
    with Path("endless.csv").open("wb") as file:
        file.truncate(3 << 30)
    Path("zero.csv").symlink_to("/dev/zero")
    os.mkfifo("pipe.csv")
    before = memory()
    refused(capsys, line.format("claims.npz"), "claims.npz: 128.0 GiB of numbers, where 2.0 are the most")
    refused(capsys, line.format("whole.npz"), "raise FEDCAL_MAX_BYTES (or --max-bytes,")
    refused(capsys, line.format("endless.csv"), "line 1 has over 16777216 characters")
    refused(capsys, line.format("zero.csv"), "is a device or a pipe, not a file")
    refused(capsys, line.format("pipe.csv"), "is a device or a pipe, not a file")
    assert memory() - before < 300_000


def test_the_limit_can_be_moved(capsys: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("siteA.npz", "siteA.csv"):
        refused(capsys, f"evaluate {name} --max-bytes 1000", "GiB of numbers, where")
        assert run(f"evaluate {name} --max-bytes 100000") == 0
    monkeypatch.setenv("FEDCAL_MAX_BYTES", "1000")
    refused(capsys, "evaluate siteA.npz", "raise FEDCAL_MAX_BYTES")
    assert run("evaluate siteA.npz --max-bytes 100000") == 0


def test_parquet_that_unfolds(capsys: Run) -> None:
    """A million equal rows take a few bytes, also as long words: what they unfold to is asked before they are read."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n = 1_000_000
    same = arrow.array(np.zeros(n))
    site = arrow.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), ["x" * 100_000])
    parquet.write_table(arrow.table({"logit_0": same, "logit_1": same, "label": same}), "rows.parquet")
    parquet.write_table(arrow.table({"logit_0": same, "logit_1": same, "label": same, "site": site}), "words.parquet")
    assert Path("words.parquet").stat().st_size < 1_000_000
    before = memory()
    refused(capsys, "evaluate rows.parquet --max-bytes 20000000", "rows.parquet: 0.0 GiB of numbers")
    refused(capsys, "evaluate words.parquet", "words.parquet: 372.5 GiB of numbers")
    assert memory() - before < 500_000


def test_csv_whose_words_unfold(capsys: Run) -> None:
    """One long name would make an array in which every row has as much room."""
    rows = [f"0.5,-0.5,{i % 2},a" for i in range(30_000)]
    Path("long.csv").write_text("\n".join(["logit_0,logit_1,label,site", *rows, f"1,2,0,{'x' * 100_000}"]))
    before = memory()
    refused(capsys, "evaluate long.csv", "long.csv: 11.2 GiB of numbers")
    assert memory() - before < 300_000


# --- misleading content ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("logit_0,logit_1,logit_01,label\n1,2,3,0\n", "columns logit_1 and logit_01 are of one class"),
        ("logit_0,logit_1,label\n1,2,0\n1,2,0,5\n", "line 3 has 4 cells, where the header has 3"),
        ("logit_0,logit_1,label\n1,2,0\n1,2\n", "line 3 has 2 cells, where the header has 3"),
        ('logit_0,logit_1,label\n1,2,"0,5",7\n', "line 2 has 4 cells, where the header has 3"),
        ("\x1b[2J\x1b[31mlogit_0,\x07x,label\n1,2,0\n", "columns \\x1b[2J\\x1b[31mlogit_0, \\x07x, label"),
        ("logit_0,logit_1,label,site\n1,2,0,\x1b[2Jnorth\n", "the name of site '\\x1b[2Jnorth' cannot be shown"),
        (f"logit_0,logit_1,logit_{'9' * 5000},label\n1,2,3,0\n", "…: classes are numbered from 0"),
        ("", "x.csv: it is empty: its first line must name the columns"),
        ("logit_0;logit_1;label\n1;2;0\n", "its cells are not separated by commas"),
        ("logit_0,logit_1,label\n1,nan,0\n", "row 1 below the header holds NaN or infinity (1 such row)"),
        (
            "p_0,p_1,label\n0.5,0.5,0\n3,1,0\n",
            "row 2 below the header sums to 4): if they are logits, name them logits (",
        ),
        ("p_0,p_1,label\n0.5,0.5,0\n1.5,-0.5,0\n", "row 2 below the header holds -0.5"),
        ("logit_0,logit_1,logit_2,label\n1,2,3,a\n1,2,3, a\n", "1 different label for 3 columns"),
        ("logit_0,logit_1,label\n1,2,0\n1,2,NA\n1,2,1\n", "3 different labels for 2 columns (0, 1, NA)"),
    ],
)
def test_tables_that_mislead(text: str, words: str, capsys: Run) -> None:
    Path("x.csv").write_text(text)
    refused(capsys, "evaluate x.csv", words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty: its first line must name the columns"),
        ("p;label;sex\n0,2;0;f\n", "its cells are not separated by commas"),
        ("p\tlabel\tsex\n0.2\t0\tf\n", "its cells are not separated by commas"),
    ],
)
def test_a_missing_group_does_not_hide_what_is_wrong(text: str, words: str, capsys: Run) -> None:
    Path("x.csv").write_text(text)
    refused(capsys, "evaluate x.csv --group sex", words)


def test_other_encodings_are_named(capsys: Run) -> None:
    for encoding in ("latin-1", "utf-16"):
        Path("x.csv").write_text("logit_0,logit_1,label\n1,2,köln\n", encoding=encoding)
        refused(capsys, "evaluate x.csv", "x.csv: it is not text in UTF-8 (byte ")


def test_more_classes_than_messages_can_name(capsys: Run) -> None:
    """Before, such a federation was written and could not be read again."""
    refused(
        capsys, "server start new --classes 1000000000 --sites a", "1000000000 classes: there may be 1000000 at most"
    )
    assert not (Path("new") / "federation.json").exists()


def test_a_file_that_is_no_batch_of_a_monitor(capsys: Run) -> None:
    assert run("monitor start scaler.safetensors --sites siteA --out monitor") == 0
    capsys.readouterr()
    refused(capsys, "monitor check monitor siteA.npz", "siteA.npz: not a batch of sums (")


def test_two_classes_of_which_few_samples_are_held_out(capsys: Run) -> None:
    """Fewer than `min_count` of one class hide the decisions; the page is written without them."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    np.savez("x.npz", logits=rng.normal(size=(40, 2)) + np.eye(2)[labels], labels=labels)
    assert run("calibrate x.npz --out new") == 0 and Path("new/report.html").exists()


def test_names_too_long_for_a_figure(capsys: Run) -> None:
    """They are shown without their middle: a warning of the plotting library is an error here."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 3)), rng.integers(3, size=60)
    np.savez("x.npz", logits=logits, labels=labels, site=np.array(["a" * 300, "b/" * 100, "c"])[np.arange(60) % 3])
    assert run("evaluate x.npz --report new.html") == 0
    assert "a" * 300 in Path("new.html").read_text()  # the tables have the whole name


def test_file_names_that_steer_a_terminal(capsys: Run) -> None:
    odd = Path("\x1b[2J.npz")
    odd.write_bytes(Path("siteA.npz").read_bytes())
    refused(capsys, f"evaluate {odd}", "\\x1b[2J")
    refused(capsys, "evaluate \x1b[2J-missing.npz", "\\x1b[2J-missing.npz: no such file")
    assert run(f"apply scaler.safetensors {odd} --out \x1b[31mout.npz") == 0
    assert "\x1b[31mout" not in capsys.readouterr().out


@pytest.mark.parametrize("column", ["logit_1", "label", "site"])
def test_parquet_of_other_types(column: str, capsys: Run) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"logit_0": [0.5, 1.0], "logit_1": [1.0, 0.5], "label": [0, 1], "site": ["a", "b"]}
    odd = {
        "timestamp": arrow.array([1, 2], arrow.timestamp("ms")),
        "list": arrow.array([[1], [2]]),
        "decimal": arrow.array([1, 2], arrow.decimal128(5, 2)),
        "binary": arrow.array([b"a", b"b"]),
    }
    for kind, values in odd.items():
        parquet.write_table(arrow.table({**columns, column: values}), "x.parquet")
        refused(capsys, "evaluate x.parquet", f"column {column} holds {kind}")


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".x", ""])
def test_names_that_are_paths(name: str, capsys: Run) -> None:
    for command in (
        "client reply srv/request-0001.safetensors",
        "client finish scaler.safetensors --out o.safetensors",
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([*command.split(), "siteA.npz", "--name", name])
        assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert not Path("../x.state").exists()


def test_clients_within_a_client_by_name(capsys: Run) -> None:
    logits, labels = draw(2)
    sites = {"north": (logits[:30], labels[:30]), "north/ward1": (logits[30:], labels[30:])}
    fitted = fedcal.calibrate(sites, "avg-t")
    fitted.save("two.safetensors")
    again = Scaler.load("two.safetensors")
    for name in sites:
        assert np.array_equal(again.predict_proba(logits, name), fitted.predict_proba(logits, name))


# --- private files, locks, federations apart ---------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_holds_samples_or_states_is_private() -> None:
    before = os.umask(0)
    try:
        assert run("client reply srv/request-0001.safetensors siteA.npz --state states/a") == 0
        assert run("client reply srv/request-0001.safetensors siteB.npz") == 0
        assert run("server receive srv srv/siteA-0001.safetensors srv/siteB-0001.safetensors") == 0
        assert run("apply scaler.safetensors siteA.npz --out deep/out.csv") == 0
        assert run("client finish scaler.safetensors siteA.npz --out own.safetensors") == 0
    finally:
        os.umask(before)
    kept = [*Path("states/a").iterdir(), *Path("siteB.state").iterdir(), *Path("srv").glob("round-*")]
    assert len(kept) == 3
    for path in (*kept, Path("deep/out.csv"), Path("own.safetensors")):
        assert mode(path) == 0o600, path
    for folder in ("states", "states/a", "siteB.state", "deep"):
        assert mode(Path(folder)) == 0o700, folder


def test_a_site_in_two_federations_keeps_both_states() -> None:
    """Replying to another federation's first request must not lose what the first federation's next reply builds on."""
    for name in ("one", "two"):
        assert run(f"server start {name} --classes 3 --sites siteA --method fedcal-no-wm:rounds=3,steps=3") == 0
        if name == "two":  # each may ask as much, so the site has to say that it wants that
            assert run(f"client reply {name}/request-0001.safetensors siteA.npz") == 2
        assert run(f"client reply {name}/request-0001.safetensors siteA.npz --join") == 0
        assert run(f"server receive {name} {name}/siteA-0001.safetensors") == 0
    for number in (2, 3):
        for name in ("one", "two"):
            assert run(f"client reply {name}/request-{number:04d}.safetensors siteA.npz") == 0
            assert run(f"server receive {name} {name}/siteA-{number:04d}.safetensors") == 0
    for name in ("one", "two"):
        assert run(f"client finish {name}/scaler.safetensors siteA.npz --out {name}.safetensors") == 0
        personal = Scaler.load(f"{name}.safetensors").personal["siteA"]
        expected = fedcal.calibrate({"siteA": draw(0)}, "fedcal-no-wm:rounds=3,steps=3").personal["siteA"]
        assert personal and all(np.array_equal(personal[key], value) for key, value in expected.items())


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("srv", "server receive srv a b"),
        ("srv", "server status srv"),
        ("new", "server start new --classes 3 --sites a"),
        ("siteA.state", "client reply srv/request-0001.safetensors siteA.npz"),
        ("run", "run --data synthetic --limit 200 --rounds 1 --out run"),
        ("cal", "calibrate siteA.npz --no-report --out cal -q"),
    ],
)
def test_the_second_command_in_a_folder_says_who_holds_it(folder: str, line: str, capsys: Run) -> None:
    from fedcal.base.lock import locked

    with locked(Path(folder), "fedcal run"):
        refused(capsys, line, f"{folder} is in use by process {os.getpid()} on ")


def test_two_runs_at_once_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin together: one makes its files, the other one is refused; the folder is that of a single run."""
    config = fedcal.Config(data="synthetic", limit=200, clients=2, rounds=2, epochs=1, method=("uncal",))
    monkeypatch.setattr("fedcal.report.write", lambda folder: None)
    began, outcomes = threading.Barrier(2), list[str]()

    def go() -> None:
        began.wait()
        try:
            fedcal.run(config, "run")
            outcomes.append("done")
        except fedcal.FedCalError as error:
            outcomes.append(
                "refused" if "in use by" in str(error) or "holds a run already" in str(error) else str(error)
            )

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["done", "refused"]
    assert len(Path("run/rounds.jsonl").read_text().splitlines()) == 2


# --- a log that is damaged ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["cut", "digit", "gone", "json", "order"])
def test_a_damaged_log_is_found_before_training_goes_on(
    spoil: str, monkeypatch: pytest.MonkeyPatch, capsys: Run
) -> None:
    from fedcal.simulate import federation

    config = fedcal.Config(
        data="synthetic", limit=200, clients=2, rounds=3, epochs=1, method=("uncal",), checkpoint_every=1
    )
    with monkeypatch.context() as patch:
        patch.setattr(federation, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fedcal.run(config, "run")
    log = Path("run/rounds.jsonl")
    lines = log.read_text().splitlines()
    damaged = {
        "cut": [lines[0], lines[1][:30], lines[2]],
        "digit": [lines[0].replace('"round": 1', '"round": 3'), *lines[1:]],
        "gone": lines[:2],
        "json": [lines[0], "[" * 5000, lines[2]],
        "order": [lines[1], lines[0], lines[2]],
    }
    log.write_text("\n".join(damaged[spoil]) + "\n")
    monkeypatch.setattr(federation, "train", lambda *_: pytest.fail("training went on"))
    refused(capsys, "run --out run --resume", "rounds.jsonl")
