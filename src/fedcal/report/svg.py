"""Figures as inline SVG: colours become CSS variables (for the dark mode), ids are unique on a page."""

from __future__ import annotations

import html
import io
import re
import warnings

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from fedcal.report import figures

THEME = {
    figures.INK: "var(--ink)",
    figures.MUTED: "var(--muted)",
    figures.GRID: "var(--grid)",
    figures.PAPER: "var(--paper)",
    figures.ACCENT: "var(--accent)",
    figures.GAP: "var(--gap)",
    figures.NOISE: "var(--noise)",
}


def inline(fig: Figure, key: str, label: str) -> Markup:
    """SVG for an HTML page.

    Args:
        fig: the figure.
        key: makes ids unique; it must differ between the figures of a page.
        label: what a screen reader says; it is escaped.
    """
    buffer = io.StringIO()
    with mpl.rc_context(figures.STYLE), mpl.rc_context({"svg.hashsalt": key}), warnings.catch_warnings():
        # A name in Chinese, say: the browser draws the text, in a font that has the letters.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # counters such as axes_1, repeated in every figure
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)  # the page's own font
    text = re.sub("|".join(THEME), lambda match: THEME[match[0]], text)
    text = re.sub(r"\s*\n\s*", " ", text)
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0]
    head = f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width} {height}" '
    head += 'xmlns:xlink="http://www.w3.org/1999/xlink">'
    return Markup(re.sub(r"<svg[^>]*>", head, text, count=1))
