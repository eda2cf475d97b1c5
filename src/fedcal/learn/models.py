"""The paper's models: plain functions that return modules. Weights are drawn from a generator given by the caller."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedcal.errors import FedCalError, check_known

Shape = tuple[int, ...]


def logistic(shape: Shape, n_classes: int) -> nn.Module:
    """Multinomial logistic regression: convex, so FedAvg's drift can be seen apart from everything else."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), n_classes))


def mlp(shape: Shape, n_classes: int) -> nn.Module:
    """Two hidden layers of 128."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, n_classes),
    )


class ConvPoolReLU(nn.Conv2d):
    """A convolution, 2×2 max-pooling, ReLU. Bias and ReLU come after the pooling, which leaves them a quarter of the work.

    One layer, so that fast.py can make one kernel of its end.
    """

    def forward(self, input: Tensor) -> Tensor:
        assert self.bias is not None
        out = nn.functional.max_pool2d(self._conv_forward(input, self.weight, None), 2)
        return torch.relu_(out + self.bias[:, None, None])


class Flatten(nn.Module):
    """Each sample in a row, channels last: as the fast engines have it in memory, so that nothing is copied."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1).flatten(1)


class NormReLU(nn.BatchNorm2d):
    """Batch normalisation, plus the shortcut if one is given, then ReLU; one layer for the same reason."""

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        out = super().forward(input)
        return torch.relu(out if shortcut is None else out + shortcut)


def cnn(shape: Shape, n_classes: int) -> nn.Module:
    """FedAvg's convolutional net (McMahan et al. 2017): two 5×5 convolutions with pooling, and a layer of 512."""
    channels, height, width = _image(shape, "cnn", least=4)
    return nn.Sequential(
        ConvPoolReLU(channels, 32, 5, padding=2), ConvPoolReLU(32, 64, 5, padding=2),
        Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(), nn.Linear(512, n_classes),
    )  # fmt: skip


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut; where the size changes, it subsamples and pads with zero channels."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), NormReLU(outside)
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), NormReLU(outside)
        self.stride, self.padding = stride, outside - inside

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.padding:
            shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.padding))
        return self.bn2(self.conv2(self.bn1(self.conv1(x))), shortcut)


def _resnet(n: int) -> Callable[[Shape, int], nn.Module]:
    def build(shape: Shape, n_classes: int) -> nn.Module:
        channels, _, _ = _image(shape, f"resnet{6 * n + 2}", least=8)
        widths = [16] * (n + 1) + [32] * n + [64] * n
        # In this order: layers draw their weights one after the other.
        stem = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), NormReLU(16)]
        blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, n_classes))

    build.__doc__ = (
        f"He et al.'s CIFAR ResNet of depth 6n + 2 = {6 * n + 2}: three stages of n blocks, 16, 32 and 64 wide."
    )
    return build


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "resnet14": _resnet(2),
    "resnet32": _resnet(5),
}


def build(name: str, shape: Shape, n_classes: int, rng: torch.Generator) -> nn.Module:
    """The model of this name for inputs of this shape, each layer initialised as PyTorch does it, with numbers from `rng`.

    The global generator is left as it was.
    """
    check_known("model", name, MODELS)
    with torch.random.fork_rng(devices=[]):  # modules draw from the global generator: lend them the caller's state
        torch.set_rng_state(rng.get_state())
        model = MODELS[name](shape, n_classes)
        rng.set_state(torch.get_rng_state())
    return model


def _image(shape: Shape, name: str, least: int) -> Shape:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise FedCalError(
            f"model {name} needs images of at least {least}×{least}, not inputs of shape {shape}: try mlp or logistic"
        )
    return shape
