"""No small cell follows from what is shown, by any sums and differences of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

import fedcal
from fedcal.assess.disclose import Cell, Family, families, hidden_cells
from fedcal.assess.sums import CURVE


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


def test_a_small_cell_beside_one_that_follows_from_other_families_is_not_known():
    """a, c and e follow from three families, and the small b from the fourth, in which nothing is shown but the total."""
    size = {"a": 20, "b": 3, "c": 10, "d": 100, "e": 15, "f": 100, "g": 100}
    sums = {"T": "ab", "U": "acd", "V": "cef", "W": "aeg"}
    counts = {Cell(name): (n,) for name, n in size.items()}
    counts |= {Cell(total): (sum(size[part] for part in parts),) for total, parts in sums.items()}
    hidden = hidden_cells(counts, [Family(Cell(total), [Cell(p) for p in parts]) for total, parts in sums.items()], 5)
    assert {Cell(name) for name in "abce"} < hidden


def test_nothing_is_hidden_where_all_cells_are_large():
    counts, related = table(0)
    assert hidden_cells({cell: (n + 5,) for cell, (n,) in counts.items()}, related, 5) == set()


def samples(rng, n, k):
    """Logits and labels that follow them."""
    z = rng.normal(size=(n, k)) * rng.uniform(0.8, 2.0) + rng.normal(size=k)
    return z, (z + rng.gumbel(size=z.shape)).argmax(1)


def drawn(seed, k):
    """Sites with two variables, one of which the first site does not have."""
    rng = np.random.default_rng(seed)
    sites = {f"s{i}": samples(rng, int(rng.integers(25, 200)), k) for i in range(rng.integers(2, 5))}
    groups = {}
    for i, (name, (_, y)) in enumerate(sites.items()):
        groups[name] = {"v": rng.choice(list("abc"), len(y), p=(0.5, 0.4, 0.1))}
        if i:
            groups[name]["w"] = rng.choice(list("de"), len(y))
    return sites, groups


def shown_cells(found):
    """The results of every cell, by site and group."""
    cells = {("", ""): found.pooled} | {(site, ""): one for site, one in found.sites.items()}
    cells |= {("", group): one for group, one in found.groups.items()}
    return cells | {(site, group): one for site, some in found.site_groups.items() for group, one in some.items()}


def recovered(members, shown):
    """The cells whose sums are combinations of those of the shown cells.

    Args:
        members: for each cell 1 for the atoms that it is made of. An atom is a site with a group of each variable.
        shown: cells.
    """
    rows = np.array([members[cell] for cell in shown]) if shown else np.zeros((0, len(next(iter(members.values())))))
    basis = np.linalg.svd(rows, full_matrices=False)[2][: np.linalg.matrix_rank(rows)] if shown else rows
    return {cell for cell, one in members.items() if np.abs(one - one @ basis.T @ basis).max() < 1e-8}


def atoms(sites, groups):
    """All atoms, each sample's, and for each cell 1 for the atoms that it is made of."""
    of_sample = {
        site: [(site, *(f"{v}={groups[site][v][i]}" for v in groups[site])) for i in range(len(y))]
        for site, (_, y) in sites.items()
    }
    every = sorted({atom for some in of_sample.values() for atom in some})
    names = sorted({name for atom in every for name in atom[1:]})
    members = {
        (site, group): np.array(
            [(not site or atom[0] == site) and (not group or group in atom) for atom in every], float
        )
        for site in ("", *sites)
        for group in ("", *names)
    }
    return every, of_sample, {cell: one for cell, one in members.items() if one.any()}


def number_of(values, every, of_sample, members):
    """How many samples of each cell have a property."""
    count = dict.fromkeys(every, 0)
    for site, some in values.items():
        for atom, value in zip(of_sample[site], some, strict=True):
            count[atom] += int(value)
    return {cell: round(float(one @ np.array([count[atom] for atom in every]))) for cell, one in members.items()}


@pytest.mark.parametrize(("seed", "k"), [*((seed, 2) for seed in range(6)), (6, 3), (7, 3)])
def test_hidden_decisions_do_not_follow_from_those_that_are_shown(seed, k):
    """At no threshold do sums and differences of shown decisions give those of fewer than five samples."""
    sites, groups = drawn(seed, k)
    found = shown_cells(fedcal.evaluate(sites, groups=groups, probs=False, thresholds=(0.65,)))
    place = atoms(sites, groups)
    members = place[-1]
    n = number_of({site: np.ones(len(y)) for site, (_, y) in sites.items()}, *place)
    tried = 0
    for label in range(k) if k > 2 else [1]:
        results = {c: one if k == 2 else (one["classes"] or {}).get(str(label), {}) for c, one in found.items()}
        results = {c: one for c, one in results.items() if one and not one.get("hidden")}
        p = {site: softmax(z, axis=1)[:, label] for site, (z, _) in sites.items()}
        for i, t in enumerate(np.arange(1, 100) / 100):
            above = number_of({site: one >= t for site, one in p.items()}, *place)
            small = {c for c in members if 0 < above[c] < 5 or 0 < n[c] - above[c] < 5}
            shown = [c for c, one in results.items() if one["decision_curve"]["value"][i] is not None]
            rows = {c: [d for d in one["thresholds"] if abs(d["threshold"] - t) < 1e-9] for c, one in results.items()}
            shown += [c for c, one in rows.items() if one and one[0]["ppv"]["value"] is not None]
            if t == 0.65:
                shown += [c for c, one in results.items() if one["net_benefit"]["value"] is not None]
                hidden = {c for c, one in found.items() if k > 2 and one["sensitivity"]["value"] is None}
                partly = {c for c in found if k > 2 and c in results and c not in shown and c not in small}
                assert partly <= hidden  # a mean over classes would give away the one that is hidden
            tried += len(small)
            assert not small & recovered(members, shown), t
    assert tried > 50


