"""A group's totals: exact, with nodes that fall away at any stage, in groups of any size that is allowed."""

import numpy as np
import pytest

from fedcal import FedCalError
from fedcal.secure import Group, divide
from secure.help import exact, federation


def close(total, expected):
    return all(np.allclose(total.values[name], value, rtol=1e-14, atol=1e-15) for name, value in expected.items())


@pytest.mark.parametrize("nodes", [3, 6, 20])
def test_the_total_is_exact_and_every_later_one_takes_three_messages(nodes):
    group = federation(nodes)
    for done in (1, 2, 3):
        total = group.sum()
        assert close(total, exact(group)) and total.n == 10 * nodes == 10 * len(total.nodes)
        assert group.messages == nodes * (5 + 3 * (done - 1))
    assert group.group.aggregations == 3


@pytest.mark.parametrize("stage", ["keys", "shares"])
def test_a_node_that_falls_away_before_it_masks_is_not_in_the_total(stage):
    group = federation(6)
    total = group.sum(lambda name, at: name == "002" and at == stage)
    assert close(total, exact(group, ("002",))) and len(total.nodes) == 5 and group.group.aggregations == 1
    assert close(group.sum(), exact(group, ("002",)))


@pytest.mark.parametrize(("stage", "without"), [("mask", ("002",)), ("agree", ()), ("unmask", ())])
def test_a_node_that_falls_away_while_masks_are_on_is_survived(stage, without):
    """Its pairwise masks come off by shares of its key; or, if its vector is there, its own mask by shares of its seed."""
    group = federation(6)
    assert close(group.sum(), exact(group))
    total = group.sum(lambda name, at: name == "002" and at == stage)
    assert close(total, exact(group, without)) and len(total.nodes) == 6 - len(without)
    assert group.group.aggregations == 2 and len(group.group.nodes) == 5
    assert close(group.sum(), exact(group, ("002",)))  # without it from then on


@pytest.mark.parametrize("stage", ["shares", "mask", "agree", "unmask"])
def test_where_too_many_fall_away_the_total_is_made_without_them(stage):
    group, gone = federation(6), ("001", "004")
    total = group.sum(lambda name, at: name in gone and at == stage)
    assert close(total, exact(group, gone)) and len(total.nodes) == 4 and group.group.aggregations == 2


def test_fewer_than_three_left():
    group = federation(4)
    with pytest.raises(FedCalError, match="2 nodes are left, and secure aggregation needs 3"):
        group.sum(lambda name, at: name in ("001", "002") and at == "mask")


def test_values_that_are_too_large_are_asked_for_again_with_more_words():
    group = federation(3, scale=1e22)
    total = group.sum()
    assert close(total, exact(group)) and group.group.aggregations == 2
    assert total.rounding == 3 * 2.0**-65 and float(total.values["n"]) == exact(group)["n"]  # small ones lose nothing
    group.sum()
    assert group.group.aggregations == 3  # the words are kept
    with pytest.raises(FedCalError, match="sums are beyond 5e"):
        federation(3, scale=1e60).sum()


@pytest.mark.parametrize("nodes", [0, 1, 2, 64])
def test_groups_that_are_too_small_or_too_large_are_refused(nodes):
    with pytest.raises(FedCalError, match=f"needs 3 to 63 nodes in a group, not {nodes}"):
        Group([str(i) for i in range(nodes)])


@pytest.mark.parametrize(("nodes", "sizes"), [(3, [3]), (63, [63]), (64, [32, 32]), (127, [43, 42, 42])])
def test_larger_federations_are_divided(nodes, sizes):
    groups = divide([str(i) for i in range(nodes)])
    assert [len(group) for group in groups] == sizes
    assert sorted(int(name) for group in groups for name in group) == list(range(nodes))


def test_too_few_to_divide():
    with pytest.raises(FedCalError, match="needs 3 to 63 nodes in a group, not 2"):
        divide(["a", "b"])


