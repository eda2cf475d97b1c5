"""Train a real federation once, measure every method of the paper on it, and keep its logits for later work.

Post-hoc methods need nothing but the final model's logits: with those kept, a new method is compared without
training anything again.

    python experiments/federations.py --data mnist --beta 0.1 --seed 0 --device cuda --out DIR

writes DIR/DATA-BETA-SEED.json (as results.json) and DIR/DATA-BETA-SEED.npz: cal_logits, cal_labels, cal_client,
test_logits, test_labels, test_client, train_counts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from fedcal import Config, federation
from fedcal.calibrate.methods import METHODS
from fedcal.learn.local import predict
from fedcal.run import summarise


def logits_of(state: federation.Federation) -> dict[str, np.ndarray]:
    """The final model's logits on every client's calibration and test split."""
    kept = {"train_counts": state.skew.train.numpy()}
    for split in ("cal", "test"):
        parts = [predict(state.model, getattr(c, f"{split}_x")) for c in state.clients]
        kept[f"{split}_logits"] = torch.cat(parts).float().numpy()
        kept[f"{split}_labels"] = torch.cat([getattr(c, f"{split}_y") for c in state.clients]).cpu().numpy()
        kept[f"{split}_client"] = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    if args.threads:
        torch.set_num_threads(args.threads)
    given = {k: v for k, v in vars(args).items() if k not in ("out", "method")}
    config = Config(**given, method=tuple(args.method or METHODS)).resolve()
    began = time.perf_counter()
    state = federation.assemble(config)
    federation.train(
        state,
        config.rounds,
        lambda _, r: print(f"{r['round']} {r['loss']:.3f} {r['accuracy']:.3f} {r['seconds']:.1f}s", flush=True),
    )
    federation.finish(state)
    results = summarise(state, federation.evaluate(state)) | {"seconds": time.perf_counter() - began}
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"{config.data}-{config.beta:g}-{config.seed}"
    (args.out / f"{name}.json").write_text(json.dumps(results, indent=1))
    np.savez_compressed(args.out / f"{name}.npz", **logits_of(state))
    print(f"{name}: {results['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
