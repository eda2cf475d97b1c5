"""`fedcal evaluate`: measure users' files of logits or probabilities. It parses, calls and prints."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcal.base.limits import MOST_BYTES
from fedcal.cli.logits import out, print_sorted_classes, print_table
from fedcal.cli.options import ADVANCED, Classes, Files, Kind, MaxBytes, agreed_classes, kind_of
from fedcal.cli.start import safe
from fedcal.errors import FedCalError, counted, error_context

if TYPE_CHECKING:
    from fedcal.assess.evaluation import Evaluation
    from fedcal.measure.tally import Tally
    from fedcal.measure.views import Measured
    from fedcal.protocol import Scaler

Column = Annotated[
    list[str] | None,
    typer.Option(
        "--group", metavar="COLUMN", help="Also evaluate each group in this column, such as sex; may be repeated."
    ),
]
Threshold = Annotated[
    list[float] | None,
    typer.Option(
        "--threshold",
        metavar="P",
        help="Decision threshold; may be repeated, tables and verdict use the first. (default: 0.5)",
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all results as JSON.")]
Report = Annotated[Path | None, typer.Option(help="Also write an HTML page with the plots.")]
Tables = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Also write TRIPOD+AI tables: a .md, .tex or .csv, or a folder for all three."),
]
MinCount = Annotated[
    int, typer.Option(help="Hide results from fewer samples than this; 0 hides nothing.", rich_help_panel=ADVANCED)
]


def evaluate(
    files: Files,
    scaler: Annotated[Path | None, typer.Option(help="Calibrate with this scaler first.")] = None,
    own: Annotated[bool, typer.Option("--own", help="With --scaler: use each site's personal scaler.")] = False,
    group: Column = None,
    threshold: Threshold = None,
    json_file: JsonFile = None,
    report: Report = None,
    tables: Tables = None,
    min_count: MinCount = 5,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Evaluate logits or probabilities against labels: at each site and over all sites, with 95 % intervals.

    With --scaler, the model is evaluated before and after calibration. Use samples that the scaler was not fitted on.
    """
    from fedcal.assess.evaluation import evaluate_samples, name_classes
    from fedcal.assess.groups import check_groups
    from fedcal.assess.sums import all_thresholds
    from fedcal.cli.progress import Parts
    from fedcal.data.logit_files import read_sites
    from fedcal.measure.views import View, measure, unchanged
    from fedcal.report.evaluation import in_words

    if own and scaler is None:
        raise FedCalError("--own needs --scaler: it uses the personal scalers in that file")
    thresholds, columns = threshold or [0.5], group or []
    all_thresholds(thresholds)
    check_written(json_file, report, tables, [*files, scaler])
    calibration = load_scaler(scaler) if scaler else None
    known = calibration.classes if calibration else ()
    views: dict[str, View] = {"before": unchanged}
    if calibration is not None:
        views["after"] = lambda name, logits: calibration.apply(logits, name if own else None, probs=False)
    with Parts(out, quiet=False) as parts:
        parts.begin("reading file", len(files))
        meant = agreed_classes(classes, known)
        read = read_sites(files, kind_of(probs), meant, max_bytes, columns, on_file=parts.step)
        sites = read.samples
        if own and calibration:
            with error_context("--own: a file's site is its name, or its column `site`"):
                for name in sites:
                    calibration.personal_of(name)
        sizes = {name: len(labels) for name, (_, labels) in sites.items()}
        groups = check_groups(read.groups if columns else None, sizes, sites)
        names = name_classes(read.classes)
        found = measure(parts.over("measuring sample", sites, lambda pair: len(pair[1])), views)
        results = {}
        for name, view in views.items():
            samples = parts.over(f"evaluating sample, {name}", sites, lambda pair: len(pair[1]))
            results[name] = evaluate_samples(samples, view, groups, names, thresholds, min_count)
    rows = {view: found.rows(view) for view in views}
    result, earlier = results[list(views)[-1]], results["before"] if calibration else None
    print_sorted_classes(None if meant else read.classes)
    print_metrics(found, rows, result)
    print_measures(result)
    for sentence in in_words(earlier, result):
        out.print(safe(sentence), soft_wrap=True, highlight=False)
    title = counted(len(sites), "site") + (f", calibrated by {scaler}" if scaler else "")
    title += " (each site's personal scaler)" if own else ""
    write_all(result, earlier, title, json_file, report, tables)


