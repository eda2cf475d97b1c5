"""A finished run as tables, figures and one HTML page."""

from fedcal.report.page import save_all, write
from fedcal.report.results import Run, load
from fedcal.report.tables import latex, markdown, terminal

__all__ = ["Run", "latex", "load", "markdown", "save_all", "terminal", "write"]
