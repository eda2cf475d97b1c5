"""Models and data of a user's own, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

VOCABULARY = 20


class Transformer(nn.Module):
    """One transformer block over token ids: embedding, attention, LayerNorm, and a mean over the tokens."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.position = nn.Parameter(torch.randn(shape[0], 8) / 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, n_classes)
        self.unused = nn.Parameter(torch.ones(3))  # a parameter that no sample reaches

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.block(self.embedding(tokens) + self.position).mean(1)))


def with_dropout(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return Transformer(shape, n_classes, dropout=0.3)


def with_batch_norm(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_classes))


class Tied(nn.Module):
    """Embedding and output share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, VOCABULARY)
        self.out = nn.Linear(VOCABULARY, VOCABULARY)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embedding(tokens).mean(1))[:, :3]


def layer_norm_net(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, n_classes))


def sentences(n: int = 240, length: int = 6, seed: int = 0) -> dict[str, Any]:
    """Token ids whose class is which third of the vocabulary is the most frequent; three natural clients."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    tokens = np.where(rng.random((n, length)) < 0.6, 6 * y[:, None], 0) + rng.integers(7, size=(n, length))
    return {"x": tokens % VOCABULARY, "y": y, "client": np.array(["north", "south", "west"])[rng.integers(3, size=n)]}


def patients(n: int = 300, seed: int = 0) -> dict[str, Any]:
    """A table of five findings, two named classes, and four hospitals of different sizes and prevalences."""
    rng = np.random.default_rng(seed)
    hospital = rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])
    x = rng.normal(loc=100, scale=30, size=(n, 5))
    score = (x[:, 0] - x[:, 1]) / 10 + hospital - 1.5
    y = np.where(score + rng.logistic(size=n) > 0, "ill", "healthy")
    return {"x": x, "y": y, "client": np.array(["a", "b", "c", "d"])[hospital]}
