"""A finished run as tables, figures and one HTML page."""

from fedcal.report.page import write
from fedcal.report.results import Run, load
from fedcal.report.tables import latex, markdown, terminal

__all__ = ["Run", "latex", "load", "markdown", "terminal", "write"]
