"""Several clients at once on a CPU: the mathematics of local.py; convolutional nets about twice as fast
(benchmarks/simulators.py).

- Clients train side by side, one thread each. A round's work is dealt out whole, nobody waits for a neighbour in the middle
  of a step; and since no sum is split between threads, their number does not change a bit of the result.
- Tensors are channels-last: convolutions and pooling then run along the channels.
- A batch goes through the net in pieces whose activations are small enough to be held on to: taking fresh memory from the
  system for every tensor costs thousands of page faults per step. The pieces' gradients add up to the batch's. Batch
  normalisation looks across the batch, so nets with it take it whole; for them glibc is told to keep what is freed.
- Where a thread has no client left, it helps the others: the pieces of a batch are then shared out. They are added up in the
  same order whoever computed them.
"""

# pyright: reportPrivateImportUsage=false
# (PyTorch's own optimisers use the _foreach functions too)

from __future__ import annotations

import copy
import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from fedcal.learn.local import SGD, Job, Trained, descend, failing_as_one_line, predict

PIECE = 128  # samples that go through a net at once, at most
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # glibc's names for what mallopt sets


def pays(model: nn.Module) -> bool:
    """Whether the net gains: a dense one is too small, and has no channels."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def keep_memory() -> None:
    """Have glibc keep freed memory for the next tensor, and grow by 256 MiB at a time. Elsewhere: nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        for option, value in ((TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 256 << 20), (MMAP_MAX, 0)):
            mallopt(option, value)


class Engine:
    """`train` is `local.train_in_turn` on `threads` clients at a time; a model that is not `rowwise` gets whole batches."""

    def __init__(self, model: nn.Module, how: SGD, threads: int, rowwise: bool = True) -> None:
        self.how, self.threads = how, threads
        self.idle: SimpleQueue[nn.Module] = SimpleQueue()  # a copy of the model for each thread
        for _ in range(threads):
            self.idle.put(copy.deepcopy(model).to(memory_format=torch.channels_last))  # pyright: ignore[reportCallIssue]
        norms = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
        self.piece = how.batch_size if norms or not rowwise else PIECE
        keep_memory()

    def train(self, jobs: list[Job]) -> list[Trained]:
        """Train every job's client, longest first; the order in which they share the threads changes nothing."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        clients, self.helpers = ThreadPoolExecutor(self.threads), ThreadPoolExecutor(self.threads)
        try:
            longest_first = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].y))
            done = {i: clients.submit(self._train, jobs[i]) for i in longest_first}
            return [done[i].result() for i in range(len(jobs))]
        finally:
            clients.shutdown(cancel_futures=True)
            self.helpers.shutdown()
            torch.set_num_threads(before)

    def _train(self, job: Job) -> Trained:
        model = self.idle.get()
        try:
            model.load_state_dict(job.received)
            before = {name: predict(model, x, self.how.batch_size) for name, x in job.before.items()}
            with failing_as_one_line(job.x):
                loss = self._epochs(model, job)
            after = {name: predict(model, x, self.how.batch_size) for name, x in job.after.items()}
            state = {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in model.state_dict().items()}
            return Trained(state, loss, before, after)
        finally:
            self.idle.put(model)

    def _epochs(self, model: nn.Module, job: Job) -> float:
        """Algorithm 1, lines 14–19; returns the last epoch's mean loss."""
        model.train()
        how, total = self.how, torch.zeros(())
        params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        received = [p.detach().clone() for p in params] if how.prox_mu else []
        velocity = [torch.zeros_like(p) for p in params] if how.momentum else []
        for _ in range(how.epochs):
            order = torch.from_numpy(job.rng.permutation(len(job.y)))
            total.zero_()
            for batch in order.split(how.batch_size):
                gradients, loss = self._gradients(model, params, job, batch)
                descend(params, gradients, velocity, received, how)
                total += loss
        return float(total) / len(job.y)

    def _gradients(
        self, model: nn.Module, params: list[Tensor], job: Job, batch: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The gradients of the batch's mean loss, and its summed loss."""

        def of(piece: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            loss = nn.functional.cross_entropy(model(job.x[piece]), job.y[piece], reduction="sum")
            found = torch.autograd.grad(loss / len(batch), params, allow_unused=True, materialize_grads=True)
            return found, loss.detach()

        shared = not self.idle.empty()  # a model that nobody has taken: a thread without a client
        (first, total), *others = (self.helpers.map if shared else map)(
            of, batch.tensor_split(-(-len(batch) // self.piece))
        )
        gradients = list(first)
        for found, loss in others:
            torch._foreach_add_(gradients, found)
            total = total + loss
        return gradients, total
