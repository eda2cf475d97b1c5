"""The command line in tests: `fedcal LINE` in this process."""

from __future__ import annotations

import pytest

from fedcal.cli import main as cli


def run(line: str) -> int:
    """The exit status."""
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    return int(str(ended.value.code or 0))


def command(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> str:
    """What it prints; on stderr if it is refused."""
    ended, (out, err) = run(line), capsys.readouterr()
    assert ended == code, err
    assert code or not err
    return err if code else out
