"""LaTeX tables. They need `\\usepackage{booktabs}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Bold(str):
    """A cell that stands out."""

    __slots__ = ()


def latex_table(columns: Sequence[Any], rows: Sequence[Sequence[Any]], title: str = "", note: str = "") -> str:
    """Make a booktabs table: the first column to the left, all others to the right.

    Args:
        columns: the head of each column.
        rows: the cells of each row; anything with a `str`, None for an empty cell, `Bold` for one that stands out.
        title: a comment above the table.
        note: small print below the table.

    Returns:
        The table in LaTeX, all text escaped, with a newline at the end.
    """
    lines = [
        *([f"% {title}"] if title else []),
        rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        _line(columns),
        r"\midrule",
        *map(_line, rows),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip{{\footnotesize {escape_latex(note)}}}"] if note else []),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[Any]) -> str:
    text = " & ".join(map(_cell, cells))
    guard = "{}" if text.startswith(("[", "*")) else ""  # after the row above, these would begin an argument of its end
    return f"{guard}{text} \\\\"


def _cell(cell: Any) -> str:
    text = "" if cell is None else escape_latex(str(cell))
    return rf"\textbf{{{text}}}" if isinstance(cell, Bold) else text


_ESCAPED = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "µ": r"$\mu$",
}


def escape_latex(text: str) -> str:
    """Write text so that LaTeX prints it as it is."""
    return "".join(_ESCAPED.get(c, c) for c in text)
