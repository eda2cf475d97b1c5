"""No small cell follows from what is shown, by any sums and differences of it."""

from __future__ import annotations

import numpy as np
import pytest

from fedcal.assess.disclose import Cell, families, hidden_cells


def table(seed):
    """Samples of several sites by two variables, and the cells that add up."""
    rng = np.random.default_rng(seed)
    sites = [f"s{i}" for i in range(rng.integers(3, 12))]
    variables = {name: [f"{name}={j}" for j in range(rng.integers(2, most))] for name, most in (("v", 8), ("w", 4))}
    counts = {}
    for site in sites:
        n = int(rng.integers(20, 300))
        counts[Cell(site)] = (n,)
        for groups in variables.values():
            drawn = rng.multinomial(n, rng.dirichlet(np.ones(len(groups))))
            counts |= {Cell(site, group): (int(count),) for group, count in zip(groups, drawn, strict=True)}
    for group in ("", *variables["v"], *variables["w"]):
        counts[Cell("", group)] = (sum(counts[Cell(site, group)][0] for site in sites),)
    return counts, [family for family in families(sites, variables, ()) if family.parts]


@pytest.mark.parametrize("seed", [*range(20), 121, 143, 159])  # in the last ones, no single family gives a cell away
def test_no_small_cell_follows_from_those_that_are_shown(seed):
    counts, related = table(seed)
    hidden = hidden_cells(counts, related, 5)
    assert {cell for cell, (n,) in counts.items() if 0 < n < 5} <= hidden
    unknown = [cell for cell in counts if cell in hidden and counts[cell][0]]
    sums = np.array([[(cell in parts) - float(cell == total) for cell in unknown] for total, parts in related])
    _, values, vectors = np.linalg.svd(sums)
    free = np.abs(vectors[int((values > 1e-9).sum()) :]).max(axis=0, initial=0.0)
    assert all(some > 1e-8 for cell, some in zip(unknown, free, strict=True) if counts[cell][0] < 5)


def test_nothing_is_hidden_where_all_cells_are_large():
    counts, related = table(0)
    assert hidden_cells({cell: (n + 5,) for cell, (n,) in counts.items()}, related, 5) == set()
