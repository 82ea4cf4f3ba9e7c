"""Models of fused kernels learn on many ranks what one device learns with PyTorch's operators."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from helpers import DEEPSEEK, GPT, LLAMA, MIXTRAL
from parallel_runs import Case, Run, on_one_device, on_ranks

TOLERANCE = 1e-5
SMALL = {"steps": 1, "samples": 2, "seq": 5, "kernels": "fused"}
LLAMA, MIXTRAL = (one.replace(layers=1, hidden=32, heads=4, kv_heads=2) for one in (LLAMA, MIXTRAL))
CASES = {
    "query norm, tied": Case(LLAMA.replace(qk_norm=True, tied=True), **SMALL),
    "selective": Case(LLAMA, recompute="selective", **SMALL),
    "full": Case(LLAMA, recompute="full", **SMALL),
    "two layers": Case(LLAMA.replace(layers=2), **{**SMALL, "samples": 4}),
    "three words": Case(LLAMA.replace(kv_heads=1, ffn=52, vocab=3), **SMALL),
    "gpt": Case(GPT.replace(heads=4), **SMALL),
    "mixtral": Case(MIXTRAL.replace(moe={"experts": 4, "top_k": 2, "ffn": 20}), **SMALL),
    "deepseek": Case(DEEPSEEK.replace(layers=2), **SMALL),
}  # fmt: skip
#: Every axis and every kind of model; on one rank kernels are held to their twins (``tests/kernels``).
LAYOUTS = {
    2: [
        ("full", "cp=2", {"context": "gather"}),
        ("selective", "dp=2,zero=3", {}),
        ("gpt", "pp=2,grad_acc=2,schedule=zb-h1", {}),
        ("deepseek", "dp=2,ep=2,zero=1", {}),
    ],
    4: [
        ("query norm, tied", "cp=2,tp=2,sp", {"context": "ring"}),
        ("three words", "tp=4", {}),  # the last rank has none of them
        ("two layers", "pp=2,dp=2,zero=2,grad_acc=2", {}),
        ("mixtral", "dp=2,ep=2,tp=2", {}),
    ],
}


@functools.cache
def reference(case: Case) -> Run:
    """PyTorch's operators, one device."""
    return on_one_device(dataclasses.replace(case, kernels="torch", recompute="none"))


@pytest.mark.parametrize("world", LAYOUTS)
def test_fused_kernels_learn_the_same(ranks, world):
    runs = [(CASES[name], layout, options) for name, layout, options in LAYOUTS[world]]
    for rank, each in enumerate(ranks(on_ranks, runs, ranks=world).values):
        for (case, text, options), run in zip(runs, each, strict=True):
            assert run.error(reference(case)) <= TOLERANCE, (rank, case, text, options)


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16])
def test_weights_of_sixteen_bits(weights):
    """Gradients are PyTorch's up to the rounding of 16 bits."""
    case = Case(LLAMA, dtype=weights, **SMALL)
    plain = dataclasses.replace(case, kernels="torch")
    assert on_one_device(case).error(on_one_device(plain)) < 8 * torch.finfo(weights).eps
