"""What the documents show is true: snippets run, commands parse, the map names every file, examples work."""

import re
import runpy
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from fedcal.cli.main import app
from fedcal.data import DATASETS
from fedcal.data.own_files import names_a_file
from fedcal.methods import METHODS, get_method
from pages import executed, pictures, run_page

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every shell line of any page that calls fedcal."""
    parts = [part for page in PAGES for part in blocks(page.read_text(encoding="utf-8"), "sh")]
    return sorted({line for part in parts for line in part.splitlines() if line.startswith("fedcal ")})


def map_of_files() -> list[str]:
    """The paths of the text block in docs/map.md, an indented tree; folders end in a slash."""
    paths: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in blocks(MAP, "text")[-1].splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        parents = [(depth, folder) for depth, folder in parents if depth < indent]
        path = (parents[-1][1] if parents else "") + name
        paths.append(path)
        if name.endswith("/"):
            parents.append((indent, path))
    return paths


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", executed(), ids=name_of)
def test_pages_run_and_print_what_they_show(page, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert run_page(page, tmp_path) == page.read_text(encoding="utf-8"), (
        "make tutorials writes the output into the page"
    )
    for name in pictures(page):
        assert (tmp_path / name).is_file() and (ROOT / "docs" / "images" / page.stem / name).is_file(), name


def test_the_results_in_the_readme_are_those_measured():
    """Means over Table 1's 16 cells: ECE, accuracy, NLL."""
    measured = (
        (ROOT / "paper" / "results" / "table1.md").read_text(encoding="utf-8").split("### All methods, 16 cells")[1]
    )
    rows = {cells[0].strip("`"): cells[1:] for cells in table(measured)}
    shown = table(README.split("## Results")[1].split("## ")[0])
    assert len(shown) == 7
    for title, _, *figures in shown:
        name = "uncal" if title == "no calibration" else re.findall(r"`(.*?)`", title)[0]
        total, _, nll, accuracy = map(float, rows[name + "-keep" * title.endswith("kept")][:4])
        assert figures == [f"{total / 16:.2f}", f"{accuracy:.2f}", f"{nll:.4f}"], title


def test_the_figures_in_the_words_of_paper_md_are_those_measured():
    """Where the paper's page tells in words what a table of paper/results holds."""
    page = (ROOT / "paper" / "PAPER.md").read_text(encoding="utf-8")

    def words(title: str) -> str:
        return page.split(f"\n## {title}")[1].split("\n## ")[0]

    def results(name: str) -> list[str]:
        return (ROOT / "paper" / "results" / name).read_text(encoding="utf-8").split("\n### ")

    def mean(rows: list[list[str]], method: str, column: int) -> str:
        return next(cells[column].split()[0] for cells in rows if cells[0].strip("`") == method)

    for part in results("table2.md"):
        rows, said = table(part), words("Table 2")
        assert f"from {mean(rows, 'FedCal', 2)} to {mean(rows, 'no order', 2)} %" in said
        assert f"{mean(rows, 'no order', 1)} against {mean(rows, 'FedCal', 1)}" in said
    every = table(results("table1.md")[-1])
    ratio = float(mean(every, "fedcal-no-op", 1)) / float(mean(every, "fedcal", 1))
    assert f"its ECE is {ratio:.1f} times FedCal's" in words("Table 2")

    local, worst, _ = map(table, results("figure4.md"))
    for rows in (local, worst):
        assert {mean(rows, name, -1) for name in ("fedcal-plus", "Uncal")} <= set(
            re.findall(r"[\d.]*\d", words("Figure 4"))
        )

    (without, with_) = re.findall(r"([\d.]+) with momentum", results("momentum.md")[-1])
    said = " ".join(words("Which momentum?").split())
    assert f"add up to {with_} points with momentum 0.9 and to {without} without" in said


def table(text: str) -> list[list[str]]:
    """The rows of a Markdown table, without its head."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 160


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line):
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no such command: {line}"
        command, words = command.commands[words[0]], words[1:]
    given = command.make_context(command.name, words).params  # raises where an option or argument does not exist
    methods = given.get("method") or ()
    for spec in [methods] if isinstance(methods, str) else methods:
        get_method(spec)
    data = given.get("data") or given.get("name") or "digits"
    assert data in DATASETS or names_a_file(data)


def test_first_lines_hold_the_two_commands():
    head = README[:1200]
    assert "make demo" in head and "make test" in head
    rules = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"demo", "test"} <= set(rules)


def test_map_names_only_what_exists():
    missing = [path for path in map_of_files() if not (ROOT / path).exists()]
    assert not missing, f"named in docs/map.md, but not there: {missing}"


def test_map_names_every_source_file():
    paths = map_of_files()
    closed = [a for a, b in pairwise([*paths, ""]) if a.endswith("/") and not b.startswith(a)]  # named as a whole
    absent = []
    for path in sorted(p for p in (ROOT / "src").rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        name = path.relative_to(ROOT).as_posix()
        said_by_folder = path.name == "__init__.py" and name.removesuffix(path.name) in paths
        if name not in paths and not said_by_folder and not any(name.startswith(folder) for folder in closed):
            absent.append(name)
    assert not absent, f"not in docs/map.md: {absent}"


def test_every_method_is_in_the_table():
    table = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"| `{name}` |" not in table] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_files_that_pages_name_exist(page):
    """Python files in backticks, with their folder: from the root, or from src/fedcal."""
    named = re.findall(r"`(?:python )?([\w./-]+/[\w-]+\.py)\b[^`]*`", page.read_text(encoding="utf-8"))
    folders = (ROOT, ROOT / "src" / "fedcal")
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


def test_names_in_algorithm_md_exist():
    """`module.name`, `Class.name` and queries that docs/algorithm.md points to."""
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "fedcal"
    modules: dict[str, str] = {}
    for file in source.rglob("*.py"):  # several packages have a client.py
        modules[file.stem] = modules.get(file.stem, "") + file.read_text(encoding="utf-8")
    for name in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", page):
        assert any(f"class {name}" in text for text in modules.values()), f"no class {name}"
    for owner, name in re.findall(r"`(\w+)\.(\w*[a-zA-Z])\b", page):
        texts = [modules[owner]] if owner in modules else [t for t in modules.values() if f"class {owner}" in t]
        assert not texts or any(re.search(rf"\b{name}", text) for text in texts), f"{owner}.{name}"
        assert texts or not owner[0].isupper(), f"no class {owner}"


def test_example_own_logits(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["own_logits.py"])
    runpy.run_path(str(ROOT / "examples" / "own_logits.py"), run_name="__main__")
    before, after = (float(x) for x in re.findall(r"ECE +([\d.]+)%", capsys.readouterr().out))
    assert after < before / 4