@pytest.mark.parametrize("seed", range(4))
def test_hidden_bins_do_not_follow_from_those_that_are_shown(seed):
    sites, groups = drawn(seed, 2)
    found = shown_cells(fedcal.evaluate(sites, groups=groups, probs=False))
    place = atoms(sites, groups)
    members = place[-1]
    top = {site: softmax(z, axis=1).max(1) for site, (z, _) in sites.items()}
    wide, shown, small = {}, [], set()
    for b in range(15):
        held = number_of({site: np.minimum(one * 15, 14).astype(int) == b for site, one in top.items()}, *place)
        for c, one in members.items():
            wide[c, b] = np.concatenate([one if other == b else 0 * one for other in range(15)])
        small |= {(c, b) for c in members if 0 < held[c] < 5}
        shown += [(c, b) for c in found if not found[c].get("hidden") and found[c]["bins"]["count"][b] is not None]
        assert all(found[c]["bins"]["count"][b] == held[c] for c, other in shown if other == b)
    for c, one in found.items():
        if not one.get("hidden"):
            wide[c, ""] = np.tile(members[c], 15)
            shown.append((c, ""))
    assert len(small) > 20 and not small & recovered(wide, shown)


def test_pooled_less_the_other_site_does_not_give_decisions_away():
    rng = np.random.default_rng(5)
    z = {"A": rng.normal(-2, 1.5, 200), "B": rng.normal(0.5, 1.5, 400)}
    found = fedcal.evaluate({s: (x, (rng.random(len(x)) < expit(x)).astype(int)) for s, x in z.items()}, probs=False)
    few = np.array([0 < (expit(z["A"]) >= t).sum() < 5 for t in CURVE])
    curve = {s: np.array([v is None for v in one["decision_curve"]["value"]]) for s, one in found.sites.items()}
    assert few.any() and curve["A"][few].all() and curve["B"][few].all()
    assert not all(curve["B"]) and found.pooled["decision_curve"]["value"][80] is not None


def test_groups_of_the_calibration_plot_hold_enough_samples():
    x, y = np.repeat([-1.0, 0.5, 2.0], [96, 2, 2]), np.arange(100) % 2
    assert fedcal.evaluate([(x, y)], probs=False).pooled["calibration_bins"]["count"] == [100]
    assert fedcal.evaluate([(x, y)], probs=False, min_count=0).pooled["calibration_bins"]["count"] == [96, 4]


@pytest.mark.parametrize(("seed", "k"), [(0, 2), (1, 2), (2, 2), (6, 3)])
def test_bins_and_decisions_together_give_no_hidden_one_away(seed, k):
    """A confidence of at least 80 % is a probability of at least 80 % of some class: bins and decisions add up."""
    sites, groups = drawn(seed, k)
    found = shown_cells(fedcal.evaluate(sites, groups=groups, probs=False))
    every, of_sample, members = atoms(sites, groups)
    p = {site: softmax(z, axis=1) for site, (z, _) in sites.items()}
    bins = {site: np.minimum(one.max(1) * 15, 14).astype(int) for site, one in p.items()}
    kinds = np.zeros((len(every), 15, k))  # samples by atom, bin and top class
    for site, some in of_sample.items():
        for atom, b, top in zip(some, bins[site], p[site].argmax(1), strict=True):
            kinds[every.index(atom), b, top] += 1
    has: dict[Any, np.ndarray] = {b: np.zeros((15, k)) for b in range(15)} | {"n": np.ones((15, k))}
    for b in range(15):
        has[b][b] = 1
    for edge, first in ((0.6, 9), (0.8, 12)):
        for label in range(k):
            has[edge, label] = np.zeros((15, k))
            has[edge, label][first:, label] = 1
    rows = {(c, what): np.multiply.outer(m, one).ravel() for c, m in members.items() for what, one in has.items()}
    shown: list[Any] = [(c, "n") for c, one in found.items() if not one.get("hidden")]
    for c, _ in tuple(shown):
        shown += [(c, b) for b, count in enumerate(found[c]["bins"]["count"]) if count is not None]
        for edge in (0.6, 0.8):
            for label in range(k):
                one = found[c] if k == 2 else found[c]["classes"][str(label)]
                at = round(100 * (1 - edge if k == 2 and label == 0 else edge)) - 1
                if not one.get("hidden") and one["decision_curve"]["value"][at] is not None:
                    shown.append((c, (edge, label)))
    value = {key: round(float(row @ kinds.ravel())) for key, row in rows.items()}
    small = {(c, what) for (c, what), count in value.items() if 0 < count < 5 or 0 < value[c, "n"] - count < 5}
    assert len(small) > 50
    assert not small & recovered(rows, shown)
