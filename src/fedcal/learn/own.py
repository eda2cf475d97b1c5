"""A user's own model: built by their function, tried on a few samples, and described for the engines.

The function is called with (shape, n_classes), the shape of one input and the number of classes, or without arguments. A
module itself will do too: then its weights are where training starts.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fedcal.base.arrays import as_array
from fedcal.base.checks import look_like_probs, warn_user
from fedcal.errors import FedCalError, said

Shape = tuple[int, ...]
Model = nn.Module | Callable[..., nn.Module]
OWN = re.compile(r"[A-Za-z_][\w.]{0,150}:[\w.<>]{1,100}")  # how a config names one: where its function is defined


@dataclass(frozen=True)
class Traits:
    """What an engine must know of a model."""

    random: bool  # it draws random numbers in training, as dropout does
    rowwise: bool  # in training, what it gives for a sample does not depend on the others of its batch

    def obstacle(self, device: str) -> str | None:
        """Why a fast engine cannot train it, or None.

        Args:
            device: "cpu" or "cuda".
        """
        if self.random:
            return "it draws random numbers in training (dropout?), which clients side by side could not repeat"
        if device == "cuda" and not self.rowwise:
            return "samples of a batch depend on each other (batch normalisation?), and batches are filled up there"
        return None


def is_own(name: str) -> bool:
    """Whether a config's `model` names a user's own, as MODULE:FUNCTION."""
    return OWN.fullmatch(name) is not None


def label_of(model: Model) -> str:
    """How a config names the model: MODULE:FUNCTION. It is never imported from there."""
    named = model if hasattr(model, "__qualname__") and not isinstance(model, nn.Module) else type(model)
    label = f"{named.__module__}:{named.__qualname__}"  # type: ignore[union-attr]
    return label if is_own(label) else "model:own"


def build_own(model: Model, name: str, shape: Shape, n_classes: int, rng: torch.Generator) -> nn.Module:
    """Build a user's model, with random numbers from `rng`; the global generator is left as it was.

    Args:
        model: a function that returns a module, or a module, which is copied.
        name: of the model, for messages.
        shape: of one input.
        n_classes: the number of classes.
        rng: for its first weights.

    Raises:
        FedCalError: the function fails, takes other arguments, or returns something else.
    """
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(rng.get_state())
        try:
            built: Any = (
                copy.deepcopy(model)
                if isinstance(model, nn.Module)
                else model(*_arguments(model, name, shape, n_classes))
            )
        except FedCalError:
            raise
        except Exception as error:
            raise FedCalError(f"model {name} cannot be built ({said(error)}): it gets {shape}, {n_classes}") from error
    if not isinstance(built, nn.Module):
        raise FedCalError(f"model {name} gives {type(built).__name__}, where an nn.Module is needed")
    if any(map(is_lazy, (*built.parameters(), *built.buffers()))):
        raise FedCalError(f"model {name} has lazy layers, whose sizes are not known yet: give them, such as nn.Linear")
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise FedCalError(f"model {name} has no parameters to train")
    if odd := [key for key, value in built.state_dict().items() if not isinstance(value, Tensor)]:
        raise FedCalError(f"model {name} keeps {odd[0]!r}, which is no tensor: only tensors can be averaged and saved")
    return built


def _arguments(model: Callable[..., Any], name: str, shape: Shape, n_classes: int) -> tuple[Any, ...]:
    if not callable(model):
        raise FedCalError(f"model must be a function that returns an nn.Module, not {type(model).__name__}")
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):  # a function in C has no signature
        return shape, n_classes
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.default is one.empty and one.kind in places]
    if len(needed) not in (0, 2):
        words = ", ".join(one.name for one in needed)
        raise FedCalError(f"model {name} takes ({words}): write it with (shape, n_classes), or without arguments")
    return (shape, n_classes) if needed else ()


def try_out(model: nn.Module, name: str, x: Tensor, y: Tensor, n_classes: int) -> Traits:
    """Try a model on a few samples, on the CPU; what it learns from that is thrown away.

    Args:
        model: as it was built.
        name: of the model, for messages.
        x: inputs, as clients hold them; a few are taken.
        y: their labels.
        n_classes: logits that it must give.

    Returns:
        What an engine must know of it.

    Raises:
        FedCalError: it cannot be copied, fails, or gives something other than logits.
    """
    try:
        trial = copy.deepcopy(model)
    except Exception as error:
        raise FedCalError(
            f"model {name} cannot be copied ({said(error)}): its parameters must be plain ones"
        ) from error
    x, y = x[:4], y[:4]
    about = f"on inputs of shape {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.no_grad():
                shown = trial.eval()(x)
            _check_logits(shown, name, len(x), n_classes)
            trial.train()
            before = torch.get_rng_state()
            logits = trial(x)
            random = not torch.equal(before, torch.get_rng_state())
            params = [parameter for parameter in trial.parameters() if parameter.requires_grad]
            loss = nn.functional.cross_entropy(logits, y)
            torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
        except FedCalError:
            raise
        except Exception as error:
            raise FedCalError(f"model {name} fails {about} ({said(error)})") from error
        return Traits(random, not random and _is_rowwise(trial, x, logits))


def _check_logits(logits: Any, name: str, n: int, n_classes: int) -> None:
    if not isinstance(logits, Tensor):
        raise FedCalError(f"model {name} gives {type(logits).__name__}, where a tensor of logits is needed")
    if tuple(logits.shape) != (n, n_classes):
        raise FedCalError(
            f"model {name} gives shape {tuple(logits.shape)} for {n} samples: {n_classes} classes need ({n}, {n_classes})"
        )
    if not logits.is_floating_point() or not logits.isfinite().all():
        raise FedCalError(f"model {name} gives {logits.dtype} that are not all finite: check its weights and inputs")
    if look_like_probs(as_array(logits)):
        warn_user(
            f"model {name} seems to give probabilities (none is negative, every row adds up to one): it is trained and "
            "calibrated as if they were logits; leave out its last softmax"
        )


def _is_rowwise(trial: nn.Module, x: Tensor, logits: Tensor) -> bool:
    """Whether samples alone get what they got beside others. Known layers that look across a batch need no trial."""
    half = len(x) // 2
    if not half or any(isinstance(module, _BatchNorm) for module in trial.modules()):
        return False
    try:
        with torch.no_grad():
            return torch.allclose(trial(x[:half]), logits[:half].detach(), rtol=1e-4, atol=1e-5)
    except Exception:  # it needs a batch of a certain size
        return False
