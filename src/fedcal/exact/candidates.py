"""Linear maps to choose among: every family at several ridges, on all samples and without each fold, and their losses."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from fedcal.base.arrays import Array
from fedcal.base.folds import FOLDS
from fedcal.exact import queries
from fedcal.exact.groups import Group, lockstep
from fedcal.exact.linear import identity, n_parameters, unpack_symmetric, widen
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import SumQuery
from fedcal.exact.solve import Descent, Sums
from fedcal.exact.stages import FITTING, Clients, curvature_of, group_of

CHOOSING = 1e-1  # like FITTING, for fits to choose among: standard errors of a choice are some nats
NEWTON_ROUNDS, OTHER_ROUNDS = 11, 10  # most rounds of fits to choose among, with whole Hessians and without
MOST_ROUNDS = 30  # of all these fits together
FINISHING_ROUNDS = 3  # most further rounds of the chosen fit
FOLD_LARGE = 200_000  # bytes of a family's gradients without each fold; if there are more, its ridge is chosen first


@dataclass
class Candidate:
    """A family at one ridge: its fit on all samples, and the fits without each fold."""

    family: str
    group: Group
    fit: Descent
    folds: dict[int, Descent]

    @property
    def fold_map(self) -> FoldMap:
        return FoldMap(self.family, {fold: descent.t for fold, descent in self.folds.items()})

    @property
    def left(self) -> float:
        """Nats that its fits, on all samples and without each fold, could still gain. Its out-of-fold loss may be wrong by
        about as much."""
        return self.fit.left + sum(descent.left for descent in self.folds.values())


def in_turn(families: Iterable[str], k: int) -> list[list[str]]:
    """The families to fit first, then those that start from the bias fit, if any."""
    small = [family for family in families if curvature_of(family, k) == "full" or family == "bias"]
    return [some for some in (small, [family for family in families if family not in small]) if some]


def rounds_among(family: str, k: int) -> int:
    """The most rounds of a family's fits to choose among."""
    return NEWTON_ROUNDS if curvature_of(family, k) == "full" else OTHER_ROUNDS


def rounds_of_all(ridges: dict[str, tuple[float, ...]], k: int) -> int:
    """The most rounds of all fits to choose among, if the start took the usual two."""
    large = [family for family, of in ridges.items() if is_large(family, len(of), k)]
    turns = [*in_turn(ridges, k), *([large] if large else [])]
    return min(sum(max(rounds_among(family, k) for family in some) for some in turns), MOST_ROUNDS)


def is_large(family: str, n_ridges: int, k: int) -> bool:
    """Whether the gradients at all ridges, without each fold, are too large to send in every round."""
    return family != "bias" and 8 * FOLDS * n_ridges * n_parameters(family, k) > FOLD_LARGE


def fit_all(ridges: dict[str, tuple[float, ...]], clients: Clients) -> Generator[SumQuery, Sums, list[Candidate]]:
    """Fit every family at each of its ridges, on all samples and without each fold, all in the same rounds.

    A fit without a fold never starts from one that has seen the fold. If few samples are misclassified, a weakly shrunk map
    fits them all and its loss is flat there, so that steps away from it are too short to forget the fold.

    Families whose Hessian is too large to send come after the others and start from the bias fit, which halves their steps.
    For a large family, one ridge is chosen first, on one fold.
    """
    groups: dict[tuple[str, int], Group] = {}
    begins: dict[str, dict[int, Array]] = {}
    large = {family: of for family, of in ridges.items() if is_large(family, len(of), clients.k)}
    left = rounds_of_all(ridges, clients.k) - clients.late
    for some in in_turn(ridges, clients.k):
        now: list[Group] = []
        for family in some:
            of = {fold: groups.get(("bias", fold)) for fold in (ALL, *range(FOLDS))}
            begins[family] = {fold: _begin(family, bias, clients) for fold, bias in of.items()}
            groups_of = _without_one_fold if family in large else _with_and_without_folds
            now += groups_of(family, ridges[family], begins[family], clients, left)
        left -= yield from lockstep(now)
        groups |= {(group.family, group.fold): group for group in now}
    if large:
        chosen = yield from _choose_ridges(large, groups, begins)
        now = []
        for family, of in chosen.items():
            now += _with_and_without_folds(family, of, begins[family], clients, left, groups[family, ALL].known)
        yield from lockstep(now)
        ridges, groups = ridges | chosen, groups | {(group.family, group.fold): group for group in now}
    return [
        Candidate(family, groups[family, ALL], *_one_of_each(groups, family, i))
        for family, of in ridges.items()
        for i in range(len(of))
    ]


