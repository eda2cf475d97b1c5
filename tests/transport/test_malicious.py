"""The same malicious client against memory, files and Flower: each lie is its fault, named, and the rest go on without it.

And the same malicious server against a site and a node: they refuse in one line, and nothing leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedcal
from conversations import make_samples
from fedcal import FedCalError, Scaler
from fedcal.cli.main import main
from fedcal.exact.prepared import ALL
from fedcal.exact.queries import LinearSums, Points, Slope
from fedcal.measure.views import Measured
from fedcal.methods import get_method
from fedcal.methods.fit import FitScaler
from fedcal.protocol import Client, Plan, Policy, Privacy, Reply, Request, Server
from fedcal.protocol.wire import pack, pack_reply, pack_request, unpack, unpack_reply
from fedcal.transport import files
from fedcal.transport.flower import CalibratedStrategy, LocalGrid, calibration_mod
from fedcal.transport.flower.grid import ask
from fedcal.transport.flower.measured import measured_arrays
from fedcal.transport.flower.records import (
    DATA,
    MODEL,
    REPLY,
    REQUEST,
    VIEWS,
    fingerprint,
    from_record,
    pack_scaler,
    record_of,
)

K = 3
SAMPLES = dict(zip(("anna", "bert", "carl", "eve"), make_samples([60, 70, 80, 90], K), strict=True))
TESTED = dict(zip(SAMPLES, make_samples([50, 50, 50, 50], K, seed=1), strict=True))
MODEL_ARRAYS = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
Lie = Callable[[Reply], Reply]


def told(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Lie:
    """Another value in the reply, where it has one of that name."""
    return lambda r: replace(r, content={k: change(v) if k == name else v for k, v in r.content.items()})


def less(index: Any, value: float) -> Callable[[np.ndarray], np.ndarray]:
    """The tensor with another value at that place."""

    def change(tensor: np.ndarray) -> np.ndarray:
        tensor = tensor.copy()
        tensor[index] = value
        return tensor

    return change


LIES: dict[str, tuple[str, Lie, str]] = {  # method, what eve sends instead, and words of the reason
    "a Hessian of -1e10": ("fed-bias", told("0/hess", lambda v: v * 0 - 1e10), "negative second derivative"),
    "a Hessian that bends down": ("fed-bias", told("0/hess", less(1, 60.0)), "not positive semi-definite"),
    "a Hessian beyond its squares": ("fed-bias", told("0/hess", lambda v: v * 1e9), "samples of such logits"),
    "a gradient beyond its squares": ("fed-bias", told("0/grad", lambda v: v * 1e9), "samples of such logits"),
    "a curvature of -1e10": ("fed-ts", told("slope", less(1, -1e10)), "negative curvature"),
    "negative squares": ("fed-bias", told("squares", lambda v: -v), "'squares' is negative"),
    "negative label counts": ("fed-bias", told("labels", less(0, -5.0)), "negative count"),
    "label counts that do not add up": ("fed-bias", told("labels", lambda v: v + 1), "samples, but"),
    "a negative histogram": ("fed-hist", told("histogram", lambda v: -v), "negative count"),
    "more hits than samples": (
        "fed-hist",
        told("histogram", lambda v: v * np.array([1.0, 9, 1, 1, 1])[:, None]),
        "more hits",
    ),
    "confidences of any size": (
        "fed-hist",
        told("histogram", lambda v: v * np.array([1.0, 1, 9, 1, 1])[:, None]),
        "outside",
    ),
    "a temperature of 0": ("avg-t", told("temperature", lambda v: v * 0), "is 0, where a fit gives 0.05 to 20"),
    "a temperature of -100": ("avg-t", told("temperature", lambda v: v * 0 - 100), "is -100, where a fit gives"),
    "a temperature of 1e9": ("ens", told("temperature", lambda v: v * 0 + 1e9), "is 1e+09, where a fit gives"),
    "-1e6 samples": ("lr-ts:rounds=2", lambda r: replace(r, n=-(10**6)), "declares -1000000 samples"),
    "1e18 samples": ("lr-ts:rounds=2", lambda r: replace(r, n=10**18), "declares 1000000000000000000 samples"),
    "1e9 samples": ("lr-ts:rounds=2", lambda r: replace(r, n=10**9), "declares 1000000000 samples, the others at most"),
    "a net far from the others'": ("fedcal-small:rounds=1", told("w1", lambda v: v * 1e8), "the others' about"),
}
lies = pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())


def without_eve(spec: str) -> Scaler:
    return fedcal.calibrate({name: pair for name, pair in SAMPLES.items() if name != "eve"}, spec)


def same(one: Scaler, other: Scaler) -> bool:
    return all(np.array_equal(one.params[name], value) for name, value in other.params.items())


@lies
def test_in_memory(lie: tuple[str, Lie, str]) -> None:
    spec, change, words = lie
    server, caught = Server(spec, K), 0
    clients = {name: Client(spec, *pair) for name, pair in SAMPLES.items()}
    while (request := server.request) is not None:
        replies = {name: client.reply(request) for name, client in clients.items()}
        if "eve" in replies and _differ(lied := change(replies["eve"]), replies["eve"]):
            with pytest.raises(FedCalError, match="eve") as error:
                server.receive({**replies, "eve": lied})
            assert words in str(error.value) and "\n" not in str(error.value)
            del clients["eve"], replies["eve"]
            caught += 1
            if server.drop(["eve"]):
                continue
        server.receive(replies)
    assert caught == 1 and server.ledger.dropped == ["eve"] and same(server.scaler, without_eve(spec))


def _differ(lied: Reply, honest: Reply) -> bool:
    return lied.n != honest.n or any(not np.array_equal(lied.content[k], v) for k, v in honest.content.items())


@lies
def test_by_files(tmp_path: Path, lie: tuple[str, Lie, str]) -> None:
    spec, change, words = lie
    files.start(tmp_path, spec, K, list(SAMPLES))
    federation, sites, caught = files.status(tmp_path), dict(SAMPLES), 0
    while federation.server.request is not None:
        paths = [files.reply(federation.output, pair, site, tmp_path / f"{site}.state") for site, pair in sites.items()]
        if "eve" in sites:
            _, honest = unpack_reply(paths[-1].read_bytes())
            paths[-1].write_bytes(pack_reply(lied := change(honest), "eve"))
            if _differ(lied, honest):
                with pytest.raises(FedCalError, match="eve") as error:
                    files.receive(tmp_path, paths)
                assert words in str(error.value) or "a whole number is needed" in str(error.value)
                assert "\n" not in str(error.value)
                del sites["eve"]
                caught += 1
                federation = files.receive(tmp_path, paths[:-1], without=["eve"])
                continue
        federation = files.receive(tmp_path, paths)
    assert caught == 1 and same(Scaler.load(federation.output), without_eve(spec))


# --- Flower --------------------------------------------------------------------------------------------------------------


def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[np.ndarray, np.ndarray]:
    return (TESTED if split == "test" else SAMPLES)[str(context.node_config["name"])]


def make_app(how: Callable[[Message], Message] = lambda reply: reply, policy: Policy | None = None) -> Any:
    """An app whose node eve sends what `how` makes of her replies."""
    app = ClientApp(mods=[calibration_mod(logits, policy=policy)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        metrics = MetricRecord({"num-examples": 60, "loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 60, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def handle(message: Message, context: Context) -> Message:
        reply = app(message, context)
        return how(reply) if context.node_config["name"] == "eve" and reply.has_content() else reply

    return handle


def grid_of(app: Any, **config: Any) -> LocalGrid:
    return LocalGrid(app, [{"name": name, **config} for name in SAMPLES])


def run(app: Any, spec: str, rounds: int = 0, evaluated: float = 0.0) -> CalibratedStrategy:
    inner = FedAvg(fraction_evaluate=evaluated, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    strategy = CalibratedStrategy(inner, spec, n_classes=K, timeout=1.0, patience=0.0)
    strategy.start(grid_of(app), MODEL_ARRAYS, rounds, timeout=1.0)
    return strategy


def kind_of(reply: Message) -> str:
    """ "reply", "measured", or nothing where the node only trained."""
    data = reply.content[REPLY][DATA] if REPLY in reply.content else b""
    return unpack(data)[1].get("kind", "measured") if data else ""


@lies
def test_over_flower(lie: tuple[str, Lie, str]) -> None:
    spec, change, words = lie

    def how(reply: Message) -> Message:
        if kind_of(reply) == "reply":
            name, honest = unpack_reply(reply.content[REPLY][DATA])
            reply.content[REPLY][DATA] = pack_reply(change(honest), name)
        return reply

    report = (strategy := run(make_app(how), spec)).report()
    (fault,) = report["faults"]
    assert fault["name"] == "eve" and (words in fault["reason"] or "a whole number is needed" in fault["reason"])
    assert report["fitted_by"] == report["measured_by"] == ["anna", "bert", "carl"]
    assert same(strategy.scaler, without_eve(spec))


Tensors = dict[str, np.ndarray]
MEASURED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {  # what eve says that she has measured
    "seven bins": (lambda t: _measured(7), "3 classes in 7 bins, not 3 in 15"),
    "more correct than samples": (
        lambda t: {**t, "own/counts": np.array([50, 182_000, 182_000])},
        "182000 correct",
    ),
    "a negative histogram": (lambda t: {**t, "own/fine": -t["own/fine"]}, "negative"),
    "negative labels": (lambda t: {**t, "own/classwise": -t["own/classwise"]}, "negative"),
    "labels of another number": (lambda t: {**t, "own/counts": t["own/counts"] + 1}, "add up"),
    "confidences of any size": (
        lambda t: {**t, "own/reliability": t["own/reliability"] * _row(2, 5)},
        "more than there can be",
    ),
    "confidences of other bins": (
        lambda t: {**t, "own/reliability": _mixed(t["own/reliability"])},
        "outside of its bins",
    ),
    "a summed confidence of any size": (lambda t: {**t, "own/sums": t["own/sums"] * 100}, "sum of confidences"),
    "a loss that is no number": (lambda t: {**t, "own/sums": t["own/sums"] * np.nan}, "not finite"),
    "a loss of 1e15": (lambda t: {**t, "own/sums": t["own/sums"] + np.array([1e15, 0, 0])}, "a loss of 2e+13"),
    "a negative loss": (lambda t: {**t, "own/sums": t["own/sums"] * np.array([-1, 1, 1])}, "negative"),
    "other samples in one view": (lambda t: t | _view(SAMPLES["eve"], "own"), "other samples"),
}


def _measured(bins: int) -> Tensors:
    """What eve measures in so many bins."""
    z, y = TESTED["eve"]
    return measured_arrays("eve", Measured.of("eve", dict.fromkeys(VIEWS, z), y, bins))


def _mixed(sums: np.ndarray) -> np.ndarray:
    """The confidences of the bins in another order."""
    return np.concatenate([sums[:2], sums[2:, ::-1]])


def _row(row: int, factor: int) -> np.ndarray:
    return np.array([factor if i == row else 1 for i in range(4)])[:, None]


def _view(pair: tuple[np.ndarray, np.ndarray], view: str) -> Tensors:
    from fedcal.measure.tally import Tally

    return {f"{view}/{name}": value for name, value in Tally.of(*pair).to_arrays().items()}


@pytest.mark.parametrize("lie", MEASURED.values(), ids=MEASURED.keys())
def test_what_a_node_measures(lie: tuple[Callable[[Tensors], Tensors], str]) -> None:
    """After the whole fit: the report is of the others."""
    change, words = lie

    def how(reply: Message) -> Message:
        if kind_of(reply) == "measured":
            tensors, header = unpack(reply.content[REPLY][DATA])
            reply.content[REPLY][DATA] = pack({k: np.ascontiguousarray(v) for k, v in change(tensors).items()}, header)
        return reply

    strategy = run(make_app(how), "avg-t")
    (fault,) = strategy.report()["faults"]
    assert fault["name"] == "eve" and words in fault["reason"]
    assert strategy.measured.clients == ["anna", "bert", "carl"]
    assert 0 <= strategy.metrics()["global"]["accuracy"] <= 1


METRICS: dict[str, tuple[dict[str, Any], str]] = {  # eve's metrics, in training and in evaluation
    "another key": ({"extra": 1.0}, "other names or lengths"),
    "a list of samples": ({"num-examples": [60, 60]}, "no number above 0"),
    "samples that cancel": ({"num-examples": -180}, "no number above 0"),
    "-1e6 samples": ({"num-examples": -(10**6)}, "no number above 0"),
    "no samples": ({"num-examples": 0}, "no number above 0"),
    "1e18 samples": ({"num-examples": 10**18}, "its num-examples is 1e+18, the others' about 60"),
    "a loss that is no number": ({"num-examples": 60, "loss": float("nan")}, "not finite"),
}


@pytest.mark.parametrize("lie", METRICS.values(), ids=METRICS.keys())
@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_metrics_of_flowers_own_rounds(lie: tuple[dict[str, Any], str], phase: str) -> None:
    added, words = lie

    def how(reply: Message) -> Message:
        if "metrics" in reply.content and ("arrays" in reply.content) == (phase == "train"):
            reply.content["metrics"].update(added)
        return reply

    report = run(make_app(how), "avg-t", rounds=1, evaluated=1.0).report()
    (fault,) = report["faults"]
    assert words in fault["reason"] and fault["name"] == "eve"
    assert report["measured_by"] == ["anna", "bert", "carl", "eve"]


@pytest.mark.parametrize("name", ["pooled", "\x1b[31mred", "x" * 1000, ""])
def test_names_that_no_report_can_show(name: str) -> None:
    def how(reply: Message) -> Message:
        if REPLY in reply.content:
            reply.content[REPLY]["client"] = name
        return reply

    report = run(make_app(how), "avg-t").report()
    assert "which cannot name a node" in report["faults"][0]["reason"] and len(report["faults"][0]["reason"]) < 300
    assert report["measured_by"] == ["anna", "bert", "carl"]


def test_remarks_are_few_and_short() -> None:
    reply = Reply({}, 0, "x")
    for odd in (
        replace(reply, notes={str(i): 1.0 for i in range(100)}),
        replace(reply, notes={"x" * 100: 1.0}),
        replace(reply, privacy={"left": 1, "word": "x" * 1000}),
        replace(reply, privacy={"left": 1, "table": {"deep": []}}),
    ):
        with pytest.raises(FedCalError, match=r"eve.*(remarks are too many|what its privacy has cost)"):
            unpack_reply(pack_reply(odd, "eve"))


# --- a malicious server ----------------------------------------------------------------------------------------------------

MATRIX = Points("matrix", ALL, "none", np.ones((1, K * (K + 1))))
START = FitScaler({"temperature": np.ones(())}, 0)
ATTACKS: dict[str, tuple[str, Any, str]] = {  # the second request of a fed-ts federation, and words of the refusal
    "every logit and label": ("val-ts", START, "val-ts sends every logit and label: refused"),
    "gradients of a matrix": (
        "fed-ts",
        LinearSums((MATRIX,)),
        "asks for LinearSums, which fed-ts never does",
    ),
    "another method": ("fed-matrix", LinearSums((MATRIX,)), "this site has joined method 'fed-ts'"),
    "a temperature of 1e-6": ("fed-ts", Slope(1e6), "which no fit comes to"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_site_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], attack: tuple[str, Any, str]) -> None:
    spec, query, words = attack
    z, y = SAMPLES["anna"]
    np.savez(tmp_path / "anna.npz", logits=z, labels=y)
    plan = Plan(get_method("fed-ts"), K)
    (tmp_path / "first").write_bytes(pack_request(plan, Request(plan.federation, 1, Slope(1.0)), ["anna"]))
    other = replace(plan, method=get_method(spec))
    (tmp_path / "second").write_bytes(pack_request(other, Request(plan.federation, 2, query), ["anna"]))
    command = ["client", "reply", "PATH", str(tmp_path / "anna.npz"), "--out", str(tmp_path / "reply")]
    assert call([*command[:2], str(tmp_path / "first"), *command[3:]]) == 0
    state = tmp_path / "anna.state" / f"{plan.federation}.safetensors"
    before = state.read_bytes()
    (tmp_path / "reply").unlink()
    capsys.readouterr()
    assert call([*command[:2], str(tmp_path / "second"), *command[3:]]) == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split()) and "Traceback" not in said
    assert not (tmp_path / "reply").exists()
    assert state.read_bytes() == before or words == "which no fit comes to"  # which is noted
    third = pack_request(plan, Request(plan.federation, 2, Slope(1.1)), ["anna"])
    (tmp_path / "third").write_bytes(third)
    noted = call([*command[:2], str(tmp_path / "third"), *command[3:]]) == 2
    assert noted == (words == "which no fit comes to") == ("replies no more" in capsys.readouterr().err)


def call(command: list[str]) -> int:
    try:
        main(command)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_site_may_pool_if_it_says_so(tmp_path: Path) -> None:
    """Over files, between a server that says so and a site that allows it; the policy file says the same."""
    files.start(tmp_path, "val-ts", K, ["anna", "bert"])
    (tmp_path / "policy.toml").write_text("allow_pooling = true\nmin_count = 3\n")
    for site, given in {"anna": ["--allow-pooling"], "bert": ["--policy", str(tmp_path / "policy.toml")]}.items():
        z, y = SAMPLES[site]
        np.savez(tmp_path / f"{site}.npz", logits=z, labels=y)
        command = ["client", "reply", str(tmp_path / "request-0001.safetensors"), str(tmp_path / f"{site}.npz")]
        assert call(command) == 2 and call([*command, *given]) == 0
    files.receive(tmp_path, [tmp_path / f"{site}-0001.safetensors" for site in ("anna", "bert")])
    pooled = fedcal.calibrate({site: SAMPLES[site] for site in ("anna", "bert")}, "val-ts")
    assert same(Scaler.load(tmp_path / "scaler.safetensors"), pooled)


def sent(
    grid: LocalGrid, data: bytes, phase: str = "reply", bins: int = 0, model: ArrayRecord = MODEL_ARRAYS
) -> Message:
    """Send one node a message, as a malicious server would."""
    content = {REQUEST: record_of(data, phase=phase, model=fingerprint(model), bins=bins), MODEL: model}
    (reply,) = ask(grid, [Message(RecordDict(content), 1, MessageType.TRAIN)], 5.0)
    return reply


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_node_refuses(attack: tuple[str, Any, str]) -> None:
    spec, query, words = attack
    grid, plan = grid_of(make_app()), Plan(get_method("fed-ts"), K)
    assert not sent(grid, pack_request(plan, Request(plan.federation, 1, Slope(1.0)))).has_error()
    other = replace(plan, method=get_method(spec))
    reply = sent(grid, pack_request(other, Request(plan.federation, 2, query)))
    assert reply.has_error() and words in reply.error.reason


def test_a_node_measures_one_scaler_on_one_model() -> None:
    """In few bins; whatever is refused costs nothing, and what was measured is told again."""
    grid, plan = grid_of(make_app()), Plan(get_method("fed-ts"), K)
    scalers = [
        pack_scaler(plan, Scaler(plan.method, {"temperature": np.array(t).astype(float)}, K)) for t in (1.0, 2.0)
    ]
    many = sent(grid, scalers[0], "measure", 3_000_000)
    assert many.has_error() and "asks for 3000000 bins, where this site gives at most 100" in many.error.reason
    first, again = (sent(grid, scalers[0], "measure", 15).content[REPLY][DATA] for _ in range(2))
    assert first == again
    second = sent(grid, scalers[1], "measure", 15)
    assert second.has_error() and "has measured a scaler of this federation already" in second.error.reason
    other = ArrayRecord({"w": Array(np.ones(2, np.float32))})
    odd = sent(grid, scalers[0], "measure", 15, other)
    assert odd.has_error() and "another model than the one that this federation calibrates" in odd.error.reason


def test_a_model_in_another_form_is_another_model() -> None:
    """An array's bytes may hold more than the array: here, the second model's array, or the first one's."""
    values = np.zeros(1), np.zeros(2), np.ones(2)
    first, w, other = (Array(value) for value in values)

    def named(array: Array) -> bytes:
        return f"w {array.dtype} {tuple(array.shape)} ".encode() + array.data

    def longer(array: Array, more: bytes) -> Array:
        return Array(array.dtype, array.shape, array.stype, array.data + more)

    one = ArrayRecord({"first": longer(first, named(w)), "w": other})
    same = ArrayRecord({"first": first, "w": longer(w, named(other))})
    assert (from_record(one)["w"] == values[2]).all() and (from_record(same)["w"] == values[1]).all()
    assert fingerprint(one) != fingerprint(same)


