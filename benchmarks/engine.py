"""A client's training step on a GPU: the fast engine beside the plain loop, inside rounds of federated training.

    python benchmarks/engine.py [--slots 5 10] [--federations 1 3] [--model resnet14 ...]

Milliseconds per client-step of batch 256: a round's wall time by its steps. 5 clients of 2 250 random images for each
federation, 3 epochs (27 steps, of which 3 are smaller), as the paper deals CIFAR-10 to 20 clients.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from fedcal.learn.fast import Engine
from fedcal.learn.local import SGD, Job, copy_state, train_in_turn
from fedcal.learn.models import build

SHAPES = {"cnn": (1, 28, 28), "resnet14": (3, 32, 32), "resnet32": (3, 32, 32)}
CLASSES = {"cnn": 10, "resnet14": 10, "resnet32": 100}


def jobs_of(model: torch.nn.Module, name: str, n: int) -> list[Job]:
    x = [torch.randn(2250, *SHAPES[name], device="cuda") for _ in range(5)]
    y = [torch.randint(CLASSES[name], (2250,), device="cuda") for _ in range(5)]
    received = copy_state(model)
    return [Job(received, x[i % 5], y[i % 5], np.random.default_rng(i)) for i in range(n)]


def per_step(train, jobs: list[Job], repeats: int) -> float:
    train(jobs)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        train(jobs)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / (repeats * len(jobs) * 27)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--federations", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--model", nargs="+", default=list(SHAPES))
    parser.add_argument("--precision", nargs="+", default=["bf16"])
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for name in args.model:
        model = build(name, SHAPES[name], CLASSES[name], torch.Generator().manual_seed(0)).cuda()
        how = SGD(momentum=0.9)
        eager = per_step(lambda jobs, m=model, h=how: train_in_turn(m, jobs, h), jobs_of(model, name, 5), 1)
        print(f"{name:10} plain loop                               {eager:6.2f} ms", flush=True)
        for precision in args.precision:
            for slots in args.slots:
                began = time.perf_counter()
                engine = Engine(model, SHAPES[name], how, precision, slots)
                torch.cuda.synchronize()
                made = time.perf_counter() - began
                for n in args.federations:
                    ours = per_step(engine.train, jobs_of(model, name, 5 * n), 4)
                    print(
                        f"{name:10} {precision} {slots:2} slots, {n:2} federations of 5 clients {ours:6.2f} ms "
                        f"({eager / ours:.1f}x; graphs recorded in {made:.1f} s)",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
