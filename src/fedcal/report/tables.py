"""The table of all methods, for the terminal, Markdown, LaTeX and HTML. Every column is defined once, in `COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedcal.report.booktabs import Bold, latex_table
from fedcal.report.numbers import number, percent, size
from fedcal.report.results import POOLED, Results, base_name, compare, in_two_lines


@dataclass(frozen=True)
class Column:
    """A column: its title, and how to write a cell."""

    title: str
    cell: Callable[[dict[str, Any], int], str]  # (one method's results, digits of a percentage) -> text
    bold: bool = False  # whether the best method is bold in this column


@dataclass(frozen=True)
class Row:
    """A method's cells, and whether it is the best one."""

    method: str
    cells: list[str]
    best: bool


def digits(results: Results) -> int:
    """The digits of a percentage: the second one is noise unless the test set is large."""
    return 2 if max(m["global"]["n"] for m in results["methods"].values()) >= 5000 else 1


def _ece(method: dict[str, Any], digits: int) -> str:
    g = method["global"]
    text = percent(g["ece"], digits)
    if g["ece_low"] is None or g["ece_high"] is None:
        return text
    return f"{text} [{percent(g['ece_low'], digits)}, {percent(g['ece_high'], digits)}]"


def _mean_worst(method: dict[str, Any], group: str, digits: int) -> str:
    return f"{percent(method[group]['ece'], digits)} / {percent(method[group]['worst_ece'], digits)}"


WIDTH = 14  # characters of a label in the terminal
TOP3 = "Top-3 %"
COLUMNS = (
    Column("Acc. %", lambda m, d: percent(m["global"]["accuracy"], d)),
    Column(TOP3, lambda m, d: percent(m["global"]["top3"], d)),
    Column("Global ECE %", _ece, bold=True),
    Column("Floor %", lambda m, d: percent(m["global"]["ece_floor"], d)),
    Column("Class ECE %", lambda m, d: percent(m["global"]["classwise_ece"], d + 1)),
    Column("NLL", lambda m, d: number(m["global"]["nll"])),
    Column("Brier", lambda m, d: number(m["global"]["brier"])),
    Column("Local ECE % mean / worst", lambda m, d: _mean_worst(m, "local", d)),
    Column("Own ECE % mean / worst", lambda m, d: _mean_worst(m, "own", d)),
    Column("Sent in all", lambda m, d: size(m["cost"]["bytes_up_total"])),
)


def columns(results: Results) -> list[Column]:
    """The columns to show: not the top-3 accuracy of three classes or fewer, which is always 100 %."""
    few = len(results["data"]["classes"]) <= 3
    return [column for column in COLUMNS if not (few and column.title == TOP3)]


def lowest(results: Results) -> str | None:
    """The method with the lowest global ECE among those that need no pooled validation set."""
    eces = {name: m["global"]["ece"] for name, m in results["methods"].items() if base_name(name) != POOLED}
    known = {name: ece for name, ece in eces.items() if ece is not None}
    return min(known, key=known.__getitem__) if known else None


def unproven(results: Results) -> list[str]:
    """The methods whose global ECE the test samples do not show to be higher than the lowest one."""
    least = lowest(results)
    if least is None:
        return []
    rivals = [name for name in results["methods"] if base_name(name) != POOLED and name != least]
    known = [name for name in rivals if results["methods"][name]["global"]["ece"] is not None]
    return [name for name in known if compare(results, name, least) == "unclear"]


def best(results: Results) -> str | None:
    """The method with the lowest global ECE, if the test samples prove that all others are higher."""
    return None if unproven(results) else lowest(results)


def note(results: Results) -> str:
    """Explain the table: which ECE is lowest and whether that is proven, the brackets, the floor."""
    least, others = lowest(results), unproven(results)
    pooled = (
        f" {POOLED}, which looks at pooled calibration data, is a reference." if POOLED in results["methods"] else ""
    )
    if least is None:
        marks = "No method has an ECE."
    elif others:
        marks = (
            f"Lowest global ECE: {least}, but these samples do not prove that it is better than "
            f"{' or '.join(others) if len(others) <= 3 else f'{len(others)} of the others'}, so none is bold."
        )
    else:
        marks = "Bold: the lowest global ECE; all others are higher beyond chance."
    return (
        f"{marks}{pooled} Brackets: 95 % interval. "
        "Floor: the ECE a perfectly calibrated model would show on as many samples. "
        "Local: at each client, with the one scaler for all. Own: with each client's personal scaler. "
        "Sent in all: by a client, over all rounds of the calibration."
    )


def rows(results: Results) -> list[Row]:
    """One row per method, in the order of `columns`."""
    winner, shown, d = best(results), columns(results), digits(results)
    return [
        Row(name, [column.cell(method, d) for column in shown], name == winner)
        for name, method in results["methods"].items()
    ]


def terminal(results: Results) -> Table:
    """Return the table for rich. Second values are on a line of their own, so that it is about 80 columns wide.

    Args:
        results: of a run, as `load` gives them.
    """

    def stacked(text: str) -> str:
        return escape(text.replace(" [", "\n[").replace(" / ", "\n"))

    table = Table(box=box.SIMPLE_HEAD, padding=0, caption=note(results), caption_justify="left")
    table.add_column("Method", no_wrap=True)
    shown, body = columns(results), rows(results)
    for i, column in enumerate(shown):  # break lines between words only
        words = " ".join([column.title, *(row.cells[i] for row in body)]).split()
        widest = max(len(word) for word in words)
        title = column.title.replace(" ", "\n", 1) if column.bold else column.title
        table.add_column(title, justify="right", no_wrap=column.bold, min_width=widest)
    for row in body:
        table.add_row(
            escape(narrow(row.method)), *marked(row, shown, lambda text: f"[bold]{stacked(text)}[/bold]", stacked)
        )
    return table


def narrow(label: str) -> str:
    """A label in lines of about WIDTH, broken between options and, if need be, before an option's value."""
    lines = in_two_lines(label).replace(", ", ",\n").splitlines()
    return "\n".join(line if len(line) <= WIDTH else line.replace("=", "=\n") for line in lines)


def markdown(results: Results) -> str:
    """Return a Markdown table with its note.

    Args:
        results: of a run, as `load` gives them.
    """

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def bold(text: str) -> str:
        return f"**{_escape_markdown(text)}**"

    shown = columns(results)
    head = [line(["Method", *(c.title for c in shown)]), line(["---", *("---:" for _ in shown)])]
    body = [line([_escape_markdown(row.method), *marked(row, shown, bold, _escape_markdown)]) for row in rows(results)]
    return "\n".join([*head, *body, "", note(results), ""])


def latex(results: Results) -> str:
    r"""Return a LaTeX table with its note; it needs `\usepackage{booktabs}`.

    Args:
        results: of a run, as `load` gives them.
    """
    shown = columns(results)
    body = [[row.method, *marked(row, shown, Bold)] for row in rows(results)]
    return latex_table(["Method", *(c.title for c in shown)], body, note=note(results))


def marked(row: Row, shown: list[Column], bold: Callable[[str], str], plain: Callable[[str], str] = str) -> list[str]:
    """The cells; in the best row the column that decides goes through `bold`, all others through `plain`."""
    return [
        bold(text) if row.best and column.bold else plain(text) for column, text in zip(shown, row.cells, strict=True)
    ]


def _escape_markdown(text: str) -> str:
    return "".join("\\" + c if c in "\\`*_[]<>|" else c for c in text)
