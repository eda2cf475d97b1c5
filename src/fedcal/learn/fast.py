"""Many clients' local training at once on one GPU: the mathematics of local.py, several times faster.

A step of a small net is a few hundred kernels that each leave most of a large GPU idle, and launching them one by one
from Python takes longer than running them. So a client gets a *slot*: its own copy of the model, its own stream, and
its training step recorded once as a CUDA graph. Several slots run side by side, and the jobs of a round (of several
federations, if given) are dealt to them, longest first.

The last batch of an epoch is smaller. Graphs have fixed shapes, so it is filled up with rows of label -100, which
`cross_entropy` leaves out, and so does batch_norm.py, for the one layer that looks across rows.

What a small net's step spends most of its time on is moving activations: batch_norm.py and pool.py fuse what can be fused.
"""

# pyright: reportPrivateImportUsage=false
# (PyTorch's own optimisers use the _foreach functions too)

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedcal.learn.batch_norm import norm_relu
from fedcal.learn.local import SGD, Job, State, Trained, descend
from fedcal.learn.models import ConvPoolReLU, NormReLU
from fedcal.learn.pool import pool_relu

Precision = Literal["fp32", "tf32", "bf16"]
IGNORED = -100  # the label of a row that only fills a batch up: cross_entropy's ignore_index