def _begin(family: str, bias: Group | None, clients: Clients) -> Array:
    return (
        widen("bias", bias.descents[-1].t, family, clients.k) if bias else clients.begin * identity(family, clients.k)
    )


def _with_and_without_folds(
    family: str, ridges: tuple[float, ...], begins: dict[int, Array], clients: Clients, left: int,
    known: Sums | None = None,
) -> list[Group]:  # fmt: skip
    """Fits on all samples, and without each fold; `left`: the most rounds that they may take."""
    guide = group_of(family, ridges, clients, CHOOSING, min(rounds_among(family, clients.k), left), begins[ALL])
    guide.known = known or {}
    return [guide, *(_without_fold(fold, guide, begins, ridges, clients) for fold in range(FOLDS))]


def _without_one_fold(
    family: str, ridges: tuple[float, ...], begins: dict[int, Array], clients: Clients, left: int
) -> list[Group]:
    """Fits without the first fold, and one on all samples for their curvature."""
    middle = ridges[len(ridges) // 2 :][:1]
    guide = group_of(family, middle, clients, CHOOSING, min(rounds_among(family, clients.k), left), begins[ALL])
    return [guide, _without_fold(0, guide, begins, ridges, clients)]


def _without_fold(
    fold: int, guide: Group, begins: dict[int, Array], ridges: tuple[float, ...], clients: Clients
) -> Group:
    fits = group_of(guide.family, ridges, clients, CHOOSING / FOLDS, guide.descents[0].rounds, begins[fold]).descents
    return Group(guide.family, fits, "none", fold, guide)


def _choose_ridges(
    large: dict[str, tuple[float, ...]], groups: dict[tuple[str, int], Group], begins: dict[str, dict[int, Array]]
) -> Generator[SumQuery, Sums, dict[str, tuple[float, ...]]]:
    """The ridge of each family that is best on the first fold; on the other folds all use the map that they started from."""
    candidates = [(family, i) for family, of in large.items() for i in range(len(of))]
    maps_of = (
        FoldMap(family, {fold: begins[family][fold] for fold in range(FOLDS)} | {0: groups[family, 0].descents[i].t})
        for family, i in candidates
    )
    losses = (yield queries.Score(tuple(maps_of)))["sum"]
    best = {
        family: min((float(loss), i) for loss, (of, i) in zip(losses, candidates, strict=True) if of == family)[1]
        for family in large
    }
    return {family: large[family][i : i + 1] for family, i in best.items()}


def _one_of_each(groups: dict[tuple[str, int], Group], family: str, i: int) -> tuple[Descent, dict[int, Descent]]:
    return groups[family, ALL].descents[i], {fold: groups[family, fold].descents[i] for fold in range(FOLDS)}


def finish(candidates: list[Candidate]) -> Generator[SumQuery, Sums, None]:
    """Continue the candidates' fits on all samples until they converge."""
    for of in candidates:
        of.fit.go_on(FITTING, FINISHING_ROUNDS)
    yield from lockstep([Group(of.family, [of.fit], of.group.curvature, known=of.group.known) for of in candidates])


def score(candidates: list[Candidate], clients: Clients) -> Generator[SumQuery, Sums, Scores]:
    """Compare the candidates' losses out of fold."""
    return Scores.of((yield queries.Score(tuple(of.fold_map for of in candidates))), clients)


@dataclass(frozen=True)
class Scores:
    """The candidates' summed losses, inner products of losses, and hits."""

    total: Array
    gram: Array
    hits: Array
    n: float

    @classmethod
    def of(cls, sums: Sums, clients: Clients) -> Scores:
        """Read the sums of `queries.Score`."""
        return cls(sums["sum"], unpack_symmetric(sums["gram"]), sums["hits"], clients.n)

    def paired(self, i: int, j: int) -> tuple[float, float]:
        """Mean of (loss of i − loss of j) over samples, and its standard error."""
        mean = float(self.total[i] - self.total[j]) / max(self.n, 1)
        square = float(self.gram[i, i] - 2 * self.gram[i, j] + self.gram[j, j]) / max(self.n, 1)
        return mean, (max(square - mean**2, 0.0) / max(self.n, 1)) ** 0.5

    def best(self, numbers: Iterable[int]) -> int:
        """Which of these candidates has the least loss."""
        return min(numbers, key=lambda i: float(self.total[i]))
