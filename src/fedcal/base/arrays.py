"""Arrays of NumPy, and the few functions that take PyTorch's tensors as well.

Clients, messages, fits from sums and metrics work on NumPy arrays: a node's process then starts without PyTorch, which takes
longer to import than a reply takes to compute. PyTorch is where it is needed: models, nets, and scalers that are served or
trained through. What turns logits into calibrated logits is written once, for both: `namespace(x)` is NumPy or PyTorch,
whose functions mostly have the same names; the few that differ are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcal.base.threads import load_torch

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
Params = dict[str, Array]


def is_array(values: Any) -> bool:
    """Whether this is NumPy's array or number; the functions below take anything else for a tensor."""
    return isinstance(values, np.ndarray | np.generic)


def namespace(x: Any) -> Any:
    """NumPy for an array, PyTorch for a tensor."""
    if is_array(x):
        return np
    import torch

    return torch


def tracing(x: Any) -> bool:
    """Whether PyTorch is tracing a graph (torch.export, ONNX, torch.compile), which cannot branch on values."""
    if is_array(x):
        return False
    import torch

    return torch.compiler.is_compiling()


# --- from one to the other -----------------------------------------------------------------------------------------------


def as_array(values: Any) -> Array:
    """An array of whatever holds numbers: a tensor on any device, a list, an array. No copy where none is needed."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        bfloat = str(values.dtype) == "torch.bfloat16"  # which NumPy does not have
        return (values.float() if bfloat else values).numpy()
    return np.asarray(values)


def arrays(params: Mapping[str, Any]) -> Params:
    """Tensors as arrays that share their memory."""
    return {name: as_array(value) for name, value in params.items()}


def tensor(array: Array) -> Tensor:
    """An array as a tensor, which shares its memory where it can."""
    return load_torch().from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def tensors(params: Mapping[str, Array]) -> dict[str, Tensor]:
    """Arrays as tensors."""
    return {name: tensor(value) for name, value in params.items()}


def with_tensors(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Let `apply(self, params, logits)`, which needs PyTorch, take arrays too: it then returns an array."""

    @wraps(apply)
    def either(self: Any, params: Any, logits: Any) -> Any:
        if not isinstance(logits, np.ndarray):
            return apply(self, params, logits)
        with load_torch().no_grad():
            return apply(self, tensors(params), tensor(logits)).numpy()

    return either


# --- functions of both ---------------------------------------------------------------------------------------------------


def copy_of(x: Any) -> Any:
    """A copy with its own memory."""
    return x.copy(order="K") if is_array(x) else x.clone()


def double(x: Any) -> Any:
    """The same numbers in float64."""
    return x.astype(np.float64, copy=False) if is_array(x) else x.double()


def take(x: Any, index: Any) -> Any:
    """x[i, index[i, j]], for every row i."""
    return np.take_along_axis(x, index, 1) if is_array(x) else x.gather(1, index)


def put(x: Any, index: Any, values: Any) -> Any:
    """A copy of x with values (an array, or a number) at x[i, index[i, j]]."""
    if not is_array(x):
        return x.scatter(1, index, values)
    x = x.copy(order="K")
    np.put_along_axis(x, index, values, 1)
    return x


def sum_of(parts: Iterable[Any]) -> Any:
    """Add up arrays (or tensors) of one shape."""
    first, *others = parts
    for other in others:
        first = first + other
    return first


def falling(x: Any) -> tuple[Any, Any]:
    """Each row in falling order, equal ones as they came; and where each number came from."""
    return _in_order(x, descending=True)


def rising(x: Any) -> tuple[Any, Any]:
    """Each row in rising order, equal ones as they came; and where each number came from."""
    return _in_order(x, descending=False)


def _in_order(x: Any, descending: bool) -> tuple[Any, Any]:
    if not is_array(x):
        return x.sort(dim=1, descending=descending, stable=True)
    order = np.argsort(-x if descending else x, axis=1, kind="stable")
    return np.take_along_axis(x, order, 1), order


def logsumexp(x: Any, axis: int) -> Any:
    """log Σ eˣ along an axis."""
    if not is_array(x):
        if not tracing(x):
            return x.logsumexp(axis)
        top = x.amax(axis, keepdim=True)  # onnxruntime's own gave NaN for some large values
        return (x - top).exp().sum(axis).log() + top.squeeze(axis)
    top = x.max(axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis)) + top.squeeze(axis)


def log_softmax(x: Any, axis: int) -> Any:
    """x − log Σ eˣ along an axis."""
    if not is_array(x):
        return x.log_softmax(axis)
    off = x - x.max(axis, keepdims=True)
    off -= np.log(np.exp(off).sum(axis, keepdims=True))
    return off


def softmax(x: Any, axis: int) -> Any:
    """eˣ / Σ eˣ along an axis."""
    if not is_array(x):
        return x.softmax(axis)
    p = np.exp(x - x.max(axis, keepdims=True))
    p /= p.sum(axis, keepdims=True)
    return p


def sigmoid(x: Any) -> Any:
    """1 / (1 + e⁻ˣ)."""
    if not is_array(x):
        return x.sigmoid()
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1 + small)


def softplus(x: Any) -> Any:
    """log(1 + eˣ)."""
    if not is_array(x) and not tracing(x):
        return namespace(x).nn.functional.softplus(x)
    xp = namespace(x)  # onnxruntime has none in float64
    return xp.clip(x, 0, None) + xp.log1p(xp.exp(-xp.abs(x)))
