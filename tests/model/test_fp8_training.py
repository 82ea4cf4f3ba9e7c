"""A run in FP8: as good as one in fp32 where scales fit, and stalled where they do not."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import Tensor

from playbook.model.fp8 import use_fp8
from playbook.model.transformer import Transformer
from playbook.precision.recipes import FP8_RECIPES, FP8Recipe
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import TokenBatches, load_corpus
from playbook.training.trainer import Trainer
from playbook_book.instruments.fp8_watch import FP8Watch

SMALL = load("tiny").replace(layers=1, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=256)
LONG = dataclasses.replace(FP8_RECIPES["delayed"], history=1024)
STEPS, FAULT = 80, 10
#: The input of a block's last product: what comes back to it comes straight from the residual stream.
DOWN = "blocks.0.mlp.down", "dy"


def trainer_of(recipe: FP8Recipe | None, steps: int, fault: int | None) -> Trainer:
    """In step ``fault`` gradients are 2³² times too large: what E5M2 has between its largest number and its smallest."""
    model = Transformer(SMALL, seed=0)
    if recipe is not None:
        use_fp8(model, recipe)
    config = TrainConfig(steps=steps, global_batch=4, seq=32, device="cpu")
    trainer = Trainer(model, TokenBatches(load_corpus(), 4, 32, seed=0), config)

    def listen(_module: object, _given: object, y: Tensor) -> None:
        y.register_hook(lambda dy: dy * 2.0**32 if trainer.step_count == fault else dy)

    model.final_norm.register_forward_hook(listen)
    return trainer


@functools.cache
def loss(recipe: FP8Recipe | None, fault: int | None) -> float:
    """The mean of the last 20 steps."""
    results = trainer_of(recipe, STEPS, fault).run()
    return sum(step.loss for step in results[-20:]) / 20


@pytest.mark.parametrize("fault", [None, FAULT])
def test_with_tiles_a_run_ends_where_fp32_does(fault):
    assert loss(FP8_RECIPES["blockwise"], fault) == pytest.approx(loss(None, fault), abs=0.01)


def test_after_one_fault_a_long_history_stalls_the_run():
    assert loss(LONG, FAULT) > loss(None, FAULT) + 0.2
    assert loss(FP8_RECIPES["tensorwise"], FAULT) == pytest.approx(loss(None, FAULT), abs=0.01)
    assert loss(FP8_RECIPES["delayed"], FAULT) < loss(None, FAULT) + 0.12  # 16 steps later it learns again


def test_the_watch_says_why():
    """The scale of the fault's step is too small for its gradients, those of the next 16 are too large."""
    fault = 2
    seen = {}
    for name, recipe in {
        "long": LONG,
        "short": FP8_RECIPES["delayed"],
        "tiles": FP8_RECIPES["blockwise"],
    }.items():
        trainer = trainer_of(recipe, 20, fault)
        watch = FP8Watch(trainer.model)
        trainer.around = lambda step, watch=watch: watch
        trainer.run()
        seen[name] = [step[DOWN] for step in watch.steps], watch.gradient_norms
    for name in ("long", "short"):
        steps, _ = seen[name]
        assert steps[fault - 1].underflow < 0.01
        assert steps[fault].saturated > 0.9
        assert all(step.underflow > 0.8 for step in steps[fault + 1 : fault + 17])
    assert seen["long"][0][19].underflow > 0.8
    assert seen["short"][0][19].underflow < 0.05  # 17 steps after the fault
    steps, norms = seen["tiles"]
    assert all(step.underflow < 0.02 and step.saturated == 0 for step in steps)
    gate = "blocks.0.mlp.gate"
    assert seen["long"][1][19][gate] < 0.1 * norms[19][gate]
    assert torch.isfinite(torch.tensor([norm[gate] for norm in norms])).all()