@pytest.mark.parametrize(
    ("stage", "reply", "words"),
    [
        ("keys", ([{"keys": ["00"]}], b""), "a node has two public keys"),
        ("keys", ([{"keys": ["02" * 32, "03" * 32, "", "0" * 1001]}], b""), "a node has two public keys"),
        ("keys", ([{"keys": ["00", "zz"]}], b""), "32 bytes were expected"),
        ("keys", ([{"keys": ["AB" * 32, "02" * 32]}], b""), "lower-case hex digits"),
        ("keys", ([{"keys": ["00" * 32, "02" * 32]}], b""), "low order"),
        ("keys", ([{"keys": ["02" * 32, "01" + "00" * 31]}], b""), "low order"),
        ("keys", ([{"keys": ["02" * 32, "82" * 32]}], b""), "not in its canonical form"),
        ("keys", ([{"keys": ["02" * 32, "02" * 32]}], b""), "the same key twice"),
        ("keys", ([{"keys": ["02" * 32, "03" * 32]}], b""), "another version of fedcal"),
        ("shares", ([{"sealed": {"000": "00"}}], b""), "bytes were expected"),
        ("shares", ([{"sealed": {}}], b""), "share for every other node"),
        ("mask", ([{}], b"short"), "vector of 5 bytes"),
        ("agree", ([{"agreed": {}}], b""), "agree with every other node"),
        ("agree", ([{"agreed": 1}], b""), "no agreements by node"),
        ("unmask", ([{"seeds": {}, "keys": {}}], b""), "other shares than requested"),
        ("unmask", ([{"seeds": [], "keys": {}}], b""), "no shares by node"),
        ("mask", (["nonsense"], b""), "vector of 0 bytes"),
    ],
)
def test_a_damaged_reply_is_its_nodes_fault(stage, reply, words):
    group = federation(6)
    group.group.begin(group.layout)
    refused = {}
    while group.group.total is None:
        asked = group.group.ask()
        replies = {name: group.reply(name, parts) for name, parts in asked.items()}
        if not refused and asked["002"][0]["stage"] == stage:
            parts, vector = reply
            session = {"session": asked["002"][0]["session"]}
            replies["002"] = ([{**session, **part} if isinstance(part, dict) else part for part in parts], vector)
        refused |= group.group.receive(replies)
    assert list(refused) == ["002"] and words in refused["002"] and "002" not in group.group.nodes
    assert close(group.group.total, exact(group, () if stage in ("agree", "unmask") else ("002",)))


@pytest.mark.parametrize("places", [(0, 0), (1, 1), (0, 1)])
def test_nodes_with_the_same_key_are_refused_and_the_others_go_on(places):
    """Nothing shows whose key it was, and honest nodes cannot be hit: the others do not know their keys yet."""
    group, (mine, its) = federation(6), places
    group.group.begin(group.layout)
    refused = {}
    while group.group.total is None:
        replies = {name: group.reply(name, parts) for name, parts in group.group.ask().items()}
        if not refused:
            (first,), (second,) = replies["001"][0], replies["004"][0]
            first["keys"][mine] = second["keys"][its]
        refused |= group.group.receive(replies)
    assert refused == dict.fromkeys(["001", "004"], "nodes 001, 004 have the same keys")
    assert close(group.group.total, exact(group, ("001", "004"))) and group.group.aggregations == 1


def test_a_node_that_seals_rubbish_is_named_by_the_others():
    """The server cannot see it, and the aggregation is lost: but what every other node says tells whose fault it is."""
    group = federation(4)
    group.group.begin(group.layout)
    for _ in ("keys", "shares"):
        replies = {name: group.reply(name, parts) for name, parts in group.group.ask().items()}
        for part in replies["001"][0]:
            part["sealed"] = {name: "0" * len(text) for name, text in part.get("sealed", {}).items()}
        assert group.group.receive(replies) == {}
    asked = group.group.ask()
    for name in ("000", "002", "003"):
        with pytest.raises(FedCalError, match="node 001: a sealed share was changed on its way"):
            group.reply(name, asked[name])


def test_a_wrong_share_is_noticed_and_no_wrong_total_is_made():
    group = federation(6)
    honest = group.reply

    def lying(name, parts):
        replies, vector = honest(name, parts)
        for part in replies if name == "000" else []:
            part["seeds"] = dict.fromkeys(part.get("seeds", {}), "00" * 33)
        return replies, vector

    group.reply = lying
    with pytest.raises(FedCalError, match=r"came to nothing in 8 attempts \(the shares of"):
        group.sum()
