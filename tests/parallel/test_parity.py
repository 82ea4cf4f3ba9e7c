"""Data parallelism and ZeRO give the losses, gradients and gradient norms of one device, whatever is combined."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import Case, Run, on_one_device, on_ranks
from torch import nn

#: Bytes: small enough that even these models have several buckets, which end in the middle of parameters.
BUCKETS = {"bucket": 20_000, "first_bucket": 3_000}
TOLERANCE = 1e-5


@functools.cache
def reference(case: Case) -> Run:
    return on_one_device(case)


def cases(block: str, dp: int) -> list[Case]:
    """Tied or not, recomputed or not: all four on two ranks; where collectives take long, each of both once."""
    pairs = (
        itertools.product((False, True), ("none", "full")) if dp <= 2 else [(False, "full"), (True, "none")]
    )
    return [Case(BLOCKS[block].replace(tied=tied), recompute) for tied, recompute in pairs]


@pytest.mark.parametrize(
    ("dp", "block"), [*itertools.product((1, 2), BLOCKS), (3, "gpt"), (4, "llama"), (8, "llama")]
)
def test_every_stage_is_one_device(ranks, dp, block):
    """10 steps of all stages, with and without accumulation, tied embeddings and recomputation."""
    accumulated = (
        itertools.product(cases(block, dp), (1, 4)) if dp < 8 else zip(cases(block, dp), (1, 4), strict=True)
    )
    runs = [
        (case, f"dp={dp},zero={zero},grad_acc={grad_acc}", {} if zero == 3 else BUCKETS)
        for (case, grad_acc), zero in itertools.product(accumulated, range(4))
    ]
    found = ranks(on_ranks, runs, ranks=dp, timeout=300).values
    errors = {
        (case.shape.tied, case.recompute, text, rank): run.error(reference(case))
        for rank, results in enumerate(found)
        for (case, text, _), run in zip(runs, results, strict=True)
    }
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= TOLERANCE, (worst, errors[worst])


OPTIONS = {
    "naive": ("dp=3", {"data_parallel": "naive"}),
    "overlapped": ("dp=3", {"data_parallel": "overlapped"}),
    "bucketed, small": ("dp=3", {"bucket": 1000, "first_bucket": 500}),
    "bucketed, one for all": ("dp=3", {}),
    "zero 1, lazily": ("dp=3,zero=1", {**BUCKETS, "gather": "lazily"}),
    "zero 2, lazily": ("dp=3,zero=2", {**BUCKETS, "gather": "lazily"}),
    "zero 1, small buckets": ("dp=3,zero=1", {"bucket": 1000, "first_bucket": 500}),
    "zero 3, no prefetch": ("dp=3,zero=3", {"prefetch": False}),
    "zero 3, no reshard": ("dp=3,zero=3", {"reshard": False}),
}


@pytest.mark.parametrize(("block", "recompute"), [("llama", "none"), ("gpt", "selective"), ("gpt", "full")])
def test_every_option_is_one_device(ranks, block, recompute):
    case = Case(BLOCKS[block], recompute, steps=4)
    runs = [(case, f"{text},grad_acc={acc}", options) for text, options in OPTIONS.values() for acc in (1, 2)]
    for results in ranks(on_ranks, runs, ranks=3, timeout=200).values:
        for (_, text, options), run in zip(runs, results, strict=True):
            assert run.error(reference(case)) <= TOLERANCE, (text, options)


def add_idle_parameters(model: nn.Module) -> None:
    """Parameters that no forward pass uses: at the front, in the middle and at the end of backward."""
    for module in (model.embedding, model.blocks[0], model.final_norm):
        module.idle = nn.Parameter(torch.ones(5, 3))


def values(engine) -> dict[str, torch.Tensor]:
    return engine.state_dict()["model"]


@pytest.mark.parametrize("zero", range(4))
def test_parameters_without_gradient_stay_as_they_are(ranks, zero):
    """Not even weight decay touches them, and they do not hold up the others."""
    case = Case(prepare=add_idle_parameters, steps=3)
    layout = f"dp=4,zero={zero},grad_acc=2"
    for [(run, state)] in ranks(on_ranks, [(case, layout, {})], values, ranks=4).values:
        assert run.error(on_one_device(case)) <= TOLERANCE
        idle = [name for name in state if name.endswith("idle")]
        assert len(idle) == 3
        assert all(torch.equal(state[name], torch.ones(5, 3)) for name in idle)


@pytest.mark.parametrize("zero", range(4))
def test_a_world_larger_than_a_parameter(ranks, zero):
    """Norms of 5 elements on 8 ranks: some of them own nothing of a parameter."""
    small = BLOCKS["llama"].replace(hidden=5, heads=1, kv_heads=1, head_dim=2, ffn=3, qk_norm=True, vocab=11)
    case = Case(small, steps=4)
    options = {} if zero == 3 else {"bucket": 40, "first_bucket": 40}
    for [run] in ranks(on_ranks, [(case, f"dp=8,zero={zero}", options)], ranks=8).values:
        assert run.error(reference(case)) <= TOLERANCE


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("offload", [False, True])
def test_bf16_weights_with_fp32_masters(ranks, zero, offload):
    """Masters are fp32 shards. Sums of bf16 gradients are rounded in another order: close, not equal."""
    case = Case(dtype=torch.bfloat16, offload=offload, steps=4)
    for [(run, tensors)] in ranks(on_ranks, [(case, f"dp=2,zero={zero}", {})], dtypes, ranks=2).values:
        assert tensors == {
            "parameters": {torch.bfloat16},
            "gradients": {torch.bfloat16},
            "optimizer": {torch.float32},
        }
        assert run.error(reference(case)) < 0.02


def dtypes(engine) -> dict[str, set]:
    return {kind: {t.dtype for t in tensors} for kind, tensors in engine.tensors().items()}


@pytest.mark.parametrize("zero", range(4))
def test_offloading_changes_nothing(ranks, zero):
    runs = [(Case(offload=offload, steps=4), f"dp=3,zero={zero}", {}) for offload in (False, True)]
    for plain, offloaded in ranks(on_ranks, runs, ranks=3).values:
        assert offloaded.error(plain) <= 1e-6
