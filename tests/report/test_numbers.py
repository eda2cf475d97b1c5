from __future__ import annotations

from fedcal.report.numbers import number, percent, short_percent, size


def test_percent():
    assert [percent(None), percent(0.1234), percent(0.1234, 2)] == ["–", "12.3", "12.34"]
    assert [percent(None, sign=True), percent(0.5, sign=True)] == ["–\u00a0%", "50.0\u00a0%"]
    assert [short_percent(x) for x in (0.1234, 0.01, 0.0099)] == ["12.3", "1.0", "0.99"]


def test_scores_and_bytes():
    assert [number(None), number(0.12345)] == ["–", "0.123"]
    assert [size(x) for x in (0, 8, 999, 22_056, 540_000, 1_234_567)] == [
        "0 B", "8 B", "999 B", "22.1 kB", "540 kB", "1.2 MB",
    ]  # fmt: skip
