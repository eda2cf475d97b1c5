"""The evidence against one null hypothesis at one site, how it came about, and what explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcal.errors import FedCalError
from fedcal.monitor.alternatives import calibration_prior, share_prior
from fedcal.monitor.evidence import Evidence
from fedcal.monitor.verdict import Finding, Null, explain


def no_evidence(null: Null, n_classes: int, streams: tuple[int, ...] = ()) -> Evidence:
    """The evidence against a null hypothesis before the first batch."""
    prior = calibration_prior if null is Null.CALIBRATION else share_prior
    return Evidence.new(prior(n_classes), streams)


@dataclass
class Stream:
    """Evidence, batch by batch."""

    null: Null
    evidence: Evidence
    samples: int = 0
    curve: list[float] = field(default_factory=list)  # log e-value after each batch
    names: list[str] = field(default_factory=list)  # of the batches
    best: Tensor = field(default_factory=lambda: torch.zeros(0))  # the alternatives' weights at the highest evidence
    bounds: tuple[Tensor, Tensor] | None = None  # of the classes' shares; of label distributions only

    @classmethod
    def new(cls, null: Null, n_classes: int) -> Stream:
        """No batch yet."""
        return cls(null, no_evidence(null, n_classes))

    def add(self, log_ratio: Tensor, name: str, n: int) -> None:
        """Add a batch.

        Args:
            log_ratio: (A,) of each alternative.
            name: of the batch.
            n: its samples.
        """
        self.evidence = self.evidence.add(log_ratio)
        value = float(self.evidence.log_value)
        if not self.curve or value >= max(self.curve):
            self.best = self.evidence.weights
        self.curve.append(value)
        self.names.append(name)
        self.samples += n

    def finding(self, site: str | None, share: float, alpha: float, classes: list[str]) -> Finding:
        """What the evidence says.

        Args:
            site: its name; None for all together.
            share: of alpha that this test may use.
            alpha: the false-alarm probability of all tests.
            classes: names.
        """
        curve = [value + math.log(share) for value in self.curve]
        alarm = next((i for i, value in enumerate(curve) if value >= math.log(1 / alpha)), None)
        before = curve[:alarm] if alarm is not None else []
        begins = before.index(min(before)) + 1 if before else alarm  # the evidence only grows from there
        cause, found, confidence = explain(self.best, classes, self.null)
        return Finding(
            site,
            self.null,
            len(curve),
            self.samples,
            curve[-1],
            max(curve),
            alarm is not None,
            math.exp(-max(0.0, *curve)),
            None if begins is None else self.names[begins],
            None if alarm is None else self.names[alarm],
            cause,
            found,
            confidence,
            tuple(curve),
            tuple(self.names),
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """What a file holds, besides names and the number of samples."""
        curve = torch.tensor(self.curve, dtype=torch.float64)
        bounds = {} if self.bounds is None else {"bounds": torch.stack(self.bounds)}
        return {"started": self.evidence.started, "best": self.best, "curve": curve, **bounds}

    @classmethod
    def of(cls, null: Null, n_classes: int, samples: int, names: list[str], tensors: dict[str, Tensor]) -> Stream:
        """The stream that a file holds.

        Raises:
            FedCalError: a tensor is missing, or of another shape.
        """
        fresh = no_evidence(null, n_classes)
        shapes = {"started": fresh.started.shape, "best": fresh.started.shape, "curve": (len(names),)}
        shapes |= {} if null is Null.CALIBRATION else {"bounds": (2, n_classes)}
        fits = set(tensors) == set(shapes) and all(
            tensors[name].shape == shape and tensors[name].dtype == torch.float64 for name, shape in shapes.items()
        )
        odd = any(bool((value.isnan() | (value == math.inf)).any()) for value in tensors.values())
        if not fits or not names or odd:
            raise FedCalError("a stream of evidence is incomplete")
        evidence = Evidence(fresh.log_prior, tensors["started"], len(names))
        bounds = (tensors["bounds"][0], tensors["bounds"][1]) if "bounds" in tensors else None
        return cls(null, evidence, samples, tensors["curve"].tolist(), names, tensors["best"], bounds)
