"""Secure aggregation (SecAgg+) of an additive method's sums on a frozen model: the server sees their total and nothing else.

Flower has SecAgg+ for its legacy API only, so that this is a run of its own: `secure_client` on the nodes, `secure_fit` on
the server. Every request is one round of SecAgg+: four messages per node.

SecAgg+ adds integers. A tensor is divided by a scale that all nodes share, clipped to ±1 and rounded at random to one of
2²⁶ steps. Each node says, in the same masked vector, whether it was clipped; then the request is made again with a larger
scale. So a total is wrong by rounding alone: at most nodes · scale · 2⁻²⁵ in every coordinate, and by
√nodes · scale · 2⁻²⁶ as a rule.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
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
from fedcal.errors import FedCalError, FedCalWarning
from fedcal.methods import Method, get_method
from fedcal.protocol import Client, Reply, Request, Scaler, Server
from fedcal.protocol.checks import example_reply
from fedcal.protocol.wire import pack_request, unpack_request

STEPS = 2**26  # of a value's range; 64 nodes fit into SecAgg+'s 2³²
MOST_NODES = 2**32 // STEPS
SETTLED = 1e-6  # a change of a parameter that is too small to go on
FIRST, LARGER = 64.0, 8.0  # a tensor's scale at first, and its growth where some node was clipped


class SecureClient(NumPyClient):
    """A node: its reply, scaled."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        plan, request = unpack_request(config["request"])
        content = Client(plan.method, *self.samples).reply(request).content
        content = content or {  # no samples that the request is about
            name: torch.zeros_like(value)
            for name, value in example_reply(plan.method, plan.n_classes, request.query).items()
        }
        scales = json.loads(str(config["scales"]))
        scaled = {name: content[name].double() / scale for name, scale in scales.items()}
        clipped = [float((value.abs() > 1).any()) for value in scaled.values()]
        flat = torch.cat([value.flatten() for value in scaled.values()]).clamp(-1, 1)
        return [flat.numpy(), np.array(clipped)], 1, {}


def secure_client(samples: Callable[[Context], Samples]) -> ClientApp:
    """Make the nodes' ClientApp.

    Args:
        samples: gives the frozen model's logits and the labels of a node.

    Returns:
        The app.
    """
    return ClientApp(client_fn=lambda context: SecureClient(samples(context)).to_client(), mods=[secaggplus_mod])


def secure_fit(
    grid: Grid, method: str, n_classes: int, *, timeout: float = 300.0, **options: Any
) -> tuple[Scaler, dict[str, Any]]:
    """Fit over all nodes of a grid.

    Args:
        grid: of the run.
        method: an additive method, perhaps with options.
        n_classes: K of the logits.
        timeout: seconds that nodes have for a message.
        options: the method's options as Python values.

    Returns:
        The scaler, and what it took: rounds, nodes, a bound of the error.

    Raises:
        FedCalError: where the method does not only add, nodes are too few or too many, or some fall away.
    """
    chosen = get_method(method, **options)
    nodes = sorted(grid.get_node_ids())
    if not chosen.additive:
        raise FedCalError(
            f"{chosen.name} does not only add: choose fed-ts, fed-bias or another that does (`fedcal methods`)"
        )
    if not 3 <= len(nodes) <= MOST_NODES:
        raise FedCalError(f"secure aggregation needs 3 to {MOST_NODES} nodes, not {len(nodes)}")
    server, scales, rounds, worst = Server(chosen, n_classes), dict[str, float](), 0, 0.0
    while (request := server.request) is not None:
        mine = {name: scales.get(name, FIRST) for name in sorted(server.example)}
        rounds += 1
        total, clipped = _round(grid, nodes, server, request, mine, rounds, timeout)
        if clipped:
            scales |= {name: mine[name] * LARGER for name in clipped}
            continue
        worst = max(worst, max(len(nodes) * scale * 2 / STEPS for scale in mine.values()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedCalWarning)  # rounding keeps a solver from its last digits
            server.receive({"all nodes": Reply(total, 0, request.digest, clients=len(nodes))}, check=False)
        if server.request is not None and _settled(chosen, request, server.request):
            server.fit.stop()
    about = {"rounds": server.ledger.rounds, "protocol_rounds": rounds, "nodes": len(nodes), "error_bound": worst}
    return server.scaler, about


def _settled(method: Method, before: Request, after: Request) -> bool:
    """Whether the fit moves by less than rounding does: its solver, which wants ten digits, would go on."""
    old, new = method.params_from(before.query), method.params_from(after.query)
    return bool(old) and all(
        name in new and torch.allclose(value, new[name], rtol=SETTLED, atol=SETTLED) for name, value in old.items()
    )


def _round(
    grid: Grid,
    nodes: list[int],
    server: Server,
    request: Request,
    scales: dict[str, float],
    number: int,
    timeout: float,
) -> tuple[Params, list[str]]:
    """The total of the replies to a request, and the tensors that some node had to clip."""
    sent = {"request": pack_request(server.plan, request), "scales": json.dumps(scales)}
    strategy = _Ask([GridClientProxy(node, grid, 0) for node in nodes], sent)
    context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), strategy=strategy)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    SecAggPlusWorkflow(
        1.0, 0.5, max_weight=1.0, clipping_range=1.0, quantization_range=STEPS, modulus_range=2**32, timeout=timeout
    )(grid, context)
    if not strategy.mean:
        raise FedCalError(f"secure aggregation round {number} came to nothing: too few nodes replied")
    if strategy.replied < len(nodes):
        raise FedCalError(
            f"{len(nodes) - strategy.replied} nodes fell away in round {number}: start again without them"
        )
    flat, flags = (torch.from_numpy(part) * len(nodes) for part in strategy.mean)
    names, like = list(scales), server.example
    parts = flat.split([like[n].numel() for n in names])
    total = {n: part.view(like[n].shape) * scales[n] for n, part in zip(names, parts, strict=True)}
    return total, [n for n, flag in zip(names, flags.tolist(), strict=True) if flag > 0.5]


class _Ask(FedAvg):
    """Flower's strategy of one round: the request goes to all nodes, the mean of their replies comes back."""

    def __init__(self, proxies: list[GridClientProxy], config: dict[str, Any]) -> None:
        super().__init__()
        self.proxies, self.config, self.mean = proxies, config, list[np.ndarray]()

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[tuple[Any, FitIns]]:
        return [(proxy, FitIns(parameters, self.config)) for proxy in self.proxies]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        self.mean, self.replied = parameters_to_ndarrays(results[0][1].parameters), len(results)
        return None, {}
