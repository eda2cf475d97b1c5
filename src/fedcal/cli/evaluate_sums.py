"""An evaluation by files: `fedcal client evaluate` writes a site's sums, `fedcal server evaluate` reads all sites'."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcal.base.limits import MOST_BYTES
from fedcal.cli.evaluate_files import (
    Column,
    JsonFile,
    MinCount,
    Report,
    Tables,
    Threshold,
    check_written,
    load_scaler,
    print_measures,
    write_all,
)
from fedcal.cli.exchange import File, Name, client_app, server_app
from fedcal.cli.logits import out
from fedcal.cli.options import Classes, Kind, MaxBytes, agreed_classes, kind_of
from fedcal.cli.start import safe
from fedcal.errors import FedCalError, counted, printable, unknown


@client_app.command("evaluate")
def client_evaluate(
    file: File,
    out_file: Annotated[Path, typer.Option("--out", help="The sums, for the server.")],
    scaler: Annotated[Path | None, typer.Option(help="Calibrate with this scaler first.")] = None,
    own: Annotated[bool, typer.Option("--own", help="With --scaler: use the site's personal scaler.")] = False,
    group: Column = None,
    threshold: Threshold = None,
    min_count: MinCount = 5,
    site: Name = None,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Write the sums that the server needs for an evaluation. They reveal scores and outcomes, but no features.

    Nothing is sent of fewer than --min-count samples, neither of the site nor of a group.
    """
    from fedcal.assess.evaluation import SiteSums, name_classes
    from fedcal.assess.groups import check_groups
    from fedcal.assess.message import Asked, SiteMessage
    from fedcal.assess.sums import all_thresholds
    from fedcal.base.checks import check_whole
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_sites
    from fedcal.transport.files.evaluation import write_sums

    if own and scaler is None:
        raise FedCalError("--own needs --scaler: it uses the personal scaler in that file")
    check_outputs({"--out": out_file}, [file, scaler])
    thresholds = threshold or [0.5]
    all_thresholds(thresholds)
    calibration = load_scaler(scaler) if scaler else None
    known = calibration.classes if calibration else ()
    read = read_sites([file], kind_of(probs), agreed_classes(classes, known), max_bytes, group or [])
    name = site or next(iter(read.samples))
    if site is None and len(read.samples) > 1:
        raise FedCalError(f"{file}: {len(read.samples)} sites: choose one with --name, such as --name {name}")
    if name not in read.samples and len(read.samples) > 1:
        raise FedCalError(f"{file}: {unknown('site', name, read.samples)}")
    held = name if name in read.samples else next(iter(read.samples))  # a file of one site may get another name
    logits, labels = read.samples[held]
    if len(labels) < check_whole(min_count, "min_count", low=0):
        raise FedCalError(
            f"{file}: {counted(len(labels), 'sample')}, and sums of fewer than {min_count} would reveal them: wait for "
            "more, leave this site out, or lower --min-count"
        )
    groups = check_groups({held: read.groups[held]}, {held: len(labels)}, read.samples)[held] if group else {}
    if calibration is not None:
        logits = calibration.apply(logits, name if own else None, probs=False)
    names = name_classes(read.classes) or [str(k) for k in range(logits.shape[1])]
    sums = SiteSums.of(logits, labels, groups, thresholds, min_count)
    write_sums(out_file, SiteMessage.of(name, Asked(tuple(names), tuple(thresholds)), sums, groups))
    print(f"{printable(str(out_file))} is for the server: sums of {len(labels)} samples.")


@server_app.command("evaluate")
def server_evaluate(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="SUMS...", help="The files that `fedcal client evaluate` wrote, one per site."),
    ],
    json_file: JsonFile = None,
    report: Report = None,
    tables: Tables = None,
    min_count: MinCount = 5,
) -> None:
    """Evaluate the sums that the sites sent: over all sites, at each site, in each group."""
    from fedcal.transport.files.evaluation import read_sums

    check_written(json_file, report, tables, files)
    result = read_sums(files, min_count)
    print_measures(result)
    for sentence in result.verdict:
        out.print(safe(sentence), soft_wrap=True)
    write_all(result, None, counted(len(result.sites), "site"), json_file, report, tables)
