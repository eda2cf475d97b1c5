"""Every public name has an entry in the reference, and an example in its docstring that runs."""

import doctest
import functools
import re
from pathlib import Path

import pytest

import fedcal

griffe = pytest.importorskip("griffe", reason="needs the documentation's packages: pip install 'fedcal[docs]'")

ROOT = Path(__file__).parents[1]


@functools.cache
def entries() -> list[str]:
    """What the pages of docs/reference show."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)]


@functools.cache
def package():
    """The package as the reference reads it: from its sources, nothing imported."""
    return griffe.load("fedcal", search_paths=[ROOT / "src"], allow_inspection=False, resolve_aliases=True)


def test_every_public_name_has_one_entry():
    shown = [name.removeprefix("fedcal.") for name in entries() if name.count(".") == 1]
    assert sorted(shown) == sorted(fedcal.__all__)


@pytest.mark.parametrize("name", fedcal.__all__)
def test_every_public_name_has_an_example_that_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = package()[name].docstring
    assert text is not None and "\nExamples:\n" in text.value, (
        f"{name}: write an Examples: section (see CONTRIBUTING.md)"
    )
    test = doctest.DocTestParser().get_doctest(text.value.partition("\nExamples:\n")[2], {}, name, None, 0)
    assert test.examples, f"{name}: its example has no >>> lines"
    said: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed
    assert not failed, "".join(said)
