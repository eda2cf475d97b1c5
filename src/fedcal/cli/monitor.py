"""`fedcal monitor`: start a monitor, sum up a batch at a site, and check what was sent. It parses, calls and prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcal.base.limits import MOST_BYTES
from fedcal.cli.exchange import File, Name
from fedcal.cli.logits import out
from fedcal.cli.options import Classes, Kind, MaxBytes, agreed_classes, kind_of
from fedcal.cli.start import safe
from fedcal.errors import FedCalError, counted, printable

if TYPE_CHECKING:
    from fedcal.monitor import Batch, Monitor

DRIFT = 3  # exit status: a drift was found

monitor_app = typer.Typer(
    help="Watch a deployed model for drift: are its probabilities still right?", no_args_is_help=True
)
State = Annotated[Path, typer.Argument(metavar="STATE", help="The monitor's file.")]
Tolerance = Annotated[
    float, typer.Option(help="How far probabilities may be off, in log-odds, and still count as right.")
]


@monitor_app.command("start")
def monitor_start(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The scaler.safetensors in use.")],
    out_file: Annotated[Path, typer.Option("--out", help="The monitor's file.")],
    sites: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Sites that will send sums. (default: those with a personal scaler)"),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Probability of any false alarm, at any site and time.")] = 0.05,
    tolerance: Tolerance = 0.25,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the monitor in --out.")] = False,
) -> None:
    """Create a new monitor, at the server."""
    from fedcal.base.store import check_outputs
    from fedcal.monitor import Monitor
    from fedcal.protocol import Scaler

    check_outputs({"--out": out_file}, [scaler])
    if out_file.exists() and not overwrite:
        raise FedCalError(f"{out_file} exists: choose another file, or pass --overwrite")
    names = [name.strip() for name in sites.split(",")] if sites is not None else None
    monitor = Monitor(Scaler.load(scaler), names, alpha=alpha, tolerance=tolerance)
    monitor.save(out_file)
    shown = ", ".join(monitor.sites[:8]) + (" and others" if len(monitor.sites) > 8 else "")
    print(printable(f"{out_file} watches {counted(len(monitor.sites), 'site')}: {shown}."))


@monitor_app.command("sums")
def monitor_sums(
    file: File,
    scaler: Annotated[
        Path, typer.Option(help="The site's scaler file; the personal scaler in it is used, if there is one.")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="The sums, for the server.")],
    batch: Annotated[
        str | None,
        typer.Option(help="The batch's name, unique at the site, such as 2025-W07. (default: the file's name)"),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference",
            help="These are the samples that the site's personal scaler was made from: send them once, first.",
        ),
    ] = False,
    tolerance: Tolerance = 0.25,
    min_count: Annotated[int, typer.Option(help="Send no sums over fewer samples than this.")] = 5,
    site: Name = None,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Sum up a batch of new samples at a site, with or without labels. A sample belongs to one batch only."""
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_site
    from fedcal.monitor import Monitor
    from fedcal.protocol import Scaler

    check_outputs({"--out": out_file}, [file, scaler])
    calibration = Scaler.load(scaler)
    known = agreed_classes(classes, calibration.classes)
    name, logits, labels, _ = read_site(file, kind_of(probs), known, site, max_bytes)
    calibration.classes = ()  # labels are columns by now
    found = Monitor.sums(
        calibration,
        name,
        batch or file.stem,
        logits,
        labels,
        reference=reference,
        tolerance=tolerance,
        min_count=min_count,
        probs=False,
    )
    found.save(out_file)
    print(printable(f"{out_file} is for the server: {found.about} sums of {found.n} samples."))


@monitor_app.command("check")
def monitor_check(
    state: State,
    batches: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SUMS...", help="Files from `fedcal monitor sums`, oldest first; known ones are skipped."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all results as JSON.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page with the evidence over time.")] = None,
    same_sums: Annotated[
        bool,
        typer.Option(
            "--same-sums",
            help="Also add batches with the sums of another batch: you know that they are of other samples.",
        ),
    ] = False,
) -> None:
    """Add the sums that sites sent, all of them or none, and report any drift.

    The exit status is 0 without drift, 3 with drift, and 2 for bad input.
    """
    from fedcal.base.lock import locked
    from fedcal.base.store import check_outputs, write_json
    from fedcal.monitor import Batch, Monitor
    from fedcal.monitor.batch import About
    from fedcal.report.monitor import write_page

    given = batches or []
    check_outputs({"--json": json_file, "--report": report}, [state, *given])
    if not state.exists():
        raise FedCalError(f"{state} is missing: create it with `fedcal monitor start`")
    with locked(state.absolute().parent, "fedcal monitor check"):
        monitor = Monitor.load(state)
        loaded = [(path, Batch.load(path)) for path in given]
        loaded.sort(key=lambda one: one[1].about is not About.REFERENCE)  # a folder's order is that of names
        new = sum(_add(monitor, *one, same_sums) for one in loaded)
        if new:
            monitor.save(state)
    verdict = monitor.verdict()
    if given:
        print(f"{new} of {len(given)} batches are new.")
    for sentence in verdict.advice():
        out.print(safe(sentence), soft_wrap=True)
    if json_file is not None:
        write_json(json_file, verdict.to_json())
    if report is not None:
        write_page(report, verdict)
        out.print(f"Report: [bold]{safe(report)}[/bold]", soft_wrap=True)
    if verdict.drifted:
        raise typer.Exit(DRIFT)


def _add(monitor: Monitor, path: Path, batch: Batch, same_sums: bool) -> bool:
    try:
        return monitor.add(batch, same_sums)
    except FedCalError as error:
        raise FedCalError(f"{path}: {error}; nothing was added") from None
