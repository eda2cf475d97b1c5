"""The tree is a map: who may import whom, no cycles, no private names of other modules, no module named like a function."""

from __future__ import annotations

import ast
import inspect
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
    "assess": {"measure", "data", "protocol", "base", "errors"},
    "transport": {"assess", "protocol", "methods", "exact", "data", "measure", "learn", "base", "errors"},
    "simulate": {"transport", "protocol", "methods", "learn", "measure", "report", "data", "base", "errors"},
    "serve": {"transport", "protocol", "methods", "data", "base", "errors"},
    "report": {"assess", "measure", "methods", "base", "errors"},
    "federate": {
        "simulate",
        "transport",
        "protocol",
        "methods",
        "learn",
        "measure",
        "report",
        "data",
        "base",
        "errors",
    },
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


def imports(tree: ast.AST, at_load: bool) -> list[tuple[str, str]]:
    """(module, name) of what a module imports from fedcal; with `at_load`, only what is imported when it is loaded."""
    found: list[tuple[str, str]] = []
    for node in ast.iter_child_nodes(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if at_load and (typing_only or inside):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedcal":
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "fedcal"]
        else:
            found += imports(node, at_load)
    return found


TREE = modules()


@pytest.mark.parametrize("module", sorted(TREE))
def test_a_module_imports_only_what_its_package_may_know(module: str) -> None:
    package = module.split(".")[1]
    allowed = KNOWS[package]
    for source, name in imports(TREE[module], at_load=False):
        target = [*source.split("."), name][1]
        known = target in KNOWS
        if source == "fedcal" and not known:  # a public name
            continue
        assert target == package or target in allowed or "*" in allowed, f"{module} imports {source}.{name}"


@pytest.mark.parametrize("module", sorted(TREE))
def test_private_names_stay_private(module: str) -> None:
    taken = [f"{source}.{name}" for source, name in imports(TREE[module], at_load=False) if name.startswith("_")]
    assert [name for name in taken if not name.endswith(".__version__")] == []


def test_imports_have_no_cycle() -> None:
    graph = {}
    for module, tree in TREE.items():
        found = set()
        for source, name in imports(tree, at_load=True):
            inner = f"{source}.{name}"
            found.add(inner if inner in TREE else source)
        graph[module] = {name for name in found if name in TREE and name != module}
    list(TopologicalSorter(graph).static_order())


def test_no_module_has_the_name_of_a_public_function() -> None:
    public = set(fedcal.__all__)
    tops = {name.split(".")[1] for name in TREE} - {"__init__", "__main__"}
    assert tops & public == set()
