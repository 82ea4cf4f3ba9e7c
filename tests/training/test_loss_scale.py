"""Loss scaling in float16: the rule is torch's, and every layout skips the steps that one process skips."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from playbook import launch
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import TokenBatches, load_corpus
from playbook.training.loss_scale import LossScale
from playbook.training.trainer import StepResult, make_trainer

SMALL = load("tiny").replace(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8, ffn=24, max_seq=32)
MOE = SMALL.replace(moe={"experts": 4, "top_k": 2, "ffn": 8, "balance_loss": 0.1, "bias_rate": 0.01})
#: A scale that overflows at once and, growing again after two good steps, ever again.
OVERFLOWS = {"initial_loss_scale": 2.0**26, "loss_scale_window": 2}


def config(layout: str = "", **changes: Any) -> TrainConfig:
    options = {"steps": 12, "global_batch": 4, "micro_batch": 1, "seq": 16, "lr": 3e-3, "device": "cpu"}
    return TrainConfig(**{**options, "dtype": "float16", **OVERFLOWS, **changes}, layout=Layout.parse(layout))


def trained(given: TrainConfig, shape: Any = SMALL, mesh: Mesh | None = None) -> list[StepResult]:
    return make_trainer(shape, load_corpus(), given, mesh).run()


def trajectory(results: list[StepResult]) -> list[tuple[float, bool]]:
    return [(one.loss_scale, one.skipped) for one in results]


def test_the_rule():
    scale = LossScale(8.0, window=3)
    norms = [1.0, float("inf"), 1.0, 1.0, 1.0, 1.0, 1.0, float("nan"), 1.0]
    assert [scale.update(norm) for norm in norms] == [True, False, True, True, True, True, True, False, True]
    assert (scale.value, scale.good_steps) == (4.0, 1)


def test_a_scale_that_stays():
    scale = LossScale.named(128, 2.0**16, 2000)
    assert [scale.update(norm) for norm in (1.0, float("inf"), 1.0)] == [True, False, True]
    assert scale.value == 128


class ByTorch:
    """The trainer's step with torch.amp.GradScaler and PyTorch's clipping."""

    def __init__(self, given: TrainConfig):
        self.trainer, self.config = make_trainer(SMALL, load_corpus(), given), given
        first, window = given.initial_loss_scale, given.loss_scale_window
        self.scaler = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=window)

    def step(self, step: int) -> tuple[float, float]:
        """The scale that the step was made with, and the loss."""
        t, scale, total = self.trainer, self.scaler.get_scale(), 0.0
        x, y = TokenBatches(load_corpus(), 4, 16, 0).batch(step)
        t._set_learning_rate(step)
        t.engine.zero_grad()
        for inputs, targets in zip(x.split(1), y.split(1), strict=True):
            with torch.autocast("cpu", torch.float16):
                loss = t.model.loss(inputs, targets)[0] / y.numel()
            self.scaler.scale(loss).backward()
            total += loss.item()
        self.scaler.unscale_(t.optimizer)
        nn.utils.clip_grad_norm_(t.model.parameters(), self.config.grad_clip)
        self.scaler.step(t.optimizer)
        self.scaler.update()
        return scale, total


def test_dynamic_scaling_is_that_of_torch():
    """Scales, losses and weights, bit for bit, through steps that overflow and steps that do not."""
    given = config(micro_batch=1)
    ours, theirs = make_trainer(SMALL, load_corpus(), given), ByTorch(given)
    skipped = []
    for step in range(given.steps):
        result, (scale, loss) = ours.step(), theirs.step(step)
        skipped.append(result.skipped)
        assert result.loss_scale == scale
        assert result.loss == pytest.approx(loss, rel=1e-6)
        weights = theirs.trainer.model.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in ours.model.state_dict().items())
    assert 3 <= sum(skipped) <= 10


def test_moments_of_16_bit_gradients_are_those_of_fp32():
    """Adam divides one moment by the root of the other: no loss shows whether gradients were divided by the scale."""
    wide = make_trainer(SMALL, load_corpus(), config(dtype="float32"))
    wide.engine.accumulate(*wide._batch(0)[:2], 1)
    g = torch.cat([p.grad.flatten() for p in wide.model.parameters()])
    given = config(weights="float16", grad_clip=0.0, initial_loss_scale=2.0**12)
    narrow = make_trainer(SMALL, load_corpus(), given)
    assert not narrow.step().skipped
    # After the first step they are (1 - beta1)·g and (1 - beta2)·g².
    for kind, expected in (("exp_avg", 0.1 * g), ("exp_avg_sq", 0.05 * g**2)):
        found = torch.cat([narrow.optimizer.state[p][kind].flatten() for p in narrow.model.parameters()])
        assert (found - expected).norm() < 0.02 * expected.norm(), kind
    muon = make_trainer(SMALL, load_corpus(), replace(given, optimizer="muon"))
    muon.step()
    matrix = muon.model.blocks[0].attention.q.weight
    expected = 0.05 * wide.model.blocks[0].attention.q.weight.grad  # 1 - 0.95 of it
    assert (muon.optimizer.state[matrix]["exp_avg"] - expected).norm() < 0.02 * expected.norm()


LAYOUTS = (
    "dp=2",
    "dp=2,zero=1",
    "dp=2,zero=2",
    "dp=2,zero=3",
    "tp=2,sp",
    "cp=2",
    "pp=2",
    "pp=2,schedule=zb-h1",
)

#: A first scale that overflows, grows back and overflows again, no step within 5 % of the limit: sums in parts
#: are rounded elsewhere.
CLEAR = {"initial_loss_scale": 0.45 * 2.0**20, "steps": 6}


def on_ranks(cases: list[tuple[Any, TrainConfig]]) -> list[list[StepResult]]:
    torch.set_num_threads(1)
    with launch.process_group():
        return [trained(given, shape, Mesh(given.layout)) for shape, given in cases]


@functools.cache
def by_itself(shape: Any, weights: str) -> list[StepResult]:
    return trained(config(weights=weights, **CLEAR), shape)


def check(ranks, cases: list[tuple[Any, TrainConfig]]) -> None:
    for results in ranks(on_ranks, cases, ranks=2).values:
        for (shape, given), mine in zip(cases, results, strict=True):
            alone = by_itself(shape, given.weights)
            assert trajectory(mine) == trajectory(alone), given.layout
            assert [r.loss for r in mine] == pytest.approx([r.loss for r in alone], rel=3e-3), given.layout
            skips = [one.skipped for one in alone]
            assert skips[0], "the first step overflows"
            assert any(skips[skips.index(False) :]), "so does one after the scale has grown"


def test_every_layout_skips_the_steps_of_one_process(ranks):
    check(ranks, [(SMALL, config(text, **CLEAR)) for text in LAYOUTS])


def test_so_it_does_with_weights_of_16_bits_and_with_experts(ranks):
    narrow = [
        (SMALL, config(text, weights="float16", **CLEAR))
        for text in ("dp=2,zero=1", "dp=2,zero=3", "tp=2", "pp=2")
    ]
    check(ranks, [*narrow, (MOE, config("dp=2,ep=2", **CLEAR))])
