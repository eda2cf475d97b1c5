"""What the paper's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedcal.report import figures


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """The figures that are saved during a test, by file name."""
    saved: dict[str, Figure] = {}
    write = figures.save

    def save(figure: Figure, path: str | Path) -> Path:
        saved[Path(path).name] = figure
        return write(figure, path)

    monkeypatch.setattr(figures, "save", save)
    return saved
