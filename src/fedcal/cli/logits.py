"""Commands on users' own files: calibrate, apply. They parse and call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedcal.base.limits import MOST_BYTES
from fedcal.cli.options import (
    Alpha,
    Classes,
    Coverage,
    Files,
    Kind,
    MaxBytes,
    Quiet,
    Seed,
    Spec,
    agreed_classes,
    kind_of,
    parse_classes,
    sets_options,
)
from fedcal.cli.start import safe
from fedcal.errors import FedCalError, FedCalWarning
from fedcal.methods import DEFAULT

if TYPE_CHECKING:
    import numpy as np

    from fedcal.cli.calibrate_files import Outcome
    from fedcal.measure.views import Measured

out = Console()
SHOWN = 20  # classes, in a line that lists them
VIEWS = {"before": "before", "global": "global scaler", "own": "personal scalers"}


def calibrate(
    files: Files,
    out_dir: Annotated[
        Path, typer.Option("--out", help="Folder for scaler.safetensors, summary.json and report.html.")
    ],
    method: Spec = DEFAULT,
    alpha: Alpha = None,
    coverage: Coverage = None,
    probs: Kind = None,
    classes: Classes = None,
    seed: Seed = 0,
    max_bytes: MaxBytes = MOST_BYTES,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in --out.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report/--no-report", help="Write report.html (before and after), and its figures as report.json."
        ),
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Calibrate from files of logits and labels, one file per client. The model must not have been trained on them.

    A column `site` (in .npz: an array) splits a file into one client per site. Labels may be numbers or words.

    A first fit leaves out a fifth of each client's samples, and all printed figures are measured on these. The scaler that is
    saved is fitted on all samples.
    """
    from fedcal.base.lock import locked
    from fedcal.base.store import check_outputs
    from fedcal.cli import calibrate_files
    from fedcal.cli.progress import Parts
    from fedcal.data.logit_files import read_sites
    from fedcal.methods import get_method

    scaler = out_dir / calibrate_files.SCALER
    if out_dir.exists() and not out_dir.is_dir():
        raise FedCalError(f"--out {out_dir} is a file: choose a folder to write to")
    if scaler.exists() and not overwrite:
        raise FedCalError(f"{scaler} exists: choose another folder, or pass --overwrite")
    for name in calibrate_files.WRITTEN:
        check_outputs({"--out": out_dir / name}, files)
    chosen = get_method(method, **sets_options(alpha, coverage))
    with Parts(out, quiet) as parts:
        parts.begin("reading file", len(files))
        read = read_sites(files, kind_of(probs), parse_classes(classes), max_bytes, on_file=parts.step)
        outcome = calibrate_files.calibrate(read, chosen, seed, report, parts)
    with locked(out_dir, "fedcal calibrate"):
        outcome.write(out_dir)
    if not quiet:
        print_sorted_classes(None if classes else read.classes)
        print_outcome(outcome, out_dir)


def print_outcome(outcome: Outcome, folder: Path) -> None:
    """Say how good a scaler is, as far as that was measured, and where it is."""
    from fedcal.cli import calibrate_files
    from fedcal.report.evaluation import in_words

    if outcome.estimated:
        print_estimate(outcome.estimated, outcome.summary["estimate"])
    print(
        "Measured on a held-out fifth of each client's samples; the scaler was then fitted again on all samples."
        if outcome.estimated
        else "Too few samples to hold any out, so the quality of the scaler was not measured."
    )
    if "fallback" in outcome.final.params:
        print(f"{outcome.final.method.name} fell back on a temperature: too few samples, or a single class.")
    if few := calibrate_files.too_few(outcome.final):
        print(few)
    if outcome.evaluated and outcome.is_personal:
        print("With each site's personal scaler:")
    for sentence in in_words(*outcome.evaluated) if outcome.evaluated else ():
        out.print(safe(sentence), soft_wrap=True, highlight=False)
    out.print(f"Scaler: [bold]{safe(folder / calibrate_files.SCALER)}[/bold]", soft_wrap=True)
    if outcome.evaluated:
        out.print(f"Report: [bold]{safe(folder / calibrate_files.PAGE)}[/bold]", soft_wrap=True)


