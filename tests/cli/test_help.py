"""Help: at once, without PyTorch; whole at 80 columns; every command has its place in it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from fedcal.cli.main import COMMANDS, app, main
from fedcal.learn.models import MODELS

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "flwr")


def commands(of: typer.core.TyperGroup, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and every group of commands."""
    yield words
    for name, command in of.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


ROOT = typer.main.get_command(app)
assert isinstance(ROOT, typer.core.TyperGroup)
ALL = list(commands(ROOT))


def test_no_help_imports_what_is_slow_to_import() -> None:
    """All in one process, which has not imported anything else; `benchmarks/startup.py` measures the time."""
    script = f"""
import sys
from fedcal.cli.entry import main
for words in [*{[[*words, "--help"] for words in ALL]!r}, ["--version"]]:
    try:
        main(words)
    except SystemExit as end:
        assert end.code == 0, words
    slow = [name for name in {HEAVY!r} if name in sys.modules]
    assert not slow, f"{{words}} imports {{slow}}"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.count("Usage:") == len(ALL) > 15


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_is_whole_at_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert "…" not in text, "this is how what does not fit is cut off"
    assert max(len(line) for line in text.splitlines()) <= 80
    command: typer.core.TyperGroup | typer.core.TyperCommand = ROOT
    for word in words:
        command = command.commands[word]  # type: ignore[union-attr, assignment]
    shown = re.sub(r"[│╭╮╰╯─\s]+", " ", text)
    for parameter in command.params:
        for option in parameter.opts:
            assert (option if option.startswith("-") else parameter.metavar or option) in shown
    # square brackets are rich's markup, and vanish where they are not escaped
    for parameter in command.params:
        for bracket in re.findall(r"\w*\\\[(.+?)\]", getattr(parameter, "help", None) or ""):
            assert f"[{bracket}]" in shown


def test_every_command_has_a_panel_and_says_what_is_kept() -> None:
    assert {command.name for command in COMMANDS} == set(ROOT.commands)
    assert all(command.panel and command.kept for command in COMMANDS)


def test_the_help_of_run_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    """They are written out there, since the modules that define them import PyTorch."""
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert [name for name in MODELS if name not in text] == []
    assert "Advanced options" in text
