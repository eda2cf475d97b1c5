"""FedCal (Algorithm 1): every client trains an order-preserving net on its logits; the server averages the nets.

The fields are the choices that the paper leaves open. The defaults are what measured best on development data: the
scaler's rounds run on the frozen final model, the one it will serve, and a client starts from the global net ("clients
are provided with the global scaler parameters as a baseline for local scaler training"). Starting from its own net, as
Algorithm 1 prints it, the others' nets never reach it: matching moves no unit while all descend from one start.
`LITERAL` is the algorithm as printed; docs/paper.md has the figures of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedcal.base.arrays import Array, Params, arrays, tensor, tensors, with_tensors
from fedcal.methods.method import ROUNDS, Averaged, Draw, Update, mean, option
from fedcal.nets.training import Training

if TYPE_CHECKING:
    from fedcal.nets.mlp import Net


@dataclass(frozen=True)
class FedCal(Averaged):
    name: str = "fedcal"
    summary: str = "average of the clients' order-preserving nets"
    rounds: int = option(30, ROUNDS, low=0)
    logits_of: Literal["local", "received"] = option(
        "received",
        "interleaved: fit on logits of the client's locally trained model, or of the model that it received.",
    )
    hidden: int = option(64, "Units of a hidden layer of the net.", low=1, high=4096)
    net: Literal["raw", "sorted", "plain"] = option(
        "sorted", "An order-preserving net on raw or on sorted logits, or one that need not preserve order (plain)."
    )
    start: Literal["matched", "own", "global"] = option(
        "global",
        "Where a client's training starts: its own net, matched to the global one or as it is, or the global net.",
    )
    shared_init: bool = option(True, "All clients start from the server's first net; else each draws its own.")
    weights: Literal["equal", "samples"] = option("equal", "Weights of the average of the clients' nets.")
    lr: float = option(Training.lr, "Adam's learning rate.", above=0)
    steps: int = option(Training.steps, "Largest number of Adam steps per round.", low=0)
    weight_decay: float = option(Training.weight_decay, "Weight decay of the net.", low=0)
    patience: int = option(Training.patience, "Stop after this many steps without a lower loss.", low=1)
    min_samples: int = option(Training.min_samples, "Clients with fewer samples do not train.", low=2)

    @property
    def remembers(self) -> bool:
        return self.start != "global"

    @property
    def leaves(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - it depends on an option
        return f"the weights of a K-H-H-K net (H = {self.hidden})"

    @property
    def training(self) -> Training:
        return Training(self.lr, self.steps, self.weight_decay, self.patience, self.min_samples)

    def init(self, n_classes: int, draw: Draw) -> Params:
        from fedcal.nets.mlp import init_mlp

        return arrays(init_mlp(n_classes, self.hidden, draw()))

    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        z, y = tensor(logits), tensor(labels)
        from fedcal.nets.train import train_scaler

        start, notes = self.start_of(tensors(params), tensors(memory), draw)
        net, steps = train_scaler(start, self.apply, z, y, self.training)  # line 20
        trained = arrays(net)
        return Update(trained, len(labels), trained, {**notes, "steps": float(steps)})

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return mean(updates, weighted=self.weights == "samples")  # line 8

    @with_tensors
    def apply(self, params: Any, logits: Any) -> Any:
        from fedcal.nets.mlp import order_preserving, plain_mlp

        if self.net == "plain":
            return plain_mlp(params, logits)
        return order_preserving(params, logits, sorted_input=self.net == "sorted")

    def start_of(self, params: Net, memory: Net, draw: Draw) -> tuple[Net, dict[str, float]]:
        """Lines 12–13: π_c ← M(π_c) with M ← WeightMatching(π̄, π_c); `memory` is the client's last net π_c."""
        from fedcal.nets.matching import match, permute, permuted_share
        from fedcal.nets.mlp import init_mlp

        if self.start == "global":
            return params, {}
        last = memory or (params if self.shared_init else init_mlp(params["w1"].shape[1], self.hidden, draw()))
        if self.start == "own":
            return last, {}
        perms = match(last, to=params)
        return permute(last, perms), {"permuted_share": permuted_share(perms)}


LITERAL: dict[str, Any] = {
    "schedule": "interleaved",
    "rounds": 0,
    "logits_of": "local",
    "fit_on": "train",
    "net": "raw",
    "start": "matched",
}