def print_estimate(estimated: Measured, about: dict[str, Any]) -> None:
    """Print the metrics of held-out samples before and after, the worst clients, the differences and the sets.

    Args:
        estimated: the measurements.
        about: the same by view, as summary.json has them.
    """
    from fedcal.report.sites import table_row
    from fedcal.report.words import difference

    print_table([table_row(VIEWS[view], estimated.pooled(view)) for view in estimated.tallies])
    for view in estimated.tallies:
        worst, ece = about[view]["worst_client"], about[view]["worst_ece"]
        out.print(f"worst client, {VIEWS[view]}: {safe(worst)}, ECE {100 * ece:.1f} %")
        if view != "before":
            print(f"{VIEWS[view]} against before: {difference(estimated.difference(view, 'before'))}")
    for view, found in about.get("sets", {}).items():
        print(
            f"sets, {VIEWS[view]}: {found['coverage']:.1%} hold the label (target {found['target']:.1%}), "
            f"{found['size']:.2f} classes on average"
        )


def apply(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The scaler.safetensors to apply.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Logits (or probabilities), with or without labels.")],
    out_file: Annotated[
        Path, typer.Option("--out", help="Where to write probabilities and predictions: .npz, .csv or .parquet.")
    ],
    client: Annotated[
        str | None, typer.Option(help="Use this client's personal scaler. (default: the global one)")
    ] = None,
    own: Annotated[bool, typer.Option("--own", help="Use for each row the personal scaler of its `site`.")] = False,
    sets: Annotated[
        bool,
        typer.Option(
            "--sets", help="Also write conformal sets: a column `set` of class lists; in .npz, booleans `sets`."
        ),
    ] = False,
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha", help="With --sets: the share of labels that the sets may miss. (default: as calibrated)"
        ),
    ] = None,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Write calibrated probabilities and predictions for new samples.

    Predictions are class names if the scaler knows them. Labels and sites in the file are copied to the output.
    """
    import numpy as np

    from fedcal.base.labels import check_classes
    from fedcal.base.store import check_outputs
    from fedcal.cli import calibrate_files
    from fedcal.data.logit_files import check_output, read_rows, write_probs
    from fedcal.protocol import Scaler

    check_output(out_file)
    check_outputs({"--out": out_file}, [scaler, file])
    if own and client is not None:
        raise FedCalError("--own and --client contradict each other: give one of them")
    calibration = Scaler.load(scaler)
    rows = read_rows(file, kind_of(probs), max_bytes)
    if own and rows.sites is None:
        raise FedCalError(f"{file}: --own needs a column `site`; pass --client NAME if all rows are of one site")
    logits, named = rows.logits, agreed_classes(classes, calibration.classes)
    names = check_classes(named, logits.shape[1]).tolist() if classes and named else calibration.classes
    calibrated = np.empty_like(logits)
    members = np.empty(logits.shape, bool) if sets or alpha is not None else None
    for site, chosen in rows.by_site("").items() if own else [(client, slice(None))]:
        calibrated[chosen] = calibration.predict_proba(logits[chosen], site, probs=False)
        if members is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FedCalWarning)  # said below, once
                members[chosen] = calibration.predict_set(logits[chosen], alpha, site, probs=False)
    write_probs(out_file, calibrated, names, rows, members)
    if members is not None and (few := calibrate_files.too_few(calibration, alpha)):
        print(few)
    out.print(f"{len(logits)} samples: [bold]{safe(out_file)}[/bold]", soft_wrap=True)


def print_sorted_classes(classes: Sequence[Any] | np.ndarray | None) -> None:
    """Say which class each column was taken for, where that follows from the sorted labels alone: it may be wrong."""
    if classes is not None:
        names = ", ".join(str(name) for name in classes[:SHOWN]) + ("" if len(classes) <= SHOWN else ", …")
        single = f"; a single score is that of {classes[1]}" if len(classes) == 2 else ""
        line = f"Columns: {names} (labels, sorted{single}; if the order is another, pass --classes)"
        out.print(safe(line), soft_wrap=True)


def print_table(rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    from fedcal.report.sites import COLUMNS, NOTE

    if rows:
        table = Table(box=box.SIMPLE, padding=0, caption=NOTE, caption_justify="left")
        for number, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
        for row in rows:
            table.add_row(*(safe(cell) for cell in row))
        out.print(table)
