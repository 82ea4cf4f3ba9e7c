"""AdamW with states in few bits: their bytes, what a run loses by them, and where they must not be so few."""

from __future__ import annotations

import copy
import functools
from statistics import fmean

import pytest
import torch
from torch import nn

from playbook.errors import ConfigError
from playbook.planning.memory import predict
from playbook.planning.recipes import load_recipe
from playbook.precision.formats import FORMATS
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.optimizer import MasterAdamW, state_formats
from playbook.training.trainer import Trainer, make_trainer

SMALL = load("tiny").replace(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=64)
IN_BF16 = {"weights": "bfloat16", "dtype": "bfloat16"}


def trainer(**changes) -> Trainer:
    options = {"steps": 2, "global_batch": 8, "seq": 32, "device": "cpu", "lr": 3e-3, **changes}
    return make_trainer(SMALL, load_corpus(), TrainConfig(**options))


def final_loss(t: Trainer, formats: dict[str, str] | None = None) -> float:
    """The mean of the last 20 steps."""
    if formats is not None:
        t.optimizer.formats = formats
    return fmean(result.loss for result in t.run()[-20:])


@functools.cache
def in_fp32() -> float:
    return final_loss(trainer(steps=60))


@pytest.mark.parametrize("moments", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize(
    ("recipe", "weights"),
    [
        ("fp32", {}),
        ("autocast", {"dtype": "bfloat16"}),
        ("bf16-mixed", IN_BF16),
        ("bf16-mixed", {**IN_BF16, "masters": "fp16"}),
    ],
)
def test_a_run_keeps_the_bytes_that_are_predicted(recipe, weights, moments):
    t = trainer(**weights, moments=moments)
    t.run()
    kept = {
        kind: sum(x.numel() * x.element_size() for x in some) for kind, some in t.engine.tensors().items()
    }
    told = load_recipe(recipe).with_moments(moments, t.config.masters)
    stage = predict(SMALL, t.config.layout, seq=32, recipe=told, device="cpu").stages[0]
    assert kept == {
        "parameters": stage.parameters, "gradients": stage.gradients, "optimizer": stage.optimizer
    }  # fmt: skip
    states = told.states
    assert stage.optimizer == (states.master + states.optimizer) * SMALL.num_parameters


def test_moments_in_few_bits_cost_next_to_nothing():
    """The last twenty steps differ by hundredths of a nat from seed to seed, and much less by these."""
    for moments in ("bf16", "fp8"):
        assert abs(final_loss(trainer(steps=60, moments=moments)) - in_fp32()) < 0.015, moments


def test_masters_need_the_bits_that_moments_do_not():
    """FP16 with a scale has 11 bits of precision, three more than the weights themselves; BF16 masters have none more."""
    with_fp32, in_fp16, in_bf16 = (
        final_loss(trainer(steps=60, **IN_BF16, masters=masters)) for masters in ("fp32", "fp16", "bf16")
    )
    assert abs(in_fp16 - with_fp32) < 0.01
    assert in_bf16 > with_fp32 + 0.02


def test_the_second_moment_needs_the_range_that_the_first_does_not():
    """What is small in E4M3 is 0, and the root of the second moment is what is divided by (FP8-LM, section 2)."""
    t = trainer(steps=60, moments="fp8")
    assert final_loss(t, {"exp_avg": "e4m3", "exp_avg_sq": "e4m3"}) > in_fp32() + 0.04


@pytest.mark.parametrize(("beta2", "falls"), [(0.95, True), (0.999, False)])
def test_a_second_moment_in_bf16_falls_only_by_more_than_half_a_unit(beta2, falls):
    """1 − β₂ must exceed 2⁻⁹, half a unit in the last place below a power of two: with 0.999 it never falls."""
    weight = nn.Parameter(torch.ones(64))
    optimizer = MasterAdamW([weight], lr=0.0, betas=(0.9, beta2), formats={"exp_avg_sq": "bf16"})
    weight.grad = torch.linspace(1, 2, 64)
    optimizer.step()
    before = optimizer.wide(weight)["exp_avg_sq"].clone()
    weight.grad = torch.zeros(64)
    for _ in range(10):
        optimizer.step()
    after = optimizer.wide(weight)["exp_avg_sq"]
    assert (after < before).all() if falls else torch.equal(after, before)
    assert (1 - beta2 > FORMATS["bf16"].epsilon / 4) is falls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("moments", "fused"), [("fp32", None), ("bf16", None), ("fp8", None), ("fp8", True)])
def test_a_run_that_stops_and_goes_on_is_one_that_does_not(dtype, moments, fused):
    formats = state_formats(moments, "fp32" if dtype == torch.float32 else "fp16")
    torch.manual_seed(0)
    gradients = torch.randn(6, 40, 3) * torch.logspace(-6, 0, 40)[:, None]

    def steps(weight: nn.Parameter, optimizer: MasterAdamW, some: torch.Tensor) -> None:
        for gradient in some:
            weight.grad = gradient.to(dtype)
            optimizer.step()

    through = nn.Parameter(torch.linspace(-1, 1, 120).reshape(40, 3).to(dtype))
    stopped = copy.deepcopy(through)
    one, first = (
        MasterAdamW([weight], lr=1e-2, formats=formats, fused=fused) for weight in (through, stopped)
    )
    steps(through, one, gradients)
    steps(stopped, first, gradients[:3])
    resumed = nn.Parameter(stopped.detach().clone())
    second = MasterAdamW([resumed], lr=1.0, formats=formats, fused=fused)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    steps(resumed, second, gradients[3:])
    assert torch.equal(through, resumed)
    for kind, state in one.wide(through).items():
        assert torch.equal(state, second.wide(resumed)[kind]), kind


def test_states_taken_up_by_an_optimizer_with_other_formats():
    """From FP8 to fp32 nothing is lost that was there, and what has a scale is not taken for what it is multiplied by."""
    weight = nn.Parameter(torch.ones(5))
    narrow, wide = (
        MasterAdamW([weight], lr=1e-3, formats=state_formats(moments)) for moments in ("fp8", "fp32")
    )
    weight.grad = torch.tensor([1e-4, 2e-4, 3e-4, 4e-5, 5e-6])
    narrow.step()
    wide.load_state_dict(narrow.state_dict())
    for kind, state in narrow.wide(weight).items():
        assert torch.equal(state, wide.state[weight][kind]), kind
    assert wide.state[weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"moments": "e4m3"}, "moments must be one of fp32, bf16, fp8, got 'e4m3'"),
        ({"masters": "e4m3", **IN_BF16}, "masters must be one of fp32, fp16, bf16, got 'e4m3'"),
        ({"masters": "fp16"}, "masters are fp16, but weights of float32 have none"),
    ],
)
def test_what_cannot_be_kept_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**changes)
