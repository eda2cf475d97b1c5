"""`fedcal monitor`: start a monitor, sum up a batch at a site, and check what was sent. It parses, calls and prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcal.base.limits import MOST_BYTES
from fedcal.cli.exchange import File, Name
from fedcal.cli.logits import out
from fedcal.cli.options import Classes, Kind, MaxBytes, kind_of, parse_classes
from fedcal.cli.start import safe
from fedcal.errors import FedCalError, printable

if TYPE_CHECKING:
    from fedcal.monitor import Batch, Monitor

DRIFT = 3  # exit status: a drift was found

monitor_app = typer.Typer(
    help="Watch a calibrated model after deployment: are its probabilities still right?", no_args_is_help=True
)
State = Annotated[Path, typer.Argument(metavar="STATE", help="The monitor's file.")]
Tolerance = Annotated[float, typer.Option(help="Log-odds by which probabilities may be off and still count as right.")]


@monitor_app.command("start")
def monitor_start(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The scaler.safetensors that serves.")],
    out_file: Annotated[Path, typer.Option("--out", help="The monitor's file.")],
    sites: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Sites that will send sums. (default: those of the scaler's personal parts)"
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Probability of any false alarm, over any horizon.")] = 0.05,
    tolerance: Tolerance = 0.25,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the monitor in --out.")] = False,
) -> None:
    """Begin: at the server, with no evidence."""
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
    print(printable(f"{out_file} watches {len(monitor.sites)} sites: {shown}."))


@monitor_app.command("sums")
def monitor_sums(
    file: File,
    scaler: Annotated[Path, typer.Option(help="The site's scaler; its personal part is used, where it has one.")],
    out_file: Annotated[Path, typer.Option("--out", help="The sums, for the server.")],
    batch: Annotated[
        str | None, typer.Option(help="A name that the site uses once, such as 2025-W07. (default: the file's)")
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="These are the samples of the site's offset: send them once, before all others."
        ),
    ] = False,
    tolerance: Tolerance = 0.25,
    min_count: Annotated[int, typer.Option(help="Send nothing about fewer samples.")] = 5,
    site: Name = None,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Sum up new samples at a site: labelled ones, or predictions alone. A sample belongs into one batch only."""
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_site
    from fedcal.monitor import Monitor
    from fedcal.protocol import Scaler

    check_outputs({"--out": out_file}, [file, scaler])
    calibration = Scaler.load(scaler)
    known = parse_classes(classes) or list(calibration.classes) or None
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
        typer.Argument(metavar="SUMS...", help="New ones, oldest first; those taken before are skipped."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all results.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page with the evidence over time.")] = None,
) -> None:
    """Take what sites sent, all of it or nothing, and say whether anything drifted.

    The exit status is 0 without a drift, 3 with one, 2 for bad input.
    """
    from fedcal.base.lock import locked
    from fedcal.base.store import check_outputs, write_json
    from fedcal.monitor import Batch, Monitor
    from fedcal.report.monitor import write_page

    given = batches or []
    check_outputs({"--json": json_file, "--report": report}, [state, *given])
    if not state.exists():
        raise FedCalError(f"{state} is missing: begin with `fedcal monitor start`")
    with locked(state.absolute().parent, "fedcal monitor check"):
        monitor = Monitor.load(state)
        new = sum(_add(monitor, path, Batch.load(path)) for path in given)
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


def _add(monitor: Monitor, path: Path, batch: Batch) -> bool:
    try:
        return monitor.add(batch)
    except FedCalError as error:
        raise FedCalError(f"{path}: {error}; nothing was taken") from None
