"""Numbers as text. A value that is not defined (None) is a dash."""

from __future__ import annotations

UNDEFINED = "–"


def percent(value: float | None, digits: int = 1, sign: bool = False) -> str:
    """Write a fraction in per cent.

    Args:
        value: 0.123 for 12.3 %; None if it is not defined.
        digits: digits after the point.
        sign: whether to add the percent sign, after a space that does not break the line.
    """
    text = UNDEFINED if value is None else f"{100 * value:.{digits}f}"
    return f"{text}\u00a0%" if sign else text


def short_percent(value: float) -> str:
    """Write a fraction in per cent for a label in a figure: a second digit only below 1 %."""
    return percent(value, 1 if 100 * value >= 1 else 2)


def number(value: float | None) -> str:
    """Write a score, such as the NLL, with three digits."""
    return UNDEFINED if value is None else f"{value:.3f}"


def size(count: float) -> str:
    """Write a number of bytes for people: 8 B, 19.0 kB, 540 kB, 1.2 MB."""
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.{1 if count < 100 * scale else 0}f} {unit}"
    return f"{count:.0f} B"
