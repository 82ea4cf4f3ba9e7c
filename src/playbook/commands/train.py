"""``playbook train``: train a model on text."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from playbook._interrupt import raise_again
from playbook._json import to_json
from playbook.commands.output import say


def add(commands: Any) -> None:
    p = commands.add_parser(
        "train",
        help="train a model on text",
        description="Train a transformer on text, on this machine's GPU or CPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = p.add_argument
    add("--model", default="tiny", metavar="M", help="preset name, TOML file or inline JSON")
    add("--data", metavar="FILE", help="any text file (default: Python's own documentation)")
    add("--layout", default="", metavar="dp=1,…", help="parallel layout; one process for now")
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--global-batch", type=int, default=16, metavar="N", help="samples per optimizer step")
    add("--micro-batch", type=int, metavar="N", help="samples per forward pass (default: the global batch)")
    add("--seq", type=int, default=256, metavar="N", help="tokens per sample")
    add("--lr", type=float, default=1e-3, help="peak learning rate")
    add("--warmup", type=int, metavar="N", help="warm-up steps (default: a twentieth of the steps)")
    add("--weight-decay", type=float, default=0.1, help="AdamW's decay of matrices")
    add(
        "--grad-clip",
        type=float,
        default=1.0,
        metavar="X",
        help="largest gradient norm; 0 turns clipping off",
    )
    add("--dtype", default="float32", help="float32, bfloat16 or float16: what matrix products run in")
    add("--recompute", default="none", help="none, selective or full")
    add("--attention", default="sdpa", help="sdpa (fused kernels) or reference (the formula written out)")
    add("--device", help="cpu or cuda (default: cuda when there is one)")
    add("--seed", type=int, default=0, help="of weights, data order and dropout")
    add("--log", action="append", metavar="PATH", help="*.jsonl, *.csv or a TensorBoard folder; repeatable")
    add("--quiet", action="store_true", help="no progress bar")
    add("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    from playbook.data import load_corpus
    from playbook.errors import ConfigError
    from playbook.layout import Layout
    from playbook.shapes import load
    from playbook.training.config import TrainConfig

    # Everything cheap is checked before torch is imported, so that a typing error is answered at once.
    shape, layout = load(args.model), Layout.parse(args.layout)
    layout.check(shape)
    if layout.world_size != 1:
        raise ConfigError(
            f"layout is {str(layout)!r}, which needs {layout.world_size} processes, but training runs in one: drop it"
        )
    if (ranks := int(os.environ.get("WORLD_SIZE", 1))) != layout.world_size:
        raise ConfigError(
            f"{ranks} ranks were launched, but the layout has {layout.world_size}: launch as many"
        )
    names = set(TrainConfig.__dataclass_fields__) - {"min_lr", "beta1", "beta2"}
    config = TrainConfig(**{name: getattr(args, name) for name in names})
    corpus = load_corpus(args.data)

    from playbook.training.logs import open_log
    from playbook.training.trainer import make_trainer

    with _memory_errors(lambda: "while the model is built: choose a smaller one"):
        trainer = make_trainer(shape, corpus, config)
    logs = [open_log(path) for path in args.log or [_default_log(shape.name)]]
    say(f"{shape.num_parameters:,} parameters on {trainer.device}, {len(corpus):,} tokens of {corpus.name}")
    results, interrupted = _run(trainer, logs, progress=not args.quiet)
    return _report(args, trainer, results, interrupted)


def _run(trainer: Any, logs: list[Any], progress: bool) -> tuple[list[Any], bool]:
    """The results, and whether Ctrl-C ended the run."""
    from playbook.training.logs import ManyLogs

    def cure() -> str:
        return (
            f"at step {trainer.step_count} with micro_batch={trainer.config.micro} and seq={trainer.config.seq} on "
            f"{trainer.device}: make one of them smaller, or recompute activations (--recompute full)"
        )

    raise_again()
    with _memory_errors(cure):
        try:
            return trainer.run(ManyLogs([*logs, _LossWatch()]), progress), False
        except KeyboardInterrupt as interrupt:
            return getattr(interrupt, "results", []), True


@contextlib.contextmanager
def _memory_errors(cure: Callable[[], str]) -> Iterator[None]:
    """Turn any way of running out of memory into one sentence: when it happened, and what helps."""
    import torch

    from playbook.errors import ConfigError

    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's own are RuntimeErrors, on a CPU without a class
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(
            error
        ):
            raise
        raise ConfigError(f"out of memory {cure()}") from error


class _LossWatch:
    """A log that writes nothing, but says once on stderr that the loss has stopped being a number."""

    def __init__(self) -> None:
        self.finite = True

    def start(self, header: dict[str, Any]) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        from tqdm.auto import tqdm

        if self.finite and not math.isfinite(record["loss"]):
            self.finite = False
            # Written above the progress bar, if there is one.
            tqdm.write(
                f"the loss became {record['loss']}, which is no finite number, at step {record['step']}: "
                "try a smaller --lr, or --grad-clip 1",
                file=sys.stderr,
            )

    def close(self, outcome: str) -> None:
        pass


def _report(args: argparse.Namespace, trainer: Any, results: list[Any], interrupted: bool) -> int:
    """Print what the run gave: JSON on stdout, or a sentence on stderr."""
    seconds = sum(r.seconds for r in results[1:]) or sum(r.seconds for r in results)
    tokens = sum(r.tokens for r in results[1:]) or sum(r.tokens for r in results)
    last = [r.loss for r in results[-20:]]
    if args.json:
        summary: dict[str, Any] = {
            "losses": [r.loss for r in results],
            "grad_norms": [r.grad_norm for r in results],
            "tokens_per_s": tokens / seconds if seconds else 0.0,
            "peak_bytes": [trainer.peak_bytes],
            "bytes_sent": {},
            "interrupted": interrupted,
        }
        print(to_json(summary))
    if last:
        say(
            f"{'interrupted after' if interrupted else 'finished'} {len(results)} steps: mean loss of the last "
            f"{len(last)} is {sum(last) / len(last):.3f}, {tokens / seconds:,.0f} tokens/s, "
            f"peak {trainer.peak_bytes / 2**20:,.0f} MiB"
        )
    return 130 if interrupted else 0


def _default_log(name: str) -> str:
    import time

    path = f"runs/{name.replace('/', '-') or 'model'}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    say(f"log: {path}")
    return path