def load_scaler(path: Path) -> Scaler:
    """Read a scaler that takes logits, as files hold them."""
    from fedcal.protocol import Scaler

    scaler = Scaler.load(path)
    if scaler.method.takes == "features":
        raise FedCalError(f"{path} takes features, and files hold logits: evaluate it in Python, by fedcal.evaluate")
    return scaler


def print_metrics(found: Measured, rows: dict[str, dict[str, Tally]], result: Evaluation) -> None:
    """Print a table of the sites that are not hidden, by view, what calibration changed, and the worst site.

    Args:
        found: the view `before`, or `before` and `after`.
        rows: of the table, by view.
        result: the evaluation of the last view, which says what is hidden.
    """
    from fedcal.report.sites import table_row
    from fedcal.report.words import difference

    last, several = list(rows)[-1], len(rows) > 1
    hidden = [name for name, one in result.sites.items() if one.get("hidden")]
    single = len(found.clients) == 1  # pooled says the same
    shown = [] if result.pooled.get("hidden") else [name for name in rows[last] if name not in hidden][single:]
    print_table(
        [table_row(f"{name}, {view}" if several else name, rows[view][name]) for name in shown for view in rows]
    )
    if several and shown:  # else all samples together are too few
        print(f"after against before: {difference(found.difference('after', 'before'))}")
    ece = {name: tally.reliability.ece() for name, tally in found.tallies[last].items() if name in shown}
    if ece:
        worst = max(ece, key=lambda name: ece[name])
        out.print(f"worst client: {safe(worst)}, ECE {100 * ece[worst]:.1f} %")


def print_measures(result: Evaluation) -> None:
    """Print discrimination and calibration with intervals: of all sites, of each site and of each group, unless hidden."""
    from rich import box
    from rich.table import Table

    from fedcal.report.evaluation_tables import NAMES, cell, sets

    measures = ("auroc", "calibration_intercept", "calibration_slope", "oe_ratio")
    shown = [
        (kind, name, one) for kind, name, one in sets(result) if kind != "site and group" and not one.get("hidden")
    ]
    if result.pooled.get("hidden"):
        return
    table = Table(box=box.SIMPLE, padding=0, caption="Brackets: 95 % intervals.", caption_justify="left")
    table.add_column("", overflow="fold")
    for key in measures:
        table.add_column(NAMES[key].replace(" ", "\n"), justify="right", no_wrap=True)
    for kind, name, one in shown:
        if kind != "site" or len(result.sites) > 1:  # a single site is all sites
            value_above_interval = (cell(one.get(key)).replace(" (", "\n(") for key in measures)
            table.add_row(safe(name), *value_above_interval)
    out.print(table)


def check_written(
    json_file: Path | None, report: Path | None, tables: Path | None, inputs: Iterable[Path | None]
) -> None:
    """Refuse tables of another kind, and outputs over what is read or over each other; asked before any work is done."""
    from fedcal.base.store import check_outputs
    from fedcal.report.evaluation_tables import table_files

    read = list(inputs)
    for table in table_files(tables) if tables is not None else [None]:
        check_outputs({"--json": json_file, "--report": report, "--tables": table}, read)


def write_all(
    result: Evaluation,
    before: Evaluation | None,
    title: str,
    json_file: Path | None,
    report: Path | None,
    tables: Path | None,
) -> None:
    """Write what was asked for, and say where it is."""
    from fedcal.base.store import write_json
    from fedcal.report.evaluation import write_page
    from fedcal.report.evaluation_tables import save_tables

    if json_file is not None:
        write_json(json_file, result.to_json() | ({"before": before.to_json()} if before else {}))
    if tables is not None:
        save_tables(result, tables)
    if report is not None:
        write_page(report, result, title, before)
    for what, path in (("Results", json_file), ("Tables", tables), ("Report", report)):
        if path is not None:
            out.print(f"{what}: [bold]{safe(path)}[/bold]", soft_wrap=True)
