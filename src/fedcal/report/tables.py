"""The key table, for the terminal, Markdown and LaTeX. Every cell is defined once, in `COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedcal.report.results import POOLED, Results, base_name, compare, in_two_lines


@dataclass(frozen=True)
class Column:
    title: str
    cell: Callable[[dict[str, Any], int], str]  # (one method's results, digits of a percentage) -> text
    bold: bool = False  # whether the best method stands out in this column


@dataclass(frozen=True)
class Row:
    method: str
    cells: list[str]
    best: bool


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def size(count: float | None) -> str:
    """Bytes for people: 8 B, 19.0 kB, 540 kB, 1.2 MB."""
    if count is None:
        return "–"
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.{1 if count < 100 * scale else 0}f} {unit}"
    return f"{count:.0f} B"


def digits(results: Results) -> int:
    """Digits of a percentage: the second one is noise unless the test set is large."""
    return 2 if max(m["global"].get("n") or 0 for m in results["methods"].values()) >= 5000 else 1


def _ece(method: dict[str, Any], digits: int) -> str:
    g = method["global"]
    text = percent(g["ece"], digits)
    if g.get("ece_low") is None or g.get("ece_high") is None:
        return text
    return f"{text} [{percent(g['ece_low'], digits)}, {percent(g['ece_high'], digits)}]"


def _mean_worst(method: dict[str, Any], group: str, digits: int) -> str:
    return f"{percent(method[group]['ece'], digits)} / {percent(method[group].get('worst_ece'), digits)}"


TOP3 = "Top-3 %"
COLUMNS = (
    Column("Acc. %", lambda m, d: percent(m["global"]["accuracy"], d)),
    Column(TOP3, lambda m, d: percent(m["global"].get("top3"), d)),
    Column("Global ECE %", _ece, bold=True),
    Column("Floor %", lambda m, d: percent(m["global"].get("ece_floor"), d)),
    Column("Class ECE %", lambda m, d: percent(m["global"].get("classwise_ece"), d + 1)),
    Column("NLL", lambda m, d: number(m["global"].get("nll"))),
    Column("Brier", lambda m, d: number(m["global"].get("brier"))),
    Column("Local ECE % mean / worst", lambda m, d: _mean_worst(m, "local", d)),
    Column("Own ECE % mean / worst", lambda m, d: _mean_worst(m, "own", d)),
    Column("Sent in all", lambda m, d: size(m["cost"].get("bytes_up_total"))),
)


def columns(results: Results) -> list[Column]:
    """Those that say something: of three classes or fewer, every label is among the top three."""
    few = len(results["data"]["classes"]) <= 3
    return [column for column in COLUMNS if not (few and column.title == TOP3)]


def lowest(results: Results) -> str | None:
    """The method with the lowest global ECE among those that need no pooled validation set."""
    eces = {name: m["global"]["ece"] for name, m in results["methods"].items() if base_name(name) != POOLED}
    known = {name: ece for name, ece in eces.items() if ece is not None}
    return min(known, key=known.__getitem__) if known else None


def best(results: Results) -> set[str]:
    """The method with the lowest global ECE, and those that the test samples do not tell apart from it.

    None where that would be all of several: then no method stands out.
    """
    least = lowest(results)
    if least is None:
        return set()
    rivals = [name for name in results["methods"] if base_name(name) != POOLED]
    known = [name for name in rivals if results["methods"][name]["global"]["ece"] is not None]
    found = {least} | {name for name in known if compare(results, name, least) == "unclear"}
    return set() if len(found) == len(known) > 1 else found


def note(results: Results) -> str:
    """What the marks in the table mean."""
    pooled = f" ({POOLED} looks at pooled calibration data: a reference)" if POOLED in results["methods"] else ""
    marks = (
        "Bold: the lowest global ECE, and every one that cannot be told apart from it on the same samples,"
        if best(results)
        else "These samples tell no method from the one with the lowest ECE,"
    )
    return (
        f"{marks} among the methods that need no pooled validation set{pooled}. Brackets: 95 % interval. "
        "Floor: the ECE a perfectly calibrated model would show on as many samples. "
        "Sent in all: by a client, over all rounds of the calibration."
    )


def rows(results: Results) -> list[Row]:
    """One row per method, in the order of `columns`."""
    marked, shown, d = best(results), columns(results), digits(results)
    return [
        Row(name, [column.cell(method, d) for column in shown], name in marked)
        for name, method in results["methods"].items()
    ]


def terminal(results: Results) -> Table:
    """The table for rich; second values go on a line of their own, so that it is about 80 columns wide."""

    def stacked(text: str) -> str:
        return escape(text.replace(" [", "\n[").replace(" / ", "\n"))

    table = Table(box=box.SIMPLE_HEAD, padding=0, caption=note(results), caption_justify="left")
    table.add_column("Method", no_wrap=True)
    shown, body = columns(results), rows(results)
    for number, column in enumerate(shown):  # lines may be broken between words only
        words = " ".join([column.title, *(row.cells[number] for row in body)]).split()
        widest = max(len(word) for word in words)
        title = column.title.replace(" ", "\n", 1) if column.bold else column.title
        table.add_column(title, justify="right", no_wrap=column.bold, min_width=widest)
    for row in body:
        table.add_row(escape(narrow(row.method)), *_marked(row, shown, "[bold]{}[/bold]", stacked))
    return table


def narrow(label: str, width: int = 14) -> str:
    """A label in lines of about that width, broken between options and, if need be, before an option's value."""
    lines = in_two_lines(label).replace(", ", ",\n").splitlines()
    return "\n".join(line if len(line) <= width else line.replace("=", "=\n") for line in lines)


def markdown(results: Results) -> str:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    shown = columns(results)
    head = [line(["Method", *(c.title for c in shown)]), line(["---", *("---:" for _ in shown)])]
    body = [
        line([_escape_markdown(row.method), *_marked(row, shown, "**{}**", _escape_markdown)]) for row in rows(results)
    ]
    return "\n".join([*head, *body, "", note(results), ""])


def latex(results: Results) -> str:
    """A booktabs table body with its note; needs `\\usepackage{booktabs}`."""

    def line(cells: list[str]) -> str:
        return f"{' & '.join(cells)} \\\\"

    shown = columns(results)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * len(shown)}}}",
            r"\toprule",
            line(["Method", *(_escape_latex(c.title) for c in shown)]),
            r"\midrule",
            *(
                line([_escape_latex(row.method), *_marked(row, shown, r"\textbf{{{}}}", _escape_latex)])
                for row in rows(results)
            ),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\par\smallskip{{\footnotesize {_escape_latex(note(results))}}}",
            "",
        ]
    )


def _marked(row: Row, shown: list[Column], bold: str, escape: Callable[[str], str]) -> list[str]:
    """The escaped cells; in the best rows the column that decides is set with the template `bold`."""
    return [
        bold.format(escape(text)) if row.best and column.bold else escape(text)
        for column, text in zip(shown, row.cells, strict=True)
    ]


def _escape_markdown(text: str) -> str:
    return "".join("\\" + c if c in "\\`*_[]<>|" else c for c in text)


_LATEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
