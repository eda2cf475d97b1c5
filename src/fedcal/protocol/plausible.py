"""Conditions that sums over n samples satisfy, for every kind of reply: what no samples can give is refused.

    start                  whole label counts that add up to n; squares ≥ 0; agreement² ≤ n · squares (Cauchy–Schwarz)
    folds, histogram       whole counts that add up to n; hits and summed confidences at most the counts
    slope                  curvature ≥ 0
    newton, gradient, diagonal, curvature
                           loss ≥ 0; gradients within Cauchy–Schwarz; Hessians symmetric and positive semi-definite
    beta                   the same of a logistic map
    score, map             losses ≥ 0; their inner products a Gram matrix of non-negative numbers; hits whole, at most n
    law, shift             a log-likelihood ≤ 0; weights in [0, 1] that add up to 1, of one client
    fed-op                 n + stop_n samples in all; stop_loss ≥ 0
    temperatures           > 0

Sums are rounded, so each condition has a tolerance: RELATIVE to the largest value that the sum's terms could have. For
Hessians that follows from the site's squared logits, which it declared in the first round.

A request about a share of the samples may be answered from fewer than n of them. Replies under differential privacy are
clipped or noised: for them only `check_size` is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.base.checks import SPREAD
from fedcal.base.logits import Params
from fedcal.errors import FedCalError

RELATIVE = 1e-9  # rounding of a sum, relative to its terms
TINY = 1e-150  # the least unit that Hessians are measured in: its square is still a number
EXACT_UP_TO = 300  # parameters up to which a Hessian is factorised; beyond, only its 2 × 2 minors are checked
SQUARED = {"squares", "slope", "hess", "diag", "gram", "curvature"}  # sums whose terms are second powers of logits


@dataclass(frozen=True)
class Reply:
    """A site's reply, and what is known of the site."""

    who: str
    content: Params
    n: int  # samples that the site declares
    n_classes: int
    asked: Params  # the request
    squares: float | None = None  # the sum of the site's squared logits, once it has declared it

    @property
    def whole(self) -> bool:
        """Whether the request is about all of the site's samples."""
        return "share" not in self.asked

    @property
    def size(self) -> float:
        """The largest parameter that the request is about, at least 1: logits are multiplied by it."""
        return max([1.0, *(float(t.abs().max()) for t in self.asked.values() if t.numel())])

    @property
    def norm(self) -> float:
        """The root of the site's summed squared logits, or the most that it can be."""
        most = self.n * self.n_classes * SPREAD**2
        return math.sqrt(most if self.squares is None else self.squares)

    def require(self, holds: bool | Tensor, name: str, why: str) -> None:
        """Raise `FedCalError` that names the site and the field, unless the condition holds."""
        if not bool(holds):
            raise FedCalError(f"{self.who}'s answer: {name!r} {why}")


def check_size(reply: Reply) -> None:
    """Finite, and no larger than sums over n samples can be."""
    most = 4 * SPREAD * reply.n_classes * reply.n * reply.size
    for name, value in reply.content.items():
        reply.require(torch.isfinite(value).all(), name, "is not finite")
        squared = "stop_n" in reply.content or not SQUARED.isdisjoint(name.split("/"))
        largest, limit = float(value.abs().max()) if value.numel() else 0.0, most * most if squared else most
        reply.require(largest <= limit, name, f"reaches {largest:.3g}, beyond all that {reply.n} samples can add up to")


def check_plausible(reply: Reply) -> None:
    """Whether samples exist that give this reply, as far as each kind's conditions can tell."""
    words = {name.split("/")[0] for name in reply.content}
    for check in dict.fromkeys(check for word, check in CHECKS.items() if word in words):
        check(reply)


# --- counts --------------------------------------------------------------------------------------------------------------


def _start(reply: Reply) -> None:
    n, labels, squares, agreement = (reply.content[name] for name in ("n", "labels", "squares", "agreement"))
    _counts(reply, "n", n)
    _counts(reply, "labels", labels)
    total = float(labels.sum())
    reply.require(total == float(n), "labels", f"add up to {total:g}, but there are {float(n):g} samples")
    reply.require(squares >= 0, "squares", "is negative")
    bound = math.sqrt(float(n)) * math.sqrt(float(squares))
    reply.require(
        float(agreement.abs()) <= (1 + RELATIVE) * bound + TINY,
        "agreement",
        f"is {float(agreement):.3g}, where these squares allow {bound:.3g}",
    )


def _folds(reply: Reply) -> None:
    _counts(reply, "folds", reply.content["folds"])
    if "n" in reply.content:
        total, n = float(reply.content["folds"].sum()), float(reply.content["n"])
        reply.require(total == n, "folds", f"add up to {total:g}, but there are {n:g} samples")


