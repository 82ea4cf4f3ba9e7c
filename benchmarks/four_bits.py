"""Training in four bits beside fp32, on the default text: each ingredient left out, and a sweep of learning rates.

Usage: python benchmarks/four_bits.py [--steps 120] [--seeds 4] FILE.json

Every run of a seed has the same weights and the same batches, so that what a recipe costs is the difference to fp32 of
the same seed. Runs that FILE has already are not repeated. One thread: about 15 s a run, 20 minutes in all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from playbook.bench import provenance
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer

SHAPE = ModelShape(
    layers=4, hidden=64, heads=4, kv_heads=2, ffn=192, gated=True, norm="rmsnorm", bias=False, positions="rotary",
    vocab=256, max_seq=64, tied=False, activation="silu",
)  # fmt: skip
#: fp32, FP8 and the recipes, and each ingredient left out: alone, and all of them.
NAMES = (
    "", "blockwise", "nvfp4", "nvfp4,stochastic=off", "nvfp4,hadamard=off", "nvfp4,square=off", "nvfp4,wide=0",
    "nvfp4,hadamard=off,stochastic=off,square=off,wide=0", "mxfp4",
)  # fmt: skip
LR = 4e-3
SWEPT = ("", "blockwise", "nvfp4")
RATES = (1e-3, 8e-3, 16e-3, 32e-3, 64e-3, 128e-3)
LAST = 20


def cases(seeds: int) -> Iterator[tuple[str, float, int]]:
    """A recipe, a learning rate and a seed: those of one seed side by side, the sweep last."""
    yield from ((name, LR, seed) for seed in range(seeds) for name in NAMES)
    yield from ((name, rate, seed) for seed in range(2) for rate in RATES for name in SWEPT)


def run(name: str, rate: float, seed: int, steps: int) -> dict[str, Any]:
    """The losses of a run: the mean of each ten steps, and of the last ones."""
    config = TrainConfig(
        steps=steps, global_batch=8, seq=64, lr=rate, warmup=10, seed=seed, fp8=name, device="cpu"
    )
    losses = [step.loss for step in make_trainer(SHAPE, load_corpus(), config).run()]
    tens = [round(sum(losses[i : i + 10]) / 10, 5) for i in range(0, steps, 10)]
    last = sum(losses[-LAST:]) / LAST
    return {"recipe": name, "lr": rate, "seed": seed, "loss": last, "losses": tens}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", type=Path)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--seeds", type=int, default=4)
    p.add_argument("--most", type=int, default=10**6, help="runs to make now")
    args = p.parse_args()
    torch.set_num_threads(1)
    found = json.loads(args.file.read_text()) if args.file.exists() else {"runs": []}
    known = {(one["recipe"], one["lr"], one["seed"]) for one in found["runs"]}
    left = [case for case in cases(args.seeds) if case not in known]
    for case in left[: args.most]:
        found["runs"].append(run(*case, args.steps))
        print(*case, f"{found['runs'][-1]['loss']:.4f}", flush=True)
        about = {
            "steps": args.steps,
            "global_batch": 8,
            "seq": 64,
            "parameters": SHAPE.num_parameters,
            "last": LAST,
        }
        told = provenance("cpu") | {"command": f"python benchmarks/four_bits.py --seeds {args.seeds}"}
        record = {"provenance": told, **about}
        args.file.write_text(json.dumps({**record, "runs": found["runs"]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
