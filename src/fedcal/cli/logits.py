"""Commands on users' own files: calibrate, apply. They parse and call."""

from __future__ import annotations

import shlex
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
    kind_of,
    parse_classes,
    sets_options,
)
from fedcal.cli.start import safe
from fedcal.errors import FedCalError, FedCalWarning, counted
from fedcal.methods import DEFAULT

if TYPE_CHECKING:
    import numpy as np

out = Console()
SHOWN = 20  # classes, in a line that lists them


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
    from fedcal.assess.evaluation import name_classes
    from fedcal.base.lock import locked
    from fedcal.base.store import check_outputs, write_json
    from fedcal.cli import calibrate_files
    from fedcal.cli.progress import Parts, fitting
    from fedcal.data.logit_files import read_sites
    from fedcal.data.samples import name_columns
    from fedcal.methods import get_method
    from fedcal.report.evaluation import in_words, write_page
    from fedcal.report.sites import table_row
    from fedcal.report.words import difference

    scaler, summed_up = out_dir / "scaler.safetensors", out_dir / "summary.json"
    page, figures = out_dir / "report.html", out_dir / "report.json"
    if out_dir.exists() and not out_dir.is_dir():
        raise FedCalError(f"--out {out_dir} is a file: choose a folder to write to")
    if scaler.exists() and not overwrite:
        raise FedCalError(f"{scaler} exists: choose another folder, or pass --overwrite")
    for written in (scaler, summed_up, page, figures):
        check_outputs({"--out": written}, files)
    chosen, estimated, sets = get_method(method, **sets_options(alpha, coverage)), None, None
    evaluated = None
    expected = None if chosen.additive else chosen.rounds
    with Parts(out, quiet) as parts:
        parts.begin("reading file", len(files))
        read = read_sites(files, kind_of(probs), parse_classes(classes), max_bytes, on_file=parts.step)
        sites = read.samples
        kept, held = calibrate_files.hold_out(sites, seed)
        if any(len(labels) for _, labels in held.values()):
            with fitting(parts, "four fifths of the samples", expected) as on_round:
                first = calibrate_files.fit(kept, chosen, seed, on_round)
            expected = first.ledger.rounds  # the same fit on a quarter more samples
            estimated = calibrate_files.estimate(first, parts.over("measuring sample", held, lambda pair: len(pair[1])))
            sets = calibrate_files.estimate_sets(first, held)
            if report:
                evaluated = calibrate_files.evaluations(first, held, name_classes(read.classes))
        with fitting(parts, "all samples", expected) as on_round:
            final = calibrate_files.fit(sites, chosen, seed, on_round)
    final.classes, final.probs = name_columns(read.classes), read.probs or None
    personal = any(final.personal.values())  # else the verdict is on the global scaler
    summary = calibrate_files.summary(final, sites, seed, estimated, sets)
    with locked(out_dir, "fedcal calibrate"):
        final.save(scaler)
        write_json(summed_up, summary)
        for old in (page, figures):  # of an earlier scaler
            old.unlink(missing_ok=True)
        if evaluated:
            before, after = evaluated
            write_json(figures, after.to_json() | {"before": before.to_json()})
            title = f"{counted(len(sites), 'site')} after {chosen.name}"
            held_out = " that the scaler was not fitted on (a fifth of each site's)"
            held_out += ", calibrated by their site's personal scaler," if personal else ""
            steps = calibrate_files.next_steps(shlex.quote(str(scaler)), shlex.quote(next(iter(sites))))
            write_page(page, after, title, before, steps, held_out)
    if quiet:
        return
    print_sorted_classes(None if classes else read.classes)
    names = {"before": "before", "global": "global scaler", "own": "personal scalers"}
    if estimated:
        print_table([table_row(names[view], estimated.pooled(view)) for view in estimated.tallies])
        for view in estimated.tallies:
            about = summary["estimate"][view]
            out.print(
                f"worst client, {names[view]}: {safe(about['worst_client'])}, ECE {100 * about['worst_ece']:.1f} %"
            )
            if view != "before":
                print(f"{names[view]} against before: {difference(estimated.difference(view, 'before'))}")
    for view, found in (sets or {}).items():
        print(
            f"sets, {names[view]}: {found['coverage']:.1%} hold the label (target {found['target']:.1%}), "
            f"{found['size']:.2f} classes on average"
        )
    print(
        "Measured on a held-out fifth of each client's samples; the scaler was then fitted again on all samples."
        if estimated
        else "Too few samples to hold any out, so the quality of the scaler was not measured."
    )
    if "fallback" in final.params:
        print(f"{chosen.name} fell back on a temperature: too few samples, or a single class.")
    if few := calibrate_files.too_few(final):
        print(few)
    if evaluated:
        if personal:
            print("With each site's personal scaler:")
        for sentence in in_words(*evaluated):
            out.print(safe(sentence), soft_wrap=True, highlight=False)
    out.print(f"Scaler: [bold]{safe(scaler)}[/bold]", soft_wrap=True)
    if evaluated:
        out.print(f"Report: [bold]{safe(page)}[/bold]", soft_wrap=True)


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
    logits, named = rows.logits, parse_classes(classes)
    names = calibration.classes if named is None else check_classes(named, logits.shape[1]).tolist()
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
