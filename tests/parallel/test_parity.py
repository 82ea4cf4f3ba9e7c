"""Data parallelism and ZeRO give the losses, gradients and gradient norms of one device, whatever is combined."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import BLOCKS
from parallel_runs import Case, on_ranks, reference
from torch import nn
from traffic_runs import check_run

#: Bytes: small enough that even these models have several buckets, which end in the middle of parameters.
BUCKETS = {"bucket": 20_000, "first_bucket": 3_000}
TOLERANCE = 1e-5


Runs = list[tuple[Case, str, dict]]


def check(ranks, runs: Runs, dp: int, most: float = TOLERANCE) -> None:
    """Every run on ``dp`` ranks of one launch against one device."""
    found = ranks(on_ranks, runs, None, True, ranks=dp).values
    errors = {
        (case, text, str(options), rank): run.error(reference(replace(case, recompute="none")))
        for rank, results in enumerate(found)
        for (case, text, options), run in zip(runs, results, strict=True)
    }
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= most, (worst, errors[worst])
    for rank, results in enumerate(found):
        for (case, text, options), run in zip(runs, results, strict=True):
            check_run(case, text, options, rank, run)


STAGES = all_pairs(
    combined(
        dp=(1, 2, 3, 4, 6),
        zero=range(4),
        grad_acc=(1, 4),
        block=list(BLOCKS),
        tied=(False, True),
        recompute=("none", "full"),
    ),
    lambda one: one["dp"],
)


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 6])
def test_every_stage_is_one_device(ranks, dp):
    """Any two of ranks, stage, accumulation, tied embeddings and recomputation."""
    runs = []
    for one in (one for one in STAGES if one["dp"] == dp):
        steps = 2 if one["grad_acc"] == 1 else 1
        case = Case(BLOCKS[one["block"]].replace(tied=one["tied"]), one["recompute"], steps=steps)
        options = {} if one["zero"] == 3 else BUCKETS
        runs.append((case, f"dp={dp},zero={one['zero']},grad_acc={one['grad_acc']}", options))
    check(ranks, runs, dp)


OPTIONS = {
    "naive": ("dp={dp}", {"data_parallel": "naive"}),
    "overlapped": ("dp={dp}", {"data_parallel": "overlapped"}),
    "bucketed, small": ("dp={dp}", {"bucket": 1000, "first_bucket": 500}),
    "bucketed, one for all": ("dp={dp}", {}),
    "zero 1, lazily": ("dp={dp},zero=1", {**BUCKETS, "gather": "lazily"}),
    "zero 2, lazily": ("dp={dp},zero=2", {**BUCKETS, "gather": "lazily"}),
    "zero 1, small buckets": ("dp={dp},zero=1", {"bucket": 1000, "first_bucket": 500}),
    "zero 3, no prefetch": ("dp={dp},zero=3", {"prefetch": False}),
    "zero 3, no reshard": ("dp={dp},zero=3", {"reshard": False}),
}


ALTERNATIVES = all_pairs(
    combined(
        option=list(OPTIONS),
        dp=(2, 3),
        grad_acc=(1, 2),
        block=list(BLOCKS),
        recompute=("offload", "full", "core_attn+mlp+moe", "full+offload:1"),
    ),
    lambda one: one["dp"] * one["grad_acc"],
)


@pytest.mark.parametrize("dp", [2, 3])
def test_every_option_is_one_device(ranks, dp):
    """Any two of option, ranks, accumulation, block and recomputation."""
    runs = []
    for one in (one for one in ALTERNATIVES if one["dp"] == dp):
        text, options = OPTIONS[one["option"]]
        case = Case(BLOCKS[one["block"]], one["recompute"], steps=3 - one["grad_acc"])
        runs.append((case, f"{text.format(dp=dp)},grad_acc={one['grad_acc']}", options))
    check(ranks, runs, dp)


def add_idle_parameters(model: nn.Module) -> None:
    """Parameters that no forward pass uses: at the front, in the middle and at the end of backward."""
    for module in (model.embedding, model.blocks[0], model.final_norm):
        module.idle = nn.Parameter(torch.ones(5, 3))


def values(engine) -> dict[str, torch.Tensor]:
    return engine.state_dict()["model"]


def test_parameters_without_gradient_stay_as_they_are(ranks):
    """Not even weight decay touches them, and they do not hold up the others."""
    case = Case(prepare=add_idle_parameters, steps=2)
    runs = [(case, f"dp=3,zero={zero},grad_acc=2", {}) for zero in range(4)]
    for results in ranks(on_ranks, runs, values, ranks=3).values:
        for (_, text, _), (run, state) in zip(runs, results, strict=True):
            assert run.error(reference(case)) <= TOLERANCE, text
            idle = [name for name in state if name.endswith("idle")]
            assert len(idle) == 3
            assert all(torch.equal(state[name], torch.ones(5, 3)) for name in idle), text


def test_ten_steps(ranks):
    """Of every stage; as many as tensor and context parallelism are compared for."""
    check(ranks, [(Case(), f"dp=2,zero={zero}", BUCKETS if zero < 3 else {}) for zero in range(4)], 2)


def test_a_world_larger_than_a_parameter(ranks):
    """Norms of 5 elements on 6 ranks: some of them own nothing of a parameter."""
    small = BLOCKS["llama"].replace(
        layers=1, hidden=5, heads=1, kv_heads=1, head_dim=2, ffn=3, qk_norm=True, vocab=11
    )
    buckets = {"bucket": 120, "first_bucket": 40}
    case = Case(small, steps=2)
    runs = [(case, f"dp=6,zero={zero}", buckets if zero < 3 else {}) for zero in range(4)]
    check(ranks, runs, 6)


def test_bf16_weights_with_fp32_masters(ranks):
    """Masters are fp32 shards. Sums of bf16 gradients are rounded in another order: close, not equal."""
    runs = [
        (Case(dtype=torch.bfloat16, offload=offload, steps=3), f"dp=2,zero={zero}", {})
        for zero in range(4)
        for offload in (False, True)
    ]
    for results in ranks(on_ranks, runs, dtypes, ranks=2).values:
        for (case, text, _), (run, tensors) in zip(runs, results, strict=True):
            assert tensors == {
                "parameters": {torch.bfloat16},
                "gradients": {torch.bfloat16},
                "optimizer": {torch.float32},
            }, (text, case.offload)
            assert run.error(reference(case)) < 0.02, (text, case.offload)


def test_moments_in_few_bits(ranks):
    """Rounded element by element in BF16; in E4M3 and FP16 each shard has scales of its own, which are powers of two."""
    for moments, most in (("bf16", 1e-4), ("fp8", 1e-2)):
        case = Case(BLOCKS["llama"], moments=moments, steps=3)
        runs = [(case, f"dp=3,zero={zero}", BUCKETS if zero < 3 else {}) for zero in range(4)]
        check(ranks, runs, 3, most)


def dtypes(engine) -> dict[str, set]:
    return {kind: {t.dtype for t in tensors} for kind, tensors in engine.tensors().items()}


def test_offloading_changes_nothing(ranks):
    runs = [
        (Case(offload=offload, steps=3), f"dp=2,zero={zero}", {})
        for zero in range(4)
        for offload in (False, True)
    ]
    for results in ranks(on_ranks, runs, ranks=2).values:
        for plain, offloaded in zip(results[::2], results[1::2], strict=True):
            assert offloaded.error(plain) <= 1e-6
