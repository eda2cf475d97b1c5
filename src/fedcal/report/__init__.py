"""A finished run as tables, figures and one HTML page."""

from fedcal.report.page import save_all, write
from fedcal.report.results import Run, load
from fedcal.report.tables import latex, markdown, terminal
from fedcal.report.words import headline

__all__ = ["Run", "headline", "latex", "load", "markdown", "save_all", "terminal", "write"]
