"""Model, data and training."""

from functools import cache

import torch
from flwr.app import Context
from torch import nn

from fedcal.data import Client, load, make_clients

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@cache
def hospitals() -> dict[str, Client]:
    """All four, from the embedded data; on real machines, each reads its own file here."""
    return {client.name: client for client in make_clients(load("heart"), partition="natural", cal_fraction=0.2)}


def hospital(context: Context) -> Client:
    """This node's: `name="va"` in its config, or (in simulation) by its partition."""
    config = context.node_config
    return hospitals()[str(config.get("name") or HOSPITALS[int(config["partition-id"]) % len(HOSPITALS)])]


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(22, 32), nn.ReLU(), nn.Linear(32, 2))


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int = 5) -> float:
    optimiser, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(())
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
    return loss.item()
