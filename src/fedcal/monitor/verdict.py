"""What the evidence says, in words: which site and which class drifted, what to do, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from fedcal.errors import counted
from fedcal.monitor.alternatives import BEYOND, N_TOP, SHARPER, n_events

MOST_LISTED = 3  # classes that are named


class Null(StrEnum):
    """What is tested at a site."""

    CALIBRATION = "calibration"  # labels follow the predicted probabilities
    LABELS = "labels"  # classes occur as often as the prior shift assumes, or as in the reference
    PREDICTIONS = "predictions"  # the same, of predicted probabilities


class Action(StrEnum):
    """What to do next."""

    NOTHING = "nothing"
    NEW_OFFSET = "new offset"
    NEW_FIT = "new fit"
    COLLECT_LABELS = "collect labels"


ADVICE = {
    Action.NOTHING: "Nothing to do.",
    Action.NEW_OFFSET: "Make a new personal scaler (offset) from the site's recent labels, then start a new monitor.",
    Action.NEW_FIT: "Collect new labelled samples and calibrate again, then start a new monitor.",
    Action.COLLECT_LABELS: "The mix of cases has changed. Send more labelled samples: they tell whether it matters.",
}


@dataclass(frozen=True)
class Finding:
    """The evidence against one null hypothesis at one site, or over all sites."""

    site: str | None  # None: all sites together
    null: Null
    batches: int
    samples: int
    evidence: float  # natural log of the e-value, weighted for the number of tests: an alarm from log(1/alpha) on
    peak: float  # the highest so far
    drifted: bool
    chance: float  # bound of the probability of so much evidence without a drift: 1/e-value, weighted
    since: str | None  # the batch with which the drift seems to begin
    alarm_at: str | None  # the batch that raised the alarm
    cause: str  # in words; empty without evidence
    classes: tuple[tuple[str, str, float], ...]  # class, "more" or "less" often, its share of the evidence
    confidence: str | None  # "over" or "under", where the confidence explains more than the classes
    curve: tuple[float, ...]  # the evidence after each batch
    names: tuple[str, ...]  # of the batches


@dataclass(frozen=True)
class Verdict:
    """All findings, and what follows from them."""

    drifted: bool
    headline: str
    sentences: tuple[str, ...]
    actions: dict[str, Action]  # by site; "" for all sites together
    alpha: float
    tolerance: float
    findings: tuple[Finding, ...]

    def advice(self) -> list[str]:
        """All sentences, and what to do at each site."""
        steps = [f"{site or 'All sites'}: {ADVICE[action]}" for site, action in self.actions.items()]
        return [self.headline, *self.sentences, *steps]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        found = asdict(self)
        for one in found["findings"]:
            one["null"] = str(one["null"])
        return found | {"actions": {site: str(action) for site, action in self.actions.items()}}


def explain(
    weights: Tensor, classes: Sequence[str], null: Null
) -> tuple[str, tuple[tuple[str, str, float], ...], str | None]:
    """What explains the evidence: in words, the classes with their shares, and over- or under-confidence if that is more.

    Args:
        weights: of the alternatives, as `Evidence.weights` has them.
        classes: names.
        null: what the evidence is against.
    """
    k = n_events(len(classes))
    by_class = weights[: 2 * len(BEYOND) * k].view(2, len(BEYOND), k).sum(1)
    named = classes if len(classes) > 2 else classes[1:]
    shares = [
        (named[j], ("more", "less")[d], float(by_class[d, j]))
        for d in range(2)
        for j in range(k)
        if by_class[d, j] > 0.05
    ]
    shares.sort(key=lambda one: -one[2])
    found = tuple(shares[:MOST_LISTED])
    if null is Null.CALIBRATION:
        over, under = (float(part.sum()) for part in weights[-N_TOP:].split(len(SHARPER)))
        if over + under > float(by_class.sum()):
            which = "over" if over > under else "under"
            return f"predictions are {which}-confident", found, which
    verb = "predicted" if null is Null.PREDICTIONS else "seen"
    than = "than its probabilities say" if null is Null.CALIBRATION else "than assumed"
    parts = [f"class {name} is {verb} {direction} often" for name, direction, _ in found[:2]]
    return (f"{' and '.join(parts)} {than}" if parts else "no single class explains it"), found, None


def judge(
    findings: Sequence[Finding], alpha: float, tolerance: float, offsets: bool, missing: Sequence[str]
) -> Verdict:
    """What follows from the findings.

    Args:
        findings: of all sites.
        alpha: the false-alarm probability.
        tolerance: log-odds by which probabilities may be off.
        offsets: whether the scaler has a prior shift, so that a new offset is possible.
        missing: sites that have sent nothing yet.
    """
    drifted = [one for one in findings if one.drifted]
    by_site: dict[str, list[Finding]] = {}
    for one in drifted:
        by_site.setdefault(one.site or "", []).append(one)
    wrong = [site for site in by_site if site and any(one.null is Null.CALIBRATION for one in by_site[site])]
    if wrong:  # what is known of sites needs no other word
        drifted = [one for one in drifted if one.site is not None]
        by_site.pop("", None)
    said = [sentence(one) for one in sorted(drifted, key=lambda one: -one.peak)]
    if missing:
        said.append(f"Nothing was sent yet by {listed(missing)}.")
    actions = {
        site: action_of(site, some, [one for one in findings if one.site == site], offsets)
        for site, some in by_site.items()
    }
    return Verdict(
        bool(drifted), headline(findings, wrong, list(by_site)), tuple(said), actions, alpha, tolerance, tuple(findings)
    )


def action_of(site: str, drifted: Sequence[Finding], tested: Sequence[Finding], offsets: bool) -> Action:
    """What to do about a site.

    An offset is enough where classes explain the evidence, and occur otherwise than assumed. Where they do not, or where the
    confidence explains it, what the model says of a case is wrong, and that needs a fit. Where only the labels or predictions
    have changed, the probabilities may have followed.

    Args:
        site: "" for all together.
        drifted: its tests that alarmed.
        tested: all its tests.
        offsets: whether the scaler has a prior shift.
    """
    found = next((one for one in drifted if one.null is Null.CALIBRATION), None)
    if found is None:
        return Action.COLLECT_LABELS
    labels = [one.drifted for one in tested if one.null is Null.LABELS]  # empty where there is nothing to compare with
    is_shift = found.confidence is None and all(labels) and offsets and site != ""
    return Action.NEW_OFFSET if is_shift else Action.NEW_FIT


def headline(findings: Sequence[Finding], wrong: Sequence[str], drifted: Sequence[str]) -> str:
    """One sentence.

    Args:
        findings: of all sites.
        wrong: sites whose probabilities are not right.
        drifted: sites of which anything is not as it was; "" for all together.
    """
    samples = sum(one.samples for one in findings if one.site is not None and one.null is not Null.LABELS)
    if not samples:
        return "No batch was sent yet."
    if wrong:
        return f"The probabilities are no longer right at {listed(wrong)}."
    if "" in drifted:
        return "The probabilities are no longer right over all sites together."
    if drifted:
        return f"The label distribution has changed at {listed(drifted)}."
    return f"No drift found in {counted(samples, 'sample')}."


def sentence(one: Finding) -> str:
    """A finding in words, with how sure it is."""
    where = one.site if one.site is not None else "All sites together"
    what = {
        Null.CALIBRATION: "the probabilities are not right",
        Null.LABELS: "the label distribution is not the assumed one",
        Null.PREDICTIONS: "the mix of predictions is not the assumed one",
    }[one.null]
    since = f", since about batch {one.since}" if one.since else ""
    return f"{where}: {what}: {one.cause}{since}. {sureness(one.chance)}"


def sureness(chance: float) -> str:
    """A bound on a false alarm, in words."""
    shown = f"at most 1 in {1 / chance:,.0f}" if chance > 1e-6 else "below 1 in a million"
    return f"The chance of so much evidence without a drift is {shown}."


def listed(names: Sequence[str]) -> str:
    """At most three names, as a text."""
    if len(names) > MOST_LISTED:
        return f"{', '.join(names[:MOST_LISTED])} and {len(names) - MOST_LISTED} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