@pytest.mark.parametrize("where", ["central", "local", "distributed"])
def test_a_node_measures_one_scaler_also_under_a_privacy_that_the_server_names(where: Any) -> None:
    """By a distributed one, a repeated request has new noise: it must still be about the same scaler."""
    pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")
    privacy = Privacy(1e9, where=where, nodes=10**6 if where == "distributed" else None)
    grid, plan = grid_of(make_app()), Plan(get_method("fed-ts"), K)
    scalers = [
        pack_scaler(plan, Scaler(plan.method, {"temperature": np.array(t).astype(float)}, K), privacy)
        for t in (1.0, 2.0)
    ]
    assert not any(sent(grid, scalers[0], "measure", 15).has_error() for _ in range(2))
    second = sent(grid, scalers[1], "measure", 15)
    assert second.has_error() and "has measured a scaler of this federation already" in second.error.reason


def test_a_node_that_was_asked_with_privacy_is_not_measured_without() -> None:
    grid, server = grid_of(make_app()), Server("fed-ts", K, privacy=Privacy(1.0))
    assert server.request is not None
    assert not sent(grid, pack_request(server.plan, server.request)).has_error()
    scaler = pack_scaler(server.plan, Scaler(server.plan.method, {"temperature": np.ones(())}, K))
    reply = sent(grid, scaler, "measure", 15)
    assert reply.has_error() and "takes part under differential privacy" in reply.error.reason