def _histogram(reply: Reply) -> None:
    count, confidence, hits = reply.content["histogram"].unbind(dim=1)
    _counts(reply, "histogram", count)
    _whole(reply, "histogram", hits)
    reply.require((hits <= count).all(), "histogram", "has more hits than samples in a bin")
    within = (confidence >= 0) & (confidence <= (1 + RELATIVE) * count)
    reply.require(within.all(), "histogram", "has a mean confidence outside [0, 1] in a bin")


def _counts(reply: Reply, name: str, counts: Tensor) -> None:
    """Whole numbers that add up to the declared samples; to at most these where only a share is asked about."""
    _whole(reply, name, counts)
    total = float(counts.sum())
    fits = total == reply.n if reply.whole else total <= reply.n
    reply.require(fits, name, f"counts {total:g} samples, but {reply.n} are declared")


def _whole(reply: Reply, name: str, counts: Tensor) -> None:
    reply.require((counts >= 0).all(), name, "holds a negative count")
    reply.require((counts == counts.round()).all(), name, "holds a count that is no whole number")


# --- derivatives -----------------------------------------------------------------------------------------------------------


def _slope(reply: Reply) -> None:
    reply.require(reply.content["slope"][1] >= 0, "slope", "has a negative curvature")


def _linear(reply: Reply) -> None:
    """newton, gradient, diagonal / FAMILY / FOLD: loss, gradient and Hessian (or parts of it) of a linear map."""
    for name, value in reply.content.items():
        kind, *about = name.split("/")
        if kind not in ("newton", "gradient", "diagonal"):
            continue
        family, _, field = about
        units = _units(reply, family)
        if field == "loss":
            reply.require(value >= 0, name, "is negative")
        elif field == "grad":
            bound = 2 * math.sqrt(reply.n) * units  # Σ |z| ≤ √n · √Σ z², and likewise for an intercept, whose z is 1
            reply.require((value.abs() <= bound).all(), name, f"is more than {reply.n} samples of such logits can give")
            _no_drift(reply, name, family, value)
        elif field == "diag":
            _diagonal(reply, name, value, units)
        elif field == "cross":  # each class's scale with its shift
            own = (reply.content[name.removesuffix("cross") + "diag"] / units / units).clamp_min(0)
            bound = own[: len(value)] * own[len(value) :] + 2 * RELATIVE
            scaled = value / units[: len(value)] / units[len(value) :]
            reply.require((scaled.square() <= bound).all(), name, "is not positive semi-definite")
        else:
            _positive(reply, name, value, units)


def _no_drift(reply: Reply, name: str, family: str, gradient: Tensor) -> None:
    """Probabilities and labels both add up to 1, so that the gradients of the intercepts add up to 0."""
    if family != "temperature":
        drift = float(gradient[~_is_scale(family, reply.n_classes)].sum())
        reply.require(abs(drift) <= RELATIVE * reply.n, name, "has intercepts that do not add up to 0")


def _units(reply: Reply, family: str) -> Tensor:
    """For each parameter, the root of the sum of squares of what it multiplies: logits, or 1 for an intercept."""
    scale = torch.tensor(max(reply.norm, TINY), dtype=torch.float64)
    one = torch.tensor(math.sqrt(reply.n), dtype=torch.float64)
    return torch.where(_is_scale(family, reply.n_classes), scale, one)


def _is_scale(family: str, k: int) -> Tensor:
    """Which parameters of a family multiply logits; the others are intercepts."""
    if family == "matrix":
        return (torch.arange(k + 1) < k).repeat(k)
    scales, intercepts = {"temperature": (1, 0), "bias": (1, k), "vector": (k, k)}[family]
    return torch.arange(scales + intercepts) < scales


def _curvature(reply: Reply) -> None:
    """curvature/vector: for each class, the Hessian of its row of the matrix family."""
    units = _units(reply, "matrix")[: reply.n_classes + 1]
    _positive(reply, "curvature/vector", reply.content["curvature/vector"], units)


def _beta(reply: Reply) -> None:
    for name, value in reply.content.items():
        if name.startswith("beta/") and name.endswith("/loss"):
            reply.require(value >= 0, name, "is negative")
        elif name.startswith("beta/") and name.endswith("/grad"):
            reply.require(value[2].abs() <= reply.n, name, f"has an intercept beyond {reply.n} samples")
        elif name.startswith("beta/"):
            _positive(reply, name, value, value.diagonal().clamp_min(TINY**2).sqrt())
            reply.require(
                value[2, 2] <= (0.25 + RELATIVE) * reply.n, name, f"has an intercept beyond {reply.n} samples"
            )


