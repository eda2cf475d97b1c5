"""docs/architecture.md and docs/glossary.md are true: loop, layers, walk and names; the three diffs apply and work."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedcal
from fedcal import protocol
from test_docs import ROOT, blocks
from test_layers import KNOWS

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "fedcal"
DIFFS = blocks(PAGE, "diff")

# What we used to write, and the glossary replaced.
OLD_WORDS = (
    r"\b(mends?|mended|mending|own scalers?|label laws?|anew|stand-in|manners|a file a site|one file a \w+|hears?)\b"
)


def section(title: str) -> str:
    """The text under a heading."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_loop_is_the_protocols():
    lines = inspect.cleandoc(protocol.__doc__ or "").splitlines()
    assert blocks(PAGE, "python")[0].splitlines() == [line[4:] for line in lines if line.startswith("    ")]


def test_the_layers_are_those_that_are_tested():
    shown = {line.split()[0]: set(line.split()[1:]) for line in blocks(section("Layers"), "text")[0].splitlines()}
    expected = {name: known for name, known in KNOWS.items() if not name.startswith("__")}
    assert shown == expected | {"errors": {"imports", "nothing"}, "cli": {"everything"}}


def test_the_walk_has_twelve_steps_of_names_that_exist():
    steps = re.split(r"^\d+\. ", section("One logit's way from data to report"), flags=re.MULTILINE)[1:]
    assert len(steps) == 12
    for number, step in enumerate(steps, start=1):
        names = re.findall(r"`([^`]+)`", step)
        text = "".join((SOURCE / name).read_text(encoding="utf-8") for name in names if name.endswith(".py"))
        assert text, f"step {number} names no file"
        for name in names:
            if not name.endswith((".py", ".json", ".html")):
                assert re.search(rf"(def|class) {name}\b|import .*\b{name}\b", text), f"step {number}: {name}"


@pytest.mark.parametrize("page", [PAGE, GLOSSARY], ids=["architecture", "glossary"])
def test_names_exist(page: str) -> None:
    """Files and folders, `Class.name` and classes in backticks."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    for path in re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", prose):
        assert (SOURCE / path).exists() or (ROOT / path).exists() or path == "src/fedcal/", path
    for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", prose):
        body = re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        assert body and re.search(rf"\b{name}\b", body[0]), f"{owner}.{name}"
    for name in re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", prose):
        assert re.search(rf"^class {name}\b", text, re.MULTILINE), name
    for name in re.findall(r"`fedcal\.(\w+)`", prose):
        assert hasattr(fedcal, name), name


def test_the_diffs_apply_and_what_they_add_works(tmp_path: Path) -> None:
    """All three on one copy of the tree; their own tests run there, and those of the layers, the table and the map."""
    assert len(DIFFS) == 3
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "pyproject.toml", "docs/map.md", "docs/methods.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTHONPATH": str(tmp_path / "src")}
    for diff in DIFFS:
        found = subprocess.run(
            ["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, env=alone, capture_output=True
        )
        assert not found.returncode, f"docs/architecture.md: a diff no longer applies, make it again: {found.stderr}"
    added = [path for diff in DIFFS for path in re.findall(r"^\+\+\+ b/(tests/.*)$", diff, re.MULTILINE)]
    assert len(added) == 3
    pages = [
        f"tests/test_docs.py::{name}"
        for name in ("test_map_names_every_source_file", "test_every_method_is_in_the_table")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *added, *pages, "tests/test_layers.py"]
    found = subprocess.run(command, text=True, cwd=tmp_path, env=alone, capture_output=True)
    assert not found.returncode, found.stdout


def test_the_old_words_are_gone():
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("src", "docs", "examples", "benchmarks"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".j2", ".toml")]
    found = []
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search(OLD_WORDS, line):
                found.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert found == []
