"""Whole steps of training in FP8 beside the same steps without: the book's trainer, and torchao's linear layers.

Ratios are to the run without FP8 that takes turns with it, in bf16 on a GPU and in fp32 on a CPU: ours to ours, theirs to
theirs. On a CPU codes are multiplied by their scales again before they are multiplied, which can only be slower.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from playbook.bench.fp8_cases import RECIPES
from playbook.bench.train import is_llama, transformers_llama
from playbook.instruments.measure import synchronize
from playbook.model.transformer import Transformer
from playbook.shapes import ModelShape, load
from playbook.training.config import TrainConfig
from playbook.training.data import TokenBatches, load_corpus
from playbook.training.trainer import make_trainer

#: torchao's recipes of the same names as ours.
THEIRS = ("tensorwise", "rowwise")
#: A step gives its loss.
Step = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """What is trained, in steps of one micro-batch, of which the first ``warm_up`` do not count."""

    model: str
    micro_batch: int
    seq: int
    steps: int
    dtype: str
    warm_up: int = 2


WORK = {
    "cuda": Work("llama3.2-1b", 2, 4096, 8, "bfloat16"),
    "cpu": Work("tiny", 2, 128, 3, "float32", warm_up=1),
}


def step_rows(device: str) -> Iterator[dict[str, Any]]:
    """A row for each recipe, ours and then torchao's: median seconds, losses, and the ratio to the run without FP8."""
    work, kind = WORK[torch.device(device).type], torch.device(device).type
    for recipe in RECIPES:
        yield _row("ours", recipe, work, device, lambda name: _ours(work, name, device))
    for recipe in THEIRS:
        yield _row("torchao", recipe, work, device, lambda name: _torchao(work, name, device, kind == "cuda"))


def _row(trainer: str, recipe: str, work: Work, device: str, make: Callable[[str], Step]) -> dict[str, Any]:
    about = {"trainer": trainer, "recipe": recipe, "model": work.model, "micro_batch": work.micro_batch,
             "seq": work.seq, "dtype": work.dtype}  # fmt: skip
    try:
        base, fp8 = _in_turns([make(""), make(recipe)], work, device)
    except Exception as error:  # memory, a version of torchao, a compiler: loses no other row
        return about | {"missing": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        if torch.device(device).type == "cuda":
            gc.collect()
            torch.compiler.reset()
            torch.cuda.empty_cache()
    tokens = work.micro_batch * work.seq
    return about | {
        "seconds": fp8[0], "base_seconds": base[0], "ratio": fp8[0] / base[0],
        "tokens_per_s": tokens / fp8[0], "base_tokens_per_s": tokens / base[0],
        "last_loss": fp8[1], "base_last_loss": base[1],
    }  # fmt: skip


def _in_turns(runs: list[Step], work: Work, device: str) -> list[tuple[float, float]]:
    """Median seconds and the last loss of each; every turn goes in the opposite order of the one before."""
    seconds: dict[int, list[float]] = {i: [] for i in range(len(runs))}
    losses = [0.0] * len(runs)
    for turn in range(work.warm_up + work.steps):
        for i in sorted(seconds, reverse=turn % 2 == 1):
            synchronize(device)
            start = time.perf_counter()
            losses[i] = runs[i]()
            synchronize(device)
            seconds[i].append(time.perf_counter() - start)
    return [(statistics.median(seconds[i][work.warm_up :]), losses[i]) for i in seconds]


def _config(work: Work, device: str, recipe: str = "") -> TrainConfig:
    return TrainConfig(
        steps=work.warm_up + work.steps, global_batch=work.micro_batch, seq=work.seq, lr=1e-4, dtype=work.dtype,
        weights=work.dtype, device=device, fp8=recipe,
    )  # fmt: skip


def _ours(work: Work, recipe: str, device: str) -> Step:
    trainer = make_trainer(work.model, load_corpus(), _config(work, device, recipe))
    return lambda: trainer.step().loss


def _torchao(work: Work, recipe: str, device: str, compiled: bool) -> Step:
    """transformers' Llama of the same shape, its linear layers but for the head torchao's, compiled on a GPU."""
    theirs = importlib.import_module("torchao.float8")
    model = _llama(load(work.model), work, device)
    if recipe:
        theirs.convert_to_float8_training(
            model,
            config=theirs.Float8LinearConfig.from_recipe_name(recipe),
            module_filter_fn=lambda _, name: name != "lm_head",
        )
    config = _config(work, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=device != "cpu")
    batches = TokenBatches(load_corpus(), work.micro_batch, work.seq, config.seed)
    forward = torch.compile(model) if compiled else model
    count = iter(range(config.steps))

    def step() -> float:
        x, y = (tokens.to(device) for tokens in batches.batch(next(count)))
        optimizer.zero_grad()
        logits = forward(x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _llama(shape: ModelShape, work: Work, device: str) -> Any:
    ours = Transformer(shape, dtype=getattr(torch, work.dtype), device=device)
    with torch.random.fork_rng():  # the same weights with FP8 and without
        torch.manual_seed(0)
        model = transformers_llama(ours) if is_llama(shape) else None
    if model is None:
        raise ModuleNotFoundError("transformers, whose Llama torchao's layers are put into, is not installed")
    return model