def test_a_node_of_few_samples_tells_nothing_of_them() -> None:
    grid, plan = grid_of(make_app(), **{"fedcal-min-count": 61}), Plan(get_method("fed-ts"), K)
    _, reply = unpack_reply(
        sent(grid, pack_request(plan, Request(plan.federation, 1, Slope(1.0)))).content[REPLY][DATA]
    )
    assert reply.n == 0 and not reply.content
    scaler = pack_scaler(plan, Scaler(plan.method, {"temperature": np.ones(()).astype(float)}, K))
    tensors, _ = unpack(sent(grid, scaler, "measure", 15).content[REPLY][DATA])
    assert all(int(tensors[f"{view}/counts"].sum()) == 0 for view in ("uncal", "local", "own"))


def test_a_nodes_policy_is_in_its_config(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text('{"methods": ["fed-bias"]}')
    plan = Plan(get_method("fed-ts"), K)
    request = pack_request(plan, Request(plan.federation, 1, Slope(1.0)))
    grid = grid_of(make_app(), **{"fedcal-policy": str(tmp_path / "policy.json")})
    assert "takes part in fed-bias only, and not in fed-ts" in sent(grid, request).error.reason
    pooling = replace(plan, method=get_method("val-ts"))
    grid = grid_of(make_app(), **{"fedcal-allow-pooling": True})
    assert not sent(grid, pack_request(pooling, Request(plan.federation, 1, START))).has_error()
    strict = make_app(policy=Policy(methods=("fed-bias",)))
    assert "takes part in fed-bias only" in sent(grid_of(strict), request).error.reason
