"""The scaler nets of all clients trained at once: faster than one by one, the same but for rounding.

A K-64-64-K net on a few hundred logits is all overhead: the stacked nets of a hundred clients take hardly longer than one.
Sums run in another order than in `fedcal.nets.train.train_scaler`, so results agree to rounding, not to the bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedcal.base.arrays import arrays, as_array, tensors
from fedcal.base.folds import folds
from fedcal.data.samples import Samples
from fedcal.methods.fedcal import FedCal
from fedcal.methods.fit import FitScaler
from fedcal.nets.mlp import Net, unflatten
from fedcal.nets.train import Adam, EarlyStopping
from fedcal.nets.training import Training
from fedcal.protocol import Reply, Server

ROWS = 1 << 12  # samples in a stack: what fits a core's cache


def stacked_round(server: Server, samples: Mapping[str, Samples], nets: dict[str, Net]) -> None:
    """A round of FedCal with all clients' nets in stacks.

    Args:
        server: of a FedCal method.
        samples: of the round's clients.
        nets: every client's last net; those of this round's clients are replaced.
    """
    method, request = server.plan.method, server.request
    assert isinstance(method, FedCal) and request is not None and isinstance(request.query, FitScaler)
    query, starts, remarks = request.query, [], []
    for name, pair in samples.items():
        stream = functools.partial(query.stream, *map(as_array, pair))
        start, notes = method.start_of(tensors(query.params), nets.get(name, {}), stream)
        starts.append(start)
        remarks.append(notes)
    trained = train_scalers(starts, method.apply, list(samples.values()), method.training)
    replies = {}
    for (name, (_, labels)), (params, steps), notes in zip(samples.items(), trained, remarks, strict=True):
        nets[name] = params
        replies[name] = Reply(arrays(params), len(labels), request.digest, {**notes, "steps": float(steps)})
    server.receive(replies, check=False)


def train_scalers(
    starts: Sequence[Net],
    apply: Callable[[Net, Tensor], Tensor],
    samples: Sequence[Samples],
    how: Training,
) -> list[tuple[Net, int]]:
    """`fedcal.nets.train.train_scaler` of each start on its samples."""
    done: list[tuple[Net, int]] = [(start, 0) for start in starts]
    ready = [i for i, (_, labels) in enumerate(samples) if len(labels) >= how.min_samples]
    ready.sort(key=lambda i: len(samples[i][1]))
    while ready:  # like sizes together, the largest first
        longest = len(samples[ready[-1]][1])
        count = max(1, ROWS // longest)
        ready, some = ready[:-count], ready[-count:]
        fits = _train_stack([starts[i] for i in some], apply, [samples[i] for i in some], how)
        for i, fit in zip(some, fits, strict=True):
            done[i] = fit
    return done


def _train_stack(
    starts: list[Net],
    apply: Callable[[Net, Tensor], Tensor],
    samples: list[Samples],
    how: Training,
) -> list[tuple[Net, int]]:
    """One stack: clients of fewer samples are filled up with rows of no weight."""
    n, k = max(len(labels) for _, labels in samples), samples[0][0].shape[1]
    x, y = torch.zeros(len(samples), n, k), torch.zeros(len(samples), n, dtype=torch.int64)
    weight, stop = torch.zeros(len(samples), n), torch.zeros(len(samples), n)
    for i, (logits, labels) in enumerate(samples):
        held = torch.from_numpy(folds(as_array(logits), as_array(labels)) == 0)
        x[i, : len(labels)], y[i, : len(labels)] = torch.as_tensor(logits), torch.as_tensor(labels)
        weight[i, : len(labels)] = ~held / (~held).sum()
        stop[i, : len(labels)] = held / held.sum()
    like = starts[0]
    flat = torch.stack([torch.cat([value.flatten() for value in start.values()]) for start in starts])
    decay = torch.cat([torch.full((v.numel(),), how.lr * how.weight_decay * (v.ndim > 1)) for v in like.values()])
    adam = Adam(flat, how.lr, decay)

    def losses(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.nn.functional.cross_entropy(apply(unflatten(flat, like), x), y, reduction="none")
        return each @ weight, each @ stop

    slope = torch.vmap(torch.func.grad(losses, has_aux=True))
    stopping = EarlyStopping(flat, how.patience)
    for _ in range(how.steps + 1):
        gradient, loss = slope(flat, x, y, weight, stop)
        if not stopping.goes_on(flat, loss):
            break
        adam.step(gradient.nan_to_num())  # also of nets that have stopped: nothing looks at them any more
    return [(unflatten(row, like), steps) for row, steps in zip(stopping.best, stopping.steps, strict=True)]
