"""A site's sums as bytes: what comes back is what was sent, and what no site sends is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedcal import FedCalError
from fedcal.assess.evaluation import SiteSums
from fedcal.assess.message import Asked, SiteMessage, evaluate_messages
from fedcal.assess.sums import PARTS
from fedcal.base.codec import pack, unpack
from scores import classes


@pytest.fixture(scope="module")
def sent() -> bytes:
    z, y = (part for part in classes(200, 3))
    groups = {"sex": np.array(["f", "m"] * 100), "old": np.array(["0"] * 150 + ["1"] * 50)}
    sums = SiteSums.of(z, y, groups, [0.2])
    return SiteMessage.of("north", Asked(("a", "b", "c"), (0.2,)), sums, groups).pack()


def test_there_and_back(sent):
    back = SiteMessage.unpack(sent)
    assert back.pack() == sent and back.site == "north" and back.sums.total.n == 200
    assert {group: part.n for group, part in back.sums.groups.items()} == {
        "sex=f": 100, "sex=m": 100, "old=0": 150, "old=1": 50
    }  # fmt: skip
    assert evaluate_messages([back]).pooled["n"] == 200


OLD = ["old=0", "old=1"]
TOO_MANY = [f"x={i}" for i in range(51)]
HEADERS = {
    "no site": {"site": None},
    "a path": {"site": "../north"},
    "steers a terminal": {"site": "\x1b[2J"},
    "thresholds as text": {"thresholds": ["0.2"]},
    "no thresholds": {"thresholds": []},
    "too many thresholds": {"thresholds": [0.2] * 101},
    "threshold of one": {"thresholds": [1.0]},
    "one class": {"classes": ["a"]},
    "a million classes": {"classes": ["a"] * 1_000_000},
    "a number as a class": {"classes": ["a", "b", 3]},
    "a group that is all samples": {"variables": {"": ["", *OLD, "x"]}, "groups": ["", *OLD, "x"]},
    "a group of another variable": {"variables": {"sex": ["old=0", "sex=m"], "old": ["sex=f", "old=1"]}},
    "a group twice": {"variables": {"old": [*OLD, *OLD]}, "groups": [*OLD, *OLD]},
    "a group left out": {"variables": {"sex": ["sex=f"], "old": OLD}},
    "too many groups": {"variables": {"x": TOO_MANY}, "groups": TOO_MANY},
    "too many variables": {"variables": {f"v{i}": [] for i in range(21)}, "groups": []},
    "another schema": {"schema": 9},
    "more entries": {"more": 1},
}  # fmt: skip


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS.keys())
def test_odd_headers_are_refused(change, sent):
    tensors, about = unpack(sent)
    with pytest.raises(FedCalError):
        SiteMessage.unpack(pack(tensors, about | change))


@pytest.mark.parametrize("names", [["a", "a", "b"], ["", "a", "b"]])
def test_classes_without_a_name_of_their_own_are_refused(names, sent):
    tensors, about = unpack(sent)
    assert len(about["classes"]) == 3
    with pytest.raises(FedCalError, match="two classes have the same name, or one has none"):
        SiteMessage.unpack(pack(tensors, about | {"classes": names}))


def test_groups_that_are_no_part_of_the_site_are_refused(sent):
    tensors, about = unpack(sent)
    order = about["groups"]
    of = {group: {part: tensors[f"group-{i}/{part}"] for part in PARTS} for i, group in enumerate(order)}
    doubled = tensors | {f"group-{order.index('sex=f')}/{part}": of["old=0"][part] for part in PARTS}
    with pytest.raises(FedCalError, match="more samples than the site"):  # 150 and 100 of 200
        SiteMessage.unpack(pack(doubled, about))
    for tensors_of in (tensors | {"more": np.zeros(1)}, {k: v for k, v in tensors.items() if k != "group-0/above"}):
        with pytest.raises(FedCalError, match="missing, or have no place"):
            SiteMessage.unpack(pack(tensors_of, about))


def test_files_of_the_format_before_are_refused_in_one_line(sent):
    tensors, about = unpack(sent)
    older = {name: value for name, value in tensors.items() if not name.endswith("/joint")}
    with pytest.raises(FedCalError, match="from another version: write them again") as error:
        SiteMessage.unpack(pack(older, about | {"schema": 1}))
    assert "\n" not in str(error.value)


def test_two_classes_have_the_format_that_they_had():
    z, y = (part for part in classes(50, 2))
    data = SiteMessage.of("north", Asked(("a", "b"), (0.5,)), SiteSums.of(z, y, {}, [0.5]), {}).pack()
    tensors, about = unpack(data)
    assert about["schema"] == 1 and {name.split("/")[1] for name in tensors} == set(PARTS) - {"joint"}


def test_what_cannot_be_shown_is_not_sent():
    z, y = (part for part in classes(20, 2))
    sums = SiteSums.of(z, y, {}, [0.5])
    with pytest.raises(FedCalError, match="cannot be shown"):
        SiteMessage.of("north", Asked(("a", "b\x1b[2J"), (0.5,)), sums, {}).pack()
