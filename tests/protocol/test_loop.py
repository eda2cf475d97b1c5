"""The protocol's loop as it is printed gives what `fedcal.calibrate` gives, for every method."""

import inspect
import textwrap

import numpy as np
import pytest

import fedcal
from conversations import LOGIT_METHODS
from fedcal import protocol
from fedcal.methods import METHODS, get_method


def federation(n_clients: int = 3, n: int = 90, k: int = 4) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients with skewed labels, under a model that is too sure of itself and leans to the first class."""
    rng = np.random.default_rng(7)
    found = {}
    for i in range(n_clients):
        labels = rng.choice(k, n, p=rng.dirichlet(np.full(k, 0.7)))
        logits = rng.normal(size=(n, k)) * 2
        logits[np.arange(n), labels] += 2
        logits[:, 0] += 1
        found[f"site{i}"] = logits, labels
    return found


def printed_loop() -> str:
    """The code block in the docstring of `fedcal.protocol`."""
    lines = inspect.cleandoc(protocol.__doc__ or "").splitlines()
    code = [line for line in lines if line.startswith("    ")]
    assert len(code) == 5
    return textwrap.dedent("\n".join(code)).replace("n_classes=10", "n_classes=n_classes")


@pytest.mark.parametrize("spec", [*LOGIT_METHODS, "fedcal-plus:accuracy=keep", "fedcal:average=latest,rounds=2"])
def test_the_printed_loop_is_calibrate(spec: str) -> None:
    samples = federation()
    names = {"Server": protocol.Server, "Client": protocol.Client, "method": spec, "samples": samples, "n_classes": 4}
    exec(printed_loop(), names)
    scaler, expected = names["scaler"], fedcal.calibrate(samples, spec)
    assert isinstance(scaler, protocol.Scaler)
    assert scaler.params.keys() == expected.params.keys()
    assert all(np.array_equal(scaler.params[name], value) for name, value in expected.params.items())
    assert scaler.ledger == expected.ledger


@pytest.mark.parametrize("spec", ["avg-t", "fedcal-no-wm:rounds=3", "fed-bias", "fedcal-plus", "fed-op:rounds=40"])
def test_a_server_stops_and_goes_on_anywhere(spec: str) -> None:
    """After every round, server and clients are replaced by new ones that only know what was saved."""
    samples, method = federation(), get_method(spec)
    server = protocol.Server(method, n_classes=4)
    clients = {name: protocol.Client(method, *pair) for name, pair in samples.items()}
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
        saved, kept = server.state_dict(), {name: client.state_dict() for name, client in clients.items()}
        server = protocol.Server(method, n_classes=4)
        server.load_state_dict(saved)
        clients = {name: protocol.Client(method, *pair) for name, pair in samples.items()}
        for name, client in clients.items():
            client.load_state_dict(kept[name])
    expected = fedcal.calibrate(samples, spec)
    found = server.scaler
    assert all(np.array_equal(found.params[name], value) for name, value in expected.params.items())
    assert found.ledger == expected.ledger
    for name, client in clients.items():
        personal = client.personalize(found)
        assert personal.keys() == expected.personal[name].keys()
        assert all(np.array_equal(personal[key], value) for key, value in expected.personal[name].items())


def test_additive_clients_need_no_state() -> None:
    """Every request to a new client: the same scaler, since queries hold all that replies need."""
    samples = federation()
    for spec in [name for name in LOGIT_METHODS if METHODS[name].additive]:
        server = protocol.Server(spec, n_classes=4)
        while (request := server.request) is not None:
            server.receive({name: protocol.Client(spec, *pair).reply(request) for name, pair in samples.items()})
        expected = fedcal.calibrate(samples, spec)
        assert all(np.array_equal(server.scaler.params[name], value) for name, value in expected.params.items()), spec


def test_lost_state_has_a_name() -> None:
    samples = federation(n_clients=2)
    server = protocol.Server("fedcal-no-wm:rounds=3", n_classes=4)
    clients = {name: protocol.Client("fedcal-no-wm:rounds=3", *pair) for name, pair in samples.items()}
    assert server.request is not None
    server.receive({name: client.reply(server.request) for name, client in clients.items()})
    fresh = protocol.Client("fedcal-no-wm:rounds=3", *samples["site0"])
    with pytest.raises(protocol.LostState, match="bring its state back"):
        fresh.reply(server.request)


def test_a_request_may_come_twice() -> None:
    samples = federation(n_clients=1)["site0"]
    server = protocol.Server("fedcal-no-wm:rounds=3", n_classes=4)
    client = protocol.Client("fedcal-no-wm:rounds=3", *samples)
    for _ in range(3):
        request = server.request
        assert request is not None
        first, again = client.reply(request), client.reply(request)
        assert all(np.array_equal(first.content[name], value) for name, value in again.content.items())
        server.receive({"site0": first})


def test_an_exact_fit_begins_again_without_a_lost_client() -> None:
    samples = federation()
    server = protocol.Server("fed-bias", n_classes=4)
    clients = {name: protocol.Client("fed-bias", *pair) for name, pair in samples.items()}
    for _ in range(2):
        request = server.request
        assert request is not None
        server.receive({name: client.reply(request) for name, client in clients.items()})
    assert server.drop(["site1"])
    del clients["site1"]
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
    del samples["site1"]
    expected = fedcal.calibrate(samples, "fed-bias")
    assert np.array_equal(server.scaler.params["bias"], expected.params["bias"])
    assert server.ledger.restarts == 1
    assert server.ledger.rounds == 3 + expected.ledger.rounds
    assert not server.drop(["nobody"])


def test_replies_that_were_checked_before_are_known() -> None:
    """A transport that refuses replies one by one then gives the server the rest, unchecked."""
    samples = federation()
    server = protocol.Server("fed-bias", n_classes=4)
    request = server.request
    assert request is not None
    replies = {name: protocol.Client("fed-bias", *pair).reply(request) for name, pair in samples.items()}
    for name, reply in replies.items():
        server.check(name, reply)
    del replies["site2"]  # refused for another reason: it must not be known
    server.receive(replies, check=False)
    assert {name: known.n for name, known in server.known.items()} == {"site0": 90, "site1": 90}


def test_a_restored_server_keeps_to_its_privacy_budget() -> None:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")
    privacy = protocol.Privacy(1000.0)  # so little noise that the fit never falls back, which is a warning
    server, again = (protocol.Server("fed-ts", n_classes=4, privacy=privacy) for _ in range(2))
    while (request := server.request) is not None:
        server.receive({name: protocol.Client("fed-ts", *pair).reply(request) for name, pair in federation().items()})
    again.load_state_dict(server.state_dict())
    assert again.request is None and again.ledger.spent == server.ledger.spent == pytest.approx(0.9)
    assert np.array_equal(again.scaler.params["temperature"], server.scaler.params["temperature"])
