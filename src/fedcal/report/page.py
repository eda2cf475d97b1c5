"""RUN/report.html: one self-contained file, the same bytes for the same run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedcal.report import figures, prepare, tables, words
from fedcal.report.results import BASELINE, Results, Run, load
from fedcal.report.svg import inline


def write(run_dir: str | Path) -> Path:
    """Write the page of a finished run; a reader never sees half a file."""
    page = Path(run_dir) / "report.html"
    text = render(load(run_dir))
    draft = page.with_name("report.html.tmp")
    draft.write_text(text, encoding="utf-8", newline="\n")
    os.replace(draft, page)
    return page


def render(run: Run) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": tables.percent, "size": tables.size}
    return environment.get_template("page.html.j2").render(
        results=run.results,
        digits=tables.digits(run.results),
        baseline=BASELINE,
        headline=words.headline(run.results),
        tiles=_tiles(run.results),
        settings=_settings(run.results),
        columns=tables.COLUMNS,
        rows=tables.rows(run.results),
        note=tables.note(run.results),
        skew=_skew(run.results),
        figures=_figures(run),
    )


def _figures(run: Run) -> dict[str, Any]:
    results, methods = run.results, run.results["methods"]
    d = tables.digits(results)

    def drawn(plot: tuple[figures.Figure, Any], key: str, label: str) -> Markup:
        return Markup(inline(plot[0], key, label))  # inline() escapes the label

    before = prepare.prepare_reliability(results, BASELINE) if BASELINE in methods else None
    reliability = {
        name: drawn(
            figures.plot_reliability([prepare.prepare_reliability(results, name)], before, legend=False),
            f"reliability-{name}",
            f"Reliability diagram of {name}: ECE {tables.percent(method['global']['ece'], d)} %",
        )
        for name, method in methods.items()
    }
    clients = {
        group: drawn(
            figures.plot_clients(prepare.prepare_clients(results, group)),
            f"clients-{group}",
            f"ECE at each client by method, {scaler}",
        )
        for group, scaler in (("local", "with the global scaler"), ("own", "with the client's own scaler"))
    }
    training = [
        drawn(figures.plot_training(series), f"training-{series.title}", f"{series.title} by round")
        for series in (prepare.prepare_training(run.rounds) if run.rounds else [])
    ]
    ece = drawn(figures.plot_ece(prepare.prepare_ece(results)), "ece", "Global ECE by method, with intervals")
    skew = drawn(figures.plot_skew(prepare.prepare_skew(results)), "skew", "Heat map of labels by client")
    return {"reliability": reliability, "ece": ece, "clients": clients, "skew": skew, "training": training}


def _tiles(results: Results) -> list[dict[str, str]]:
    """The main method against no calibration, in four numbers."""
    name = words.main_method(results)
    if name is None:
        return []
    d, method, uncal = tables.digits(results), results["methods"][name], results["methods"].get(BASELINE)
    asked = (
        ("Global ECE", "global", "ece", "pooled test set"),
        ("Local ECE, mean", "local", "ece", "global scaler, each client's data"),
        ("Own ECE, mean", "own", "ece", "own scaler, each client's data"),
        ("Accuracy", "global", "accuracy", "pooled test set"),
    )
    return [
        {
            "title": title,
            "before": tables.percent(uncal[group][key], d) if uncal and name != BASELINE else "",
            "after": tables.percent(method[group][key], d),
            "under": under,
        }
        for title, group, key, under in asked
    ]


def _settings(results: Results) -> list[tuple[str, str]]:
    config = [
        (key.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for key, value in results["config"].items()
        if value is not None
    ]
    parameters = results["data"].get("parameters")
    extra = [("model parameters", f"{parameters:,}".replace(",", " "))] if parameters is not None else []
    return (
        config + extra + [(key, str(results[key])) for key in ("device", "torch", "fedcal") if key in results]
    )


def _skew(results: Results) -> dict[str, Any]:
    data = prepare.prepare_skew(results)
    kl = [value for value in results["data"].get("kl", []) if value is not None]
    totals = data.counts.sum(axis=1)
    return {
        "clients": len(data.clients),
        "classes": len(data.classes),
        "samples": int(totals.sum()),
        "smallest": int(totals.min()),
        "largest": int(totals.max()),
        "kl_mean": sum(kl) / len(kl) if kl else None,
        "G": results["data"].get("G"),
    }
