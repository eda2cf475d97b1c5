"""RUN/report.html: one self-contained file. The same run gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from fedcal.base.store import write_bytes
from fedcal.errors import check_known
from fedcal.report import figures, prepare, tables, words
from fedcal.report.numbers import percent, size
from fedcal.report.results import BASELINE, Results, Run, load
from fedcal.report.story import LEAST, Panel, changes, client_rows, is_grouped, next_steps, panels, tiles
from fedcal.report.story_figures import plot_change, plot_panel
from fedcal.report.svg import inline

FIGURE_KINDS = ("png", "svg", "pdf")


def write(run_dir: str | Path) -> Path:
    """Write RUN/report.html.

    Args:
        run_dir: the folder of a finished run.

    Returns:
        The page.

    Raises:
        FedCalError: a file of the run is missing or damaged.
    """
    page = Path(run_dir) / "report.html"
    write_bytes(page, render(load(run_dir)).encode())
    return page


def render(run: Run) -> str:
    """The page as HTML."""
    results = run.results
    changed = [
        inline(plot_change(one), f"change-{i}", f"{one.title} at each client, before and after")
        for i, one in enumerate(changes(results))
    ]
    shown, d = tables.columns(results), tables.digits(results)
    return fill_template(
        "page.html.j2",
        results=results,
        baseline=BASELINE,
        status=words.status(results),
        headline=words.headline(results),
        others=words.other_methods(results),
        tiles=tiles(results),
        panels=[_card(one, i, d) for i, one in enumerate(panels(results))],
        grouped=is_grouped(results),
        changes=changed,
        client_rows=client_rows(results),
        least=LEAST,
        steps=next_steps(results),
        settings=_settings(results),
        head=["Method", *(column.title for column in shown)],
        rows=_marked_rows(results),
        best=tables.best(results),
        note=tables.note(results),
        all_clients=_all_clients(results, d),
        costs=_costs(results),
        skew=_skew(results),
        figures=_figures(run),
    )


def _card(panel: Panel, number: int, digits: int) -> dict[str, str]:
    """A panel as the page shows it."""
    scores = {"accuracy": panel.accuracy, "ece": panel.ece, "floor": panel.floor}
    return {
        "title": panel.title,
        "under": panel.under,
        "svg": inline(plot_panel(panel), f"story-{number}", f"Reliability diagram: {panel.title}, {panel.under}"),
        **{key: percent(value, digits, sign=True) for key, value in scores.items()},
    }


def _marked_rows(results: Results) -> list[list[str]]:
    """The table's rows, the best method's deciding cell in bold."""
    shown, bold = tables.columns(results), Markup("<strong>{}</strong>").format
    return [[row.method, *tables.marked(row, shown, bold)] for row in tables.rows(results)]


def _all_clients(results: Results, digits: int) -> list[list[str]]:
    """ECE by client and method, local / own."""
    found = [method["clients"] for method in results["methods"].values()]
    return [
        [client, *(f"{percent(m['local']['ece'][c], digits)} / {percent(m['own']['ece'][c], digits)}" for m in found)]
        for c, client in enumerate(results["data"]["clients"])
    ]


def _costs(results: Results) -> list[list[str]]:
    """What left a client, by method."""
    rows = []
    for name, method in results["methods"].items():
        cost = method["cost"]
        sizes = [size(cost[key]) for key in ("bytes_up", "bytes_down", "bytes_up_total", "bytes_down_total")]
        said = words.remarks(method["notes"])
        rows.append([name, cost["leaves"], *sizes[:2], str(cost["rounds"]), *sizes[2:], said])
    return rows


def fill_template(name: str, **values: Any) -> str:
    """A template of this folder, filled in; all text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)


def draw(run: Run) -> dict[str, tuple[Figure, str]]:
    """Every figure of a run by its file name, with a sentence that describes it."""
    results, d = run.results, tables.digits(run.results)
    curves = {name: prepare.prepare_reliability(results, name) for name in results["methods"]}
    drawn: dict[str, tuple[Figure, str]] = {}
    for name, curve in curves.items():
        error = percent(results["methods"][name]["global"]["ece"], d)
        figure = figures.plot_reliability(curve, curves.get(BASELINE))
        drawn[f"reliability-{name}"] = figure, f"Reliability diagram of {name}: ECE {error} %"
    for group, scaler in (("local", "with the global scaler"), ("own", "with the client's personal scaler")):
        figure = figures.plot_clients(prepare.prepare_clients(results, group))
        drawn[f"clients-{group}"] = figure, f"ECE at each client by method, {scaler}"
    for series in prepare.prepare_training(run.rounds) if run.rounds else []:
        drawn[f"training-{series.key}"] = figures.plot_training(series), f"{series.title} by round"
    drawn["ece"] = figures.plot_ece(prepare.prepare_ece(results)), "Global ECE by method, with intervals"
    drawn["skew"] = figures.plot_skew(prepare.prepare_skew(results)), "Heat map of labels by client"
    return drawn


def save_all(run_dir: str | Path, folder: str | Path, kind: str = "png") -> list[Path]:
    """Save every figure of a run as a file.

    Args:
        run_dir: the folder of a finished run.
        folder: where to save them.
        kind: png, svg or pdf.

    Returns:
        The files.

    Raises:
        FedCalError: the format is unknown, or a file of the run is missing or damaged.
    """
    check_known("figure format", kind, FIGURE_KINDS)
    drawn = draw(load(run_dir))
    return [figures.save(fig, Path(folder) / f"{_file_name(key)}.{kind}") for key, (fig, _) in drawn.items()]


def _file_name(key: str) -> str:
    """A figure's key without blanks and brackets: "reliability-fedcal-plus,keep"."""
    return key.replace(" (", ",").replace(", ", ",").removesuffix(")")


def _figures(run: Run) -> dict[str, Any]:
    """The figures as inline SVG, grouped as the page shows them."""
    drawn = {key: inline(fig, key, label) for key, (fig, label) in draw(run).items()}

    def group(prefix: str) -> dict[str, Markup]:
        return {key[len(prefix) :]: svg for key, svg in drawn.items() if key.startswith(prefix)}

    return {
        "reliability": group("reliability-"),
        "clients": group("clients-"),
        "training": list(group("training-").values()),
        "ece": drawn["ece"],
        "skew": drawn["skew"],
    }


def _settings(results: Results) -> list[tuple[str, str]]:
    methods = [method["spec"] for method in results["methods"].values()]
    config = [
        (key.replace("_", " "), _short(methods) if key == "method" else str(value))
        for key, value in results["config"].items()
        if value is not None
    ]
    parameters = f"{results['data']['parameters']:,}".replace(",", " ")
    return [*config, ("model parameters", parameters), *((key, results[key]) for key in ("device", "torch", "fedcal"))]


def _short(names: list[str]) -> str:
    return ", ".join(map(str, names)) if len(names) <= 4 else f"{len(names)} of them"


def _skew(results: Results) -> dict[str, Any]:
    data = prepare.prepare_skew(results)
    kl = [value for value in results["data"]["kl"] if value is not None]
    totals = data.counts.sum(axis=1)
    return {
        "clients": len(data.clients),
        "classes": len(data.classes),
        "samples": int(totals.sum()),
        "smallest": int(totals.min()),
        "largest": int(totals.max()),
        "kl_mean": sum(kl) / len(kl) if kl else None,
        "G": results["data"]["G"],
    }
