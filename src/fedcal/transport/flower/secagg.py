"""Secure aggregation (SecAgg+) of an additive method's sums on a frozen model: the server sees their total and nothing else.

Flower has SecAgg+ for its legacy API only, so that this is a run of its own: `secure_client` on the nodes, `secure_fit` on
the server. Every question is one round of the protocol: four messages a node.

The protocol adds integers. A tensor is divided by a scale that all nodes share, clipped to ±1 and rounded at random to one of
2²⁶ steps; each node says, in the same masked vector, whether it was clipped, and then the question is asked again with a
larger scale. So a total is wrong by rounding alone: at most nodes · scale · 2⁻²⁵ in every coordinate, and by
√nodes · scale · 2⁻²⁶ as a rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from fedcal.base.logits import Params
from fedcal.data.samples import Samples
from fedcal.errors import FedCalError
from fedcal.methods import get_method, method_from_json, method_to_json
from fedcal.methods.fedcal_plus import FedCalPlus
from fedcal.methods.method import Additive, Method
from fedcal.protocol.privacy import last_question, stopped
from fedcal.protocol.rounds import Calibration, advance, begin
from fedcal.transport.files.server import stand_in
from fedcal.transport.flower.records import to_record

STEPS = 2**26  # of a value's range; 64 nodes fit into the protocol's 2³²
MOST_NODES = 2**32 // STEPS
SETTLED = 1e-6  # a step of a parameter that is no longer taken
FIRST, LARGER = 64.0, 8.0  # a tensor's scale at first, and its growth where some node was clipped


class SecureClient(NumPyClient):
    """A node's half: the answer, scaled."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        about = json.loads(str(config["fedcal"]))
        method = method_from_json(about)
        asked = {
            name: torch.from_numpy(np.array(value)) for name, value in zip(about["names"], parameters, strict=True)
        }
        content = method.client(asked, {}, *self.samples, torch.Generator()).content
        scaled = {name: content[name].double() / scale for name, scale in about["scales"].items()}
        clipped = [float((value.abs() > 1).any()) for value in scaled.values()]
        flat = torch.cat([value.flatten() for value in scaled.values()]).clamp(-1, 1)
        return [flat.numpy(), np.array(clipped)], 1, {}


def secure_client(samples: Callable[[Context], Samples]) -> ClientApp:
    """The ClientApp; `samples(context)` gives the frozen model's logits in float64, and the labels."""
    return ClientApp(client_fn=lambda context: SecureClient(samples(context)).to_client(), mods=[secaggplus_mod])


class _Ask(FedAvg):
    """Flower's strategy of one round: the question goes to all nodes, their mean comes back."""

    def __init__(self, proxies: list[GridClientProxy], config: dict[str, Any]) -> None:
        super().__init__()
        self.proxies, self.config, self.mean = proxies, config, list[np.ndarray]()

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[tuple[Any, FitIns]]:
        return [(proxy, FitIns(parameters, self.config)) for proxy in self.proxies]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        self.mean, self.answered = parameters_to_ndarrays(results[0][1].parameters), len(results)
        return None, {}


def secure_fit(
    grid: Grid, method: str, n_classes: int, *, timeout: float = 300.0, **options: Any
) -> tuple[Calibration, dict[str, Any]]:
    """Fit over all nodes of the grid. Returns the calibration, and what it took: rounds, nodes, the bound of the error."""
    chosen = get_method(method, **options)
    nodes = sorted(grid.get_node_ids())
    if not isinstance(chosen, Additive):
        raise FedCalError(
            f"{chosen.name} does not only add: choose fed-ts, fed-bias or another that does (`fedcal methods`)"
        )
    if isinstance(chosen, FedCalPlus):
        raise FedCalError("fedcal-plus builds on what its nodes kept, which this protocol's do not: choose fed-bias")
    if not 3 <= len(nodes) <= MOST_NODES:
        raise FedCalError(f"secure aggregation needs 3 to {MOST_NODES} nodes, not {len(nodes)}")
    state, scales, rounds = begin(chosen, n_classes, 0), dict[str, float](), 0
    worst = 0.0
    while not state.done:
        like = stand_in(chosen, n_classes, [state.question])
        mine = {name: scales.get(name, FIRST) for name in sorted(like)}
        rounds += 1
        total, clipped = _round(grid, nodes, chosen, state.question, mine, like, rounds, timeout)
        if clipped:
            scales |= {name: mine[name] * LARGER for name in clipped}
            continue
        worst = max(worst, max(len(nodes) * scale * 2 / STEPS for scale in mine.values()))
        before = state.question
        advance(state, total)
        state.rounds += 1
        if not state.done and _settled(chosen, before, state.question):
            state.params, state.program = stopped(chosen, state.question), None
    return state, {"rounds": state.rounds, "protocol_rounds": rounds, "nodes": len(nodes), "error_bound": worst}


def _settled(method: Method, before: Params, question: Params) -> bool:
    """Whether the fit moves by less than rounding does: its solver, which wants ten digits, would go on."""
    name = last_question(method)
    return (
        name in before and name in question and torch.allclose(before[name], question[name], rtol=SETTLED, atol=SETTLED)
    )


def _round(
    grid: Grid, nodes: list[int], method: Method, question: Params, scales: dict[str, float], like: Params,
    number: int, timeout: float,
) -> tuple[Params, list[str]]:  # fmt: skip
    """One question: the total of the answers, and the tensors that some node had to clip."""
    about = {**method_to_json(method), "names": list(question), "scales": scales}
    proxies = [GridClientProxy(node, grid, 0) for node in nodes]
    strategy = _Ask(proxies, {"fedcal": json.dumps(about)})
    context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), strategy=strategy)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number})
    arrays = to_record({str(i): value for i, value in enumerate(question.values())})
    context.state.array_records[MAIN_PARAMS_RECORD] = arrays
    SecAggPlusWorkflow(
        1.0, 0.5, max_weight=1.0, clipping_range=1.0, quantization_range=STEPS, modulus_range=2**32, timeout=timeout
    )(grid, context)
    if not strategy.mean:
        raise FedCalError(f"secure aggregation round {number} came to nothing: too few nodes answered")
    if strategy.answered < len(nodes):
        raise FedCalError(
            f"{len(nodes) - strategy.answered} nodes fell away in round {number}: start again without them"
        )
    flat, flags = (torch.from_numpy(part) * len(nodes) for part in strategy.mean)
    names = list(scales)
    parts = flat.split([like[n].numel() for n in names])
    total = {n: part.view(like[n].shape) * scales[n] for n, part in zip(names, parts, strict=True)}
    return total, [n for n, flag in zip(names, flags.tolist(), strict=True) if flag > 0.5]