class Engine:
    """Slots for the clients of a round; `train` is `local.train_in_turn` on all of them at once."""

    def __init__(
        self,
        model: nn.Module,
        shape: tuple[int, ...],
        how: SGD,
        precision: Precision,
        slots: int = 5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.how = how
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
        torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True  # the fastest that repeats itself
        self.slots = [Slot(model, shape, how, precision, dtype) for _ in range(slots)]
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn

    def train(self, jobs: list[Job]) -> list[Trained]:
        """Train every job's client; the order in which they share the slots changes nothing."""
        here, device = torch.cuda.current_stream(), jobs[0].x.device
        orders = [torch.from_numpy(job.rng.permutation(len(job.y))) for job in jobs for _ in range(self.how.epochs)]
        # One copy from pinned memory: a copy from ordinary memory would wait for everything before it.
        rows = torch.cat(orders).pin_memory().to(device, non_blocking=True).split([len(order) for order in orders])
        work: list[list[Callable[[], Iterator[None]]]] = [[] for _ in self.slots]
        load = [0] * len(self.slots)
        outcomes: list[dict[str, Any]] = [{} for _ in jobs]
        for i in sorted(range(len(jobs)), key=lambda i: -len(jobs[i].y)):
            k = load.index(min(load))
            load[k] += -(-len(jobs[i].y) // self.how.batch_size)
            mine = rows[i * self.how.epochs : (i + 1) * self.how.epochs]
            work[k].append(lambda i=i, k=k, mine=mine: self.slots[k].run(jobs[i], mine, outcomes[i]))
        for slot in self.slots:
            slot.stream.wait_stream(here)
        # Step by step in turn: a stream's queue is finite, and filling one first would leave the others idle.
        active = [(slot, _chain(jobs_of)) for slot, jobs_of in zip(self.slots, work, strict=True) if jobs_of]
        while active:
            for slot, steps in list(active):
                torch.cuda.set_stream(slot.stream)
                if next(steps, "done") == "done":
                    active.remove((slot, steps))
        torch.cuda.set_stream(here)
        for slot in self.slots:
            here.wait_stream(slot.stream)
        losses = torch.stack([found["total"] for found in outcomes]).tolist()
        logits = _to_cpu([found["before"] for found in outcomes] + [found["after"] for found in outcomes])
        before, after = logits[: len(jobs)], logits[len(jobs) :]
        return [
            Trained(found["state"], loss / len(job.y), *looks)
            for job, found, loss, *looks in zip(jobs, outcomes, losses, before, after, strict=True)
        ]


def _to_cpu(found: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Everything in one copy: each one waits for the GPU."""
    values = [value for one in found for value in one.values()]
    if not values:
        return found
    flat = torch.cat([value.flatten() for value in values]).cpu().split([value.numel() for value in values])
    parts = iter([part.view(value.shape) for part, value in zip(flat, values, strict=True)])
    return [{name: next(parts) for name in one} for one in found]


class Slot:
    """A client's place on the GPU: a model, a stream, and the step as recorded graphs."""

    def __init__(
        self, model: nn.Module, shape: tuple[int, ...], how: SGD, precision: Precision, dtype: torch.dtype
    ) -> None:
        device = next(model.parameters()).device
        self.how, self.precision, self.stream = how, precision, torch.cuda.Stream()
        self.model = copy.deepcopy(model)
        layout = torch.channels_last if len(shape) == 3 else torch.contiguous_format
        self.model.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        self.params: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.velocity = [torch.zeros_like(p) for p in self.params] if how.momentum else []
        self.received = [p.detach().clone() for p in self.params] if how.prox_mu else []
        self.x = torch.zeros(how.batch_size, *shape, dtype=dtype, device=device).to(memory_format=layout)
        self.y = torch.zeros(how.batch_size, dtype=torch.int64, device=device)
        self.total = torch.zeros((), device=device)
        self.rows = torch.ones(1, dtype=torch.int32, device=device)
        norms = [m for m in self.model.modules() if isinstance(m, NormReLU)]
        pools = [m for m in self.model.modules() if isinstance(m, ConvPoolReLU)]
        self.counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
        for norm in norms:
            norm.forward = lambda input, shortcut=None, norm=norm: norm_relu(norm, input, shortcut, self.rows)
        for pool in pools:
            pool.forward = lambda input, pool=pool: pool_relu(nn.Conv2d.forward(pool, input))
        self.step = self._record(self._train)
        for module in (*norms, *pools):
            del module.forward
        self.model.eval()
        self.logits = torch.empty(0)
        self.look = self._record(self._look)

    def run(self, job: Job, orders: tuple[Tensor, ...], found: dict[str, Any]) -> Iterator[None]:
        """A job, a pause after each step; what comes of it is put into `found`."""
        size = self.how.batch_size
        source, place = job.x, self.x
        if place.ndim == 4:
            source, place = source.movedim(1, -1), place.movedim(1, -1)  # as they lie in memory: channels last
        self._receive(job.received)
        found["before"], found["after"] = {}, {}
        yield from self._look_at(job.before, found["before"])
        for order in orders:
            self.total.zero_()
            for batch in order.split(size):
                n = len(batch)
                torch.index_select(source, 0, batch, out=place[:n])
                torch.index_select(job.y, 0, batch, out=self.y[:n])
                if n < size:
                    self.y[n:].fill_(IGNORED)
                self.step.replay()
                yield
        yield from self._look_at(job.after, found["after"])
        found["total"] = self.total.clone()
        found["state"] = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _receive(self, state: State) -> None:
        mine = self.model.state_dict()
        torch._foreach_copy_([mine[name] for name in state], list(state.values()))
        if self.received:
            torch._foreach_copy_(self.received, self.params)
        if self.velocity:
            torch._foreach_zero_(self.velocity)

    def _look_at(self, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> Iterator[None]:
        for name, x in wanted.items():
            out = []
            for part in x.split(self.how.batch_size):
                self.x[: len(part)].copy_(part)
                self.look.replay()
                out.append(self.logits[: len(part)].clone())
                yield
            found[name] = torch.cat(out) if out else self.logits[:0].clone()

    def _train(self) -> None:
        autocast = torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)
        self.model.train()
        self.rows.copy_((self.y != IGNORED).sum())
        if self.counters:
            torch._foreach_add_(self.counters, 1)
        with autocast:
            loss = nn.functional.cross_entropy(self.model(self.x), self.y, ignore_index=IGNORED)
        gradients = list(torch.autograd.grad(loss, self.params, allow_unused=True, materialize_grads=True))
        descend(self.params, gradients, self.velocity, self.received, self.how)
        self.total.add_(loss.detach() * self.rows[0])

    @torch.no_grad()
    def _look(self) -> None:
        self.logits = self.model(self.x)

    def _record(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The graph of a step, after a few ordinary ones in which libraries choose their algorithms."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            step()
        return graph


def _chain(jobs: list[Callable[[], Iterator[None]]]) -> Iterator[None]:
    for start in jobs:
        yield from start()
