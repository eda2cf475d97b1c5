"""What a server can do with the messages that it sees, and with lies: not unmask one node."""

import copy

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcal import FedCalError
from fedcal.secure import Layout, SecureNode, crypto, shamir
from fedcal.secure.fixed import add, encode, negate
from fedcal.secure.identity import Identity
from fedcal.secure.member import Member, pairwise
from fedcal.secure.messages import VERSION, digest, purpose, text_of
from secure.help import federation

LENGTH = 4000
KEYS = {"session": "s", "stage": "keys", "version": VERSION}  # what a server asks first


def words(vector):
    return np.frombuffer(vector, "<u8").reshape(2, -1)


def looks_uniform(vector):
    """Bytes of uniform words: each value about as often as any other (χ² of 255 degrees: mean 255, deviation 22.6)."""
    counts = np.bincount(np.ascontiguousarray(vector).view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum() < 255 + 6 * 22.6


class Session:
    """Members of one aggregation, each stage by hand; every node's numbers are all 1."""

    def __init__(self, nodes):
        self.members = {f"{i:02d}": Member("session") for i in range(nodes)}
        self.directory = {name: member.keys()["keys"] for name, member in self.members.items()}
        self.shared = {name: member.shares(self.directory) for name, member in self.members.items()}
        self.vector = encode(np.ones(LENGTH), 2)

    def sealed_for(self, name):
        return {sender: part["sealed"][name] for sender, part in self.shared.items() if sender != name}

    def mask(self):
        return {name: member.mask(self.sealed_for(name), lambda: self.vector) for name, member in self.members.items()}

    def unmask(self, left):
        """What each node reveals that was told that these are left; a list by node."""
        told = {name: self.members[name].agree(who)["agreed"] for name, who in left.items()}
        agreed = {name: {sender: said[name] for sender, said in told.items() if name in said} for name in left}
        return {name: self.members[name].unmask(agreed[name]) for name in left}

    def own_mask(self, seed):
        return crypto.mask(seed, 2, LENGTH)

    def places(self):
        return {name: place for place, name in enumerate(sorted(self.directory), start=1)}

    def combine(self, revealed, kind, about, senders):
        places = self.places()
        return shamir.combine({places[s]: bytes.fromhex(revealed[s][kind][about]) for s in senders})


def test_the_check_of_uniformity_can_fail():
    assert not looks_uniform(encode(np.arange(LENGTH, dtype=float), 2)) and looks_uniform(
        crypto.random_words(2, LENGTH)
    )


def test_the_same_numbers_twice_give_unrelated_vectors():
    first, second = Session(3).mask(), Session(3).mask()
    for name in first:
        assert looks_uniform(first[name]) and looks_uniform(add(first[name], negate(second[name])))
        assert not (first[name] == second[name]).any()


def test_two_of_three_vectors_are_still_hidden_even_without_their_own_masks():
    session = Session(3)
    masked = session.mask()
    two = add(masked["00"], masked["01"])
    assert looks_uniform(two)
    for name in ("00", "01"):
        two = add(two, negate(session.own_mask(bytes.fromhex(session.members[name].seed))))
    assert looks_uniform(two)  # the masks with the third node are on
    three = add(two, add(masked["02"], negate(session.own_mask(bytes.fromhex(session.members["02"].seed)))))
    assert (three == encode(np.full(LENGTH, 3.0), 2)).all()  # and with it they are off


def test_all_that_an_honest_run_shows_leaves_one_nodes_vector_hidden():
    """The server learns every seed, and no key of a node whose vector it has: the pairwise masks stay on."""
    session = Session(6)
    masked = session.mask()
    revealed = session.unmask(dict.fromkeys(masked, sorted(masked)))
    assert all(part["keys"] == {} and sorted(part["seeds"]) == sorted(masked) for part in revealed.values())
    seed = session.combine(revealed, "seeds", "00", list(revealed)[:5])
    alone = add(masked["00"], negate(session.own_mask(seed)))
    assert looks_uniform(alone) and not (alone == session.vector).any()


def test_the_late_vector_of_a_node_that_was_given_up_is_hidden():
    """Its key is reconstructed, and its pairwise masks come off; its own mask does not: nobody reveals its seed."""
    session = Session(6)
    masked = session.mask()
    left = [name for name in masked if name != "03"]
    revealed = session.unmask(dict.fromkeys(left, left))
    assert all("03" not in part["seeds"] and list(part["keys"]) == ["03"] for part in revealed.values())
    key = session.combine(revealed, "keys", "03", left)
    assert crypto.public_key(key).hex() == session.directory["03"][1]
    late, about = masked["03"], digest("session", session.directory)
    for name in left:
        public = bytes.fromhex(session.directory[name][1])
        late = add(late, negate(pairwise(about, crypto.private_key(key), public, (2, LENGTH), "03", name)))
    assert looks_uniform(late) and not (late == session.vector).any()
    seed = bytes.fromhex(session.members["03"].seed)
    assert (add(late, negate(session.own_mask(seed))) == session.vector).all()  # it is the seed that hides it


def test_late_shares_of_a_total_that_was_made_again_without_a_node_show_its_part():
    """What remains, as docs/secure.md says: a curious server that keeps late replies has two totals of the same request."""
    group, first = federation(6), "000"  # which falls away before; another one's shares come too late
    group.group.begin(group.layout)
    curious, late = None, dict[str, tuple]()
    while group.group.total is None:
        now, replies = group.group._now, {}
        for name, parts in group.group.ask().items():
            found, stage = group.reply(name, parts), parts[0]["stage"]
            late[name] = found
            if group.group.aggregations or (name, stage) not in ((first, "mask"), ("001", "unmask")):
                replies[name] = found
        if now is not None and now.stage == "unmask" and not group.group.aggregations:
            mine = {
                name: (next(p for p in parts if p["session"] == now.session), b"") for name, (parts, _) in late.items()
            }
            curious = copy.deepcopy(now)
            curious.receive(mine)
        group.group.receive(replies)
    assert curious is not None and len(curious.masked) == 5 and len(group.group.total.nodes) == 4
    whole = curious.layout.decode(curious.total(), curious.masked)
    stolen = whole.values["hess"] - group.group.total.values["hess"]
    assert np.allclose(stolen, group.values["001"]["hess"], atol=1e-12)


@pytest.mark.parametrize("nodes", [3, 4, 6, 9])
def test_a_server_that_tells_nodes_different_things_does_not_get_both_kinds_of_shares(nodes):
    """Half of them hear that node 00 is there, the others that it is gone: those that are too few reveal nothing."""
    session = Session(nodes)
    masked = session.mask()
    without, least = sorted(set(masked) - {"00"}), shamir.threshold(nodes)
    left = {
        name: without if i % 2 and len(without) >= least else sorted(masked) for i, name in enumerate(session.members)
    }
    told = {name: member.agree(left[name])["agreed"] for name, member in session.members.items()}
    for name, member in session.members.items():
        agree = sum(who == left[name] for who in left.values())
        agreed = {sender: said[name] for sender, said in told.items() if name in said}
        if agree >= least:
            assert ("00" in member.unmask(agreed)["seeds"]) == (left[name] != without)
        else:
            with pytest.raises(FedCalError, match=f"{agree} of {nodes} nodes agree on who is left, where {least} must"):
                member.unmask(agreed)


def test_a_server_that_lies_about_who_dropped_out_does_not_isolate_a_node():
    """It has 2 of 7 nodes on its side, 05 and 06, and tells every other node something else about 01 and 02.

    Node 00 masks with these four only. Every node reveals one kind of share about every node, and yet enough of them would
    reveal the seed of 00, and the masking keys of both 01 and 02, for its vector to be unmasked.
    """
    session = Session(7)
    everybody = sorted(session.members)
    alone = {name: text for name, text in session.sealed_for("00").items() if name not in ("03", "04")}
    session.members["00"].mask(alone, lambda: session.vector)
    for name in everybody[1:]:
        session.members[name].mask(session.sealed_for(name), lambda: session.vector)
    gone = {"00": ["03", "04"], "01": ["02"], "02": ["01"], "03": ["01", "02"], "04": ["01", "02"]}
    told = {name: session.members[name].agree(sorted({*everybody} - {*lost}))["agreed"] for name, lost in gone.items()}
    for name, lost in gone.items():
        agreed = {sender: said[name] for sender, said in told.items() if name in said}
        for colluder in ("05", "06"):  # which say to each node what it was told
            helper = session.members[colluder]
            helper.left = sorted({*everybody} - {*lost})
            key = bytes.fromhex(helper.sealing[name])
            agreed[colluder] = crypto.seal(key, 2 + (colluder > name), b"", helper._about_left()).hex()
        with pytest.raises(FedCalError, match=r"[34] of 7 nodes agree on who is left, where 5 must"):
            session.members[name].unmask(agreed)


def test_what_one_node_tells_another_serves_no_other_node_list_or_direction():
    session = Session(4)
    masked = sorted(session.mask())
    left = dict.fromkeys(masked, masked) | {"03": ["00", "02", "03"]}
    told = {name: session.members[name].agree(left[name])["agreed"] for name in masked}
    here = session.members["00"]

    def agrees(name, text):
        return here._agrees(name, text, here._about_left())

    assert [name for name in ("01", "02", "03") if agrees(name, told[name]["00"])] == ["01", "02"]
    assert not agrees("01", told["02"]["00"]) and not agrees("01", told["01"]["02"])
    assert not agrees("01", told["00"]["01"]) and not agrees("00", told["01"]["00"])
    assert not agrees("elsewhere", told["01"]["00"])


def test_a_node_that_refuses_to_mask_has_not_spent_its_privacy():
    """Its vector may have noise that a budget has paid for: it is made when nothing can be refused any more."""
    session, made = Session(4), []
    sealed = session.sealed_for("00") | {"02": "00" * 82}
    with pytest.raises(FedCalError, match="node 02: a sealed share was changed"):
        session.members["00"].mask(sealed, lambda: made.append(1) or session.vector)
    assert made == []


def test_a_node_masks_and_unmasks_once():
    session = Session(3)
    masked = session.mask()
    member = session.members["00"]
    with pytest.raises(FedCalError, match="'mask' is not the next stage"):
        member.mask(session.sealed_for("00"), lambda: session.vector)
    with pytest.raises(FedCalError, match="'unmask' is not the next stage"):
        member.unmask({})
    session.unmask(dict.fromkeys(masked, sorted(masked)))
    with pytest.raises(FedCalError, match="'agree' is not the next stage"):
        member.agree(sorted(masked))


def test_a_node_refuses_to_unmask_too_few_or_strangers():
    for left, words_ in (
        (["00", "01", "02", "03"], "where 5 are needed"),
        (["00", "99"], "other nodes"),
        ("00", "other"),
    ):
        session = Session(6)
        session.mask()
        with pytest.raises(FedCalError, match=words_):
            session.members["00"].agree(left)


def test_a_node_may_ask_for_more_than_the_threshold():
    """Its share of noise is enough together with so many others': with fewer it neither masks nor unmasks."""
    session = Session(6)
    with pytest.raises(FedCalError, match="6 of 6 nodes are left, where 7 are needed"):
        session.members["00"].mask(session.sealed_for("00"), lambda: session.vector, fewest=7)
    session = Session(6)
    left = sorted(session.mask())[:5]
    session.members["00"].agree(left)
    with pytest.raises(FedCalError, match="5 of 6 nodes are left, where 6 are needed"):
        session.members["01"].agree(left, fewest=6)


def test_a_node_refuses_to_mask_with_too_few():
    session = Session(6)
    sealed = dict(list(session.sealed_for("00").items())[:3])
    with pytest.raises(FedCalError, match="4 of 6 nodes are left, where 5 are needed"):
        session.members["00"].mask(sealed, lambda: session.vector)


def test_nodes_that_are_shown_different_directories_do_not_mask():
    """What is sealed is bound to the directory: a server cannot put its own keys into one node's copy only."""
    members = {name: Member("session") for name in ("a", "b", "c", "d")}
    directory = {name: member.keys()["keys"] for name, member in members.items()}
    forged = {**directory, "d": Member("session").keys()["keys"]}
    shared = {name: members[name].shares(forged if name == "a" else directory) for name in ("a", "b", "c")}
    with pytest.raises(FedCalError, match="node b: a sealed share was changed on its way"):
        members["a"].mask({name: shared[name]["sealed"]["a"] for name in ("b", "c")}, lambda: encode(np.ones(3), 2))


@pytest.mark.parametrize(
    ("change", "words_"),
    [
        (lambda d: {k: d[k] for k in ("00", "01")}, "3 to 63 nodes, not 2"),
        (lambda d: d | {f"x{i}": [f"{i:064x}", f"{i + 99:064x}"] for i in range(61)}, "3 to 63 nodes, not 64"),
        (lambda d: {**d, "00": d["01"]}, "same keys"),
        (
            lambda d: {k: v for k, v in d.items() if k != "00"} | {"x": Member("s").keys()["keys"]},
            "not in the server's",
        ),
        (lambda d: [1, 2], "cannot be read"),
        (lambda d: {**d, "01": ["00", "11"]}, "32 bytes"),
    ],
)
def test_a_directory_that_no_honest_server_sends(change, words_):
    members = {f"{i:02d}": Member("session") for i in range(3)}
    directory = {name: member.keys()["keys"] for name, member in members.items()}
    with pytest.raises(FedCalError, match=words_):
        members["00"].shares(change(directory))


@pytest.mark.parametrize("keys", [["00" * 32, "11" * 32], ["11" * 32, "00" * 32]])
def test_a_public_key_of_low_order_is_refused(keys):
    """With such a key, whose shared secret is 0 whoever has it, the server would know a mask."""
    members = {name: Member("session") for name in ("a", "b", "c")}
    directory = {name: member.keys()["keys"] for name, member in members.items()} | {"c": keys}
    with pytest.raises(FedCalError, match="keys of node c cannot be used: a public key is of low order"):
        members["a"].shares(directory)


def test_the_list_of_keys_of_low_order_is_complete():
    """None of them shares a secret. The 8 points of low order of the curve, and the 4 of its twist, have no others."""
    assert len(crypto.LOW_ORDER) == 5
    for value in crypto.LOW_ORDER:
        with pytest.raises(FedCalError, match="damaged"):
            crypto.agree(crypto.private_key(crypto.new_secret()), value.to_bytes(32, "little"), b"")
        with pytest.raises(FedCalError, match="low order"):
            crypto.check_public_key(value.to_bytes(32, "little"))


@pytest.mark.parametrize("value", [crypto.FIELD, crypto.FIELD + 9, 2**255 - 1, 2**255 + 9, 2**256 - 1], ids=hex)
def test_a_public_key_has_one_form(value):
    """All of these are other keys' numbers to X25519, which are below the prime."""
    with pytest.raises(FedCalError, match="not in its canonical form"):
        crypto.check_public_key(value.to_bytes(32, "little"))
    crypto.check_public_key((9).to_bytes(32, "little"))


@pytest.mark.parametrize(
    "text", ["AB" * 32, " " + "ab" * 32, "ab " * 32, "ab" * 31, "ab" * 33, "zz" * 32, b"ab", 7, None]
)
def test_hex_digits_have_one_form(text):
    assert text_of("ab" * 32, 32, "it") == "ab" * 32
    with pytest.raises(FedCalError, match=r"32 bytes were expected as lower-case hex digits \(it\)"):
        text_of(text, 32, "it")


def highest_bit(key):
    """X25519 ignores it."""
    return key[:62] + f"{int(key[62:], 16) | 0x80:02x}"


def blank(key):
    """`bytes.fromhex` ignores it."""
    return f"{key[:2]} {key[2:]}"


def inverse(key):
    """The key plus the point of order 2, whose coordinate is 1/u: it is canonical, and shares the same secrets."""
    u = int.from_bytes(bytes.fromhex(key), "little")
    return pow(u, -1, crypto.FIELD).to_bytes(32, "little").hex()


@pytest.mark.parametrize("alias", [highest_bit, inverse])
def test_an_alias_of_a_key_shares_the_same_secrets(alias):
    public, private = crypto.public_key(crypto.new_secret()), crypto.private_key(crypto.new_secret())
    other = bytes.fromhex(alias(public.hex()))
    assert other != public and crypto.agree(private, other, b"") == crypto.agree(private, public, b"")


@pytest.mark.parametrize(("alias", "accepted"), [(highest_bit, False), (blank, False), (inverse, True)])
def test_a_node_that_publishes_anothers_key_does_not_take_masks_off(alias, accepted):
    """Server and node a collude against m. Node a's masking key is z's in another form, so that m shares one secret with
    both. If it gave one mask, m would add it for z and subtract it for a, and only m's own mask would hide m's vector.
    """
    names = ("a", "m", "z")
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    who = {name: Identity(key, [one.public_key() for one in keys.values()]) for name, key in keys.items()}
    members = {name: Member("session") for name in names}
    directory = {name: members[name].keys(who[name])["keys"] for name in ("m", "z")}
    forged = [members["a"].keys()["keys"][0], alias(directory["z"][1])]
    directory["a"] = who["a"].sign("session", forged)
    members["a"]._public = lambda: forged
    if not accepted:
        with pytest.raises(FedCalError, match="of node a"):
            members["m"].shares(directory, who["m"])
        return
    shared = {name: members[name].shares(directory, who[name])["sealed"] for name in names}
    vector = encode(np.arange(LENGTH, dtype=float), 2)
    masked = members["m"].mask({name: shared[name]["m"] for name in ("a", "z")}, lambda: vector)
    seed = bytes.fromhex(members["m"].seed)  # which all nodes reveal, since m's vector is there
    alone = add(masked, negate(crypto.mask(seed, 2, LENGTH)))
    assert looks_uniform(alone) and not (alone == vector).any()


def test_keys_are_bound_to_what_they_are_for():
    """One secret gives two nodes the same key, and another one for any other use, aggregation, directory or pair."""
    directory = {name: Member("session").keys()["keys"] for name in ("a", "b", "c")}
    about = digest("session", directory)
    fewer = {name: directory[name] for name in ("a", "b")}
    assert purpose("mask", about, "a", "b") == purpose("mask", about, "b", "a")
    others = [
        purpose("seal", about, "a", "b"),
        purpose("mask", digest("another", directory), "a", "b"),
        purpose("mask", digest("session", fewer), "a", "b"),
        purpose("mask", about, "a", "c"),
        purpose("mask", about, 'a", "b', "c"),
    ]
    assert len({purpose("mask", about, "a", "b"), *others}) == 6


def test_secrets_of_another_version_are_not_used():
    node = SecureNode()
    node.reply([KEYS], lambda words: encode(np.ones(1), words))
    kept = node.to_json()
    assert list(SecureNode.from_json(kept).members) == ["s"]
    assert SecureNode.from_json([{**kept[0], "version": VERSION - 1}]).members == {}
    del kept[0]["version"]
    assert SecureNode.from_json(kept).members == {}


@pytest.mark.parametrize(
    ("parts", "words_"),
    [
        (None, "cannot be read"),
        ([1], "cannot be read"),
        ([{"stage": "keys"}], "cannot be read"),
        ([{"session": "s", "stage": "mask"}], "lost its part"),
        ([KEYS, {"session": "s", "stage": "sing"}], "no stage 'sing'"),
        ([KEYS, KEYS], "not the next stage"),
        ([{"session": "s", "stage": "keys"}], "another version of fedcal"),
        ([{"session": "s", "stage": "mask"}, {"session": "t", "stage": "mask"}], "cannot be read"),
        ([KEYS, {"session": "s", "stage": "mask", "words": "2"}], "how many words"),
    ],
)
def test_requests_that_no_honest_server_makes(parts, words_):
    with pytest.raises(FedCalError, match=words_):
        SecureNode().reply(parts, lambda words: Layout({}, words).encode({}, 0))


def test_a_node_keeps_few_secrets():
    node = SecureNode()
    for i in range(10):
        node.reply([{**KEYS, "session": str(i)}], lambda words: encode(np.ones(1), words))
    assert list(node.members) == ["7", "8", "9"]


def test_messages_hold_no_secret(monkeypatch):
    """Nothing that a node sends holds a secret of its own, or a number of its values, in any form that is not masked."""
    group = federation(6)
    secrets = []
    original = Member.shares

    def shares(self, *args):
        secrets.extend([self.seed, self.masking_key, self.sealing_key])
        return original(self, *args)

    monkeypatch.setattr(Member, "shares", shares)
    group.sum(lambda name, at: name == "002" and at == "mask")
    sent = "".join(f"{parts}{vector.hex()}" for _, parts, vector in group.seen)
    assert len(secrets) >= 18 and not any(secret in sent for secret in secrets)
    for values in group.values.values():
        encoded = encode(values["hess"].ravel(), 2)
        assert not any(int(word).to_bytes(8, "little").hex() in sent for word in encoded[0])