def _positive(reply: Reply, name: str, hessian: Tensor, units: Tensor) -> None:
    """A symmetric positive semi-definite matrix (or a stack of them), up to rounding."""
    _diagonal(reply, name, hessian.diagonal(dim1=-2, dim2=-1), units)
    scaled = hessian / units / units[:, None]
    mirrored = scaled.transpose(-2, -1)
    reply.require(((scaled - mirrored).abs() <= RELATIVE).all(), name, "is not symmetric")
    size = scaled.shape[-1]
    if size <= EXACT_UP_TO:
        shifted = (scaled + mirrored) / 2 + size * RELATIVE * torch.eye(size, dtype=scaled.dtype)
        definite = (torch.linalg.cholesky_ex(shifted).info == 0).all()
    else:
        own = scaled.diagonal().clamp_min(0)
        definite = (scaled.square() <= own * own[:, None] + 2 * RELATIVE).all()
    reply.require(definite, name, "is not positive semi-definite")


def _diagonal(reply: Reply, name: str, diagonal: Tensor, units: Tensor) -> None:
    """Second derivatives: at least 0, and at most what the site's logits allow."""
    scaled = diagonal / units / units
    reply.require((scaled >= -RELATIVE).all(), name, "has a negative second derivative")
    reply.require((scaled <= 1 + RELATIVE).all(), name, f"is more than {reply.n} samples of such logits can give")


# --- comparisons, clients' weights, nets -----------------------------------------------------------------------------------


def _compared(kind: str) -> Callable[[Reply], None]:
    """score, map: each candidate's summed losses, their inner products, and hits."""

    def check(reply: Reply) -> None:
        total, gram, hits = (reply.content[f"{kind}/{field}"] for field in ("sum", "gram", "hits"))
        reply.require((total >= 0).all(), f"{kind}/sum", "holds a negative loss")
        _whole(reply, f"{kind}/hits", hits)
        reply.require((hits <= reply.n).all(), f"{kind}/hits", f"counts more hits than the {reply.n} samples")
        own, slack = gram.diagonal(), 1 + RELATIVE
        # Of n losses that are not negative: (Σ l)² / n ≤ Σ l² ≤ (Σ l)².
        fits = (total * (total / reply.n) <= slack * own + TINY) & (own <= slack * total * total + TINY)
        reply.require(fits.all(), f"{kind}/gram", f"does not fit {kind}/sum: no {reply.n} losses give both")
        reply.require((gram >= 0).all(), f"{kind}/gram", "holds a negative product of losses")
        _positive(reply, f"{kind}/gram", gram, own.sqrt().clamp_min(TINY))

    return check


def _law(reply: Reply) -> None:
    likelihood, rounding = reply.content["law/likelihood"], 1e-6 + RELATIVE * reply.n
    reply.require((likelihood <= rounding).all(), "law/likelihood", "is positive: no log-likelihood of counts")


def _shift(reply: Reply) -> None:
    weights = reply.content["shift/posterior"]
    reply.require(((weights >= 0) & (weights <= 1 + RELATIVE)).all(), "shift/posterior", "leaves [0, 1]")
    reply.require(abs(float(weights.sum()) - 1) <= RELATIVE, "shift/posterior", "does not add up to 1")
    reply.require(reply.content["shift/n"] == 1, "shift/n", "is not 1: a site is one client")


def _net(reply: Reply) -> None:
    """fed-op: a fifth of the samples is kept back to stop on."""
    for name in ("n", "stop_n"):
        _whole(reply, name, reply.content[name])
    total = float(reply.content["n"] + reply.content["stop_n"])
    reply.require(total == reply.n, "stop_n", f"and 'n' add up to {total:g} samples, but {reply.n} are declared")
    reply.require(reply.content["stop_loss"] >= 0, "stop_loss", "is negative")


def _temperature(reply: Reply) -> None:
    reply.require(reply.content["temperature"] > 0, "temperature", "is not above 0")


CHECKS: dict[str, Callable[[Reply], None]] = {  # by the first word of a field's name; "labels" stands for `start`
    "labels": _start,
    "folds": _folds,
    "slope": _slope,
    "newton": _linear,
    "gradient": _linear,
    "diagonal": _linear,
    "curvature": _curvature,
    "score": _compared("score"),
    "histogram": _histogram,
    "beta": _beta,
    "map": _compared("map"),
    "law": _law,
    "shift": _shift,
    "stop_n": _net,
    "temperature": _temperature,
}
