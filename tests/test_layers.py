"""The tree is a map: who may import whom, no cycles, no private names of other modules, no module named like a function."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedcal

ROOT = Path(inspect.getfile(fedcal)).parent
KNOWS: dict[str, set[str]] = {  # each package, and those that it may import
    "errors": set(),
    "base": {"errors"},
    "data": {"base", "errors"},
    "measure": {"base", "errors"},
    "learn": {"base", "errors"},
    "exact": {"base", "errors"},
    "nets": {"base", "errors"},
    "methods": {"exact", "nets", "base", "errors"},
    "protocol": {"methods", "exact", "base", "errors"},
    "monitor": {"protocol", "methods", "base", "errors"},
    "assess": {"measure", "data", "protocol", "base", "errors"},
    "secure": {"errors"},
    "transport": {"assess", "secure", "protocol", "methods", "exact", "data", "measure", "learn", "base", "errors"},
    "simulate": {"transport", "protocol", "methods", "learn", "measure", "report", "data", "base", "errors"},
    "serve": {"transport", "protocol", "methods", "data", "base", "errors"},
    "report": {"assess", "monitor", "measure", "methods", "base", "errors"},
    "plot": {"report", "assess", "measure", "base", "errors"},
    "federate": {"simulate", "transport", "protocol", "methods", "learn", "data", "base", "errors"},
    "cli": {"*"},
    "__main__": {"cli"},
    "__init__": {"*"},
}


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name, parsed."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["fedcal", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = ast.parse(
            path.read_text()
        )
    return found


def imports(tree: ast.AST) -> list[tuple[str, str]]:
    """(module, name) of what a module imports from fedcal, also within functions and for types only."""
    found: list[tuple[str, str]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedcal":
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "fedcal"]
        else:
            found += imports(node)
    return found


TREE = modules()


@pytest.mark.parametrize("module", sorted(TREE))
def test_a_module_imports_only_what_its_package_may_know(module: str) -> None:
    package = module.split(".")[1]
    allowed = KNOWS[package]
    for source, name in imports(TREE[module]):
        target = [*source.split("."), name][1]
        known = target in KNOWS
        if source == "fedcal" and not known:  # a public name
            continue
        assert target == package or target in allowed or "*" in allowed, f"{module} imports {source}.{name}"


@pytest.mark.parametrize("module", sorted(TREE))
def test_private_names_stay_private(module: str) -> None:
    taken = [f"{source}.{name}" for source, name in imports(TREE[module]) if name.startswith("_")]
    assert [name for name in taken if not name.endswith(".__version__")] == []


def test_imports_have_no_cycle() -> None:
    graph = {}
    for module, tree in TREE.items():
        found = set()
        for source, name in imports(tree):
            inner = f"{source}.{name}"
            found.add(inner if inner in TREE else source)
        graph[module] = {name for name in found if name in TREE and name != module}
    list(TopologicalSorter(graph).static_order())


def test_tests_mirror_the_tree() -> None:
    """Every package has a folder of tests; besides, there is one for the paper."""
    tests = Path(__file__).parent
    for package in sorted(
        {name.split(".")[1] for name in TREE} & {path.name for path in ROOT.iterdir() if path.is_dir()}
    ):
        assert list((tests / package).glob("test_*.py")), f"no tests of {package}"
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("*/test_*.py")} - {"paper"}
    assert [folder for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []


def test_no_module_has_the_name_of_a_public_function() -> None:
    """In no package: `import fedcal.a.b` and `from fedcal.a import b` must not give different things."""
    for package in {name.rpartition(".")[0] for name in TREE}:
        try:
            public = vars(importlib.import_module(package)).get("__all__", [])
        except fedcal.FedCalError:  # Flower is not installed
            continue
        modules = {name.rpartition(".")[2] for name in TREE if name.rpartition(".")[0] == package}
        shared = [name for name in public if name in modules]
        assert [n for n in shared if not inspect.ismodule(getattr(sys.modules[package], n))] == [], package
