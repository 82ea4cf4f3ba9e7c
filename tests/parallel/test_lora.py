"""LoRA on many ranks: losses, gradients and norms of one device; kept, saved and sent what is foretold, to the byte."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import BLOCKS, DEEPSEEK
from parallel_runs import Case, Run, on_one_device, on_ranks
from torch import nn
from traffic_runs import SEQ, check_run

from playbook.layout import Layout
from playbook.planning.memory import predict

#: Odd sizes and biases; keys and values of which four tensor-parallel ranks hold copies; latent attention.
SHAPES = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4, layers=4),
    "llama": BLOCKS["llama"].replace(
        hidden=32, heads=8, kv_heads=2, ffn=52, vocab=38, layers=4, qk_norm=True
    ),
    "latent": DEEPSEEK.replace(moe=None, heads=4, tied=True, bias=True, qkv_bias=False, ffn=52, layers=4),
}
#: Adapters, or parts of a model: each with the layouts in turn.
TRAIN = {
    "gpt": ("attention+norms", "mlp+head", "embedding"),
    "llama": ("mlp", "embedding+norms", "attention+head"),
    "latent": ("norms+head", "norms", "embedding+mlp"),
}


def stir(model: nn.Module) -> None:
    """B at other numbers than the zeros that it begins with, beside which A has no gradient."""
    generator = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        if name.endswith("lora_B.weight"):
            p.data.copy_(torch.randn(p.shape, generator=generator) / 10)


def case_of(name: str, train: str = "lora:3", **options: Any) -> Case:
    return Case(SHAPES[name].replace(train=train), steps=2, seq=SEQ, prepare=stir, **options)


@functools.cache
def reference(case: Case) -> Run:
    return on_one_device(case)


#: A layout, and what is computed again.
LAYOUTS = {
    2: [
        "dp=2", "dp=2,zero=1,grad_acc=2", "dp=2,zero=2,grad_acc=2", "dp=2,zero=3,grad_acc=2", "dp=2,zero=3 full",
        "tp=2", "tp=2,sp", "tp=2,sp full", "cp=2", "pp=2,grad_acc=4", "pp=2,grad_acc=4,schedule=zb-v",
        "pp=2,grad_acc=4 mlp",
    ],
    4: [
        "tp=4", "tp=4,sp", "tp=2,dp=2,zero=1", "cp=2,dp=2,zero=3", "pp=2,tp=2,sp,grad_acc=4,schedule=zb-h1",
        "pp=2,dp=2,zero=2,grad_acc=4,schedule=dualpipe", "pp=2,dp=2,zero=3,grad_acc=2", "tp=2,sp,dp=2,zero=3 mlp",
        "dp=4,zero=3,replicate=2,grad_acc=2", "dp=4,zero=2,replicate=2,grad_acc=2",
    ],
}  # fmt: skip


@pytest.mark.parametrize("block", SHAPES)
@pytest.mark.parametrize("world", LAYOUTS)
def test_every_layout_is_one_device(ranks, world, block):
    """And each message is one that was foretold. Adapters and parts take turns: both meet every layout and block."""
    runs = []
    for i, (text, _, recompute) in enumerate(one.partition(" ") for one in LAYOUTS[world]):
        parts = (i + list(SHAPES).index(block)) % 2
        case = case_of(block, TRAIN[block][i % 3] if parts else "lora:3", recompute=recompute or "none")
        runs.append((case, text, {"bucket": 2000, "first_bucket": 500} if "zero=2" in text else {}))
    for rank, results in enumerate(ranks(on_ranks, runs, None, True, ranks=world).values):
        for (case, text, options), run in zip(runs, results, strict=True):
            assert run.error(reference(replace(case, recompute="none"))) <= 1e-5, text
            check_run(replace(case, prepare=None), text, options, rank, run)


def states(engine: Any) -> dict[str, int]:
    return {kind: sum(t.nbytes for t in tensors) for kind, tensors in engine.tensors().items()}


@pytest.mark.parametrize(
    ("block", "train"), [(block, train) for block in SHAPES for train in ("lora:3", TRAIN[block][1])]
)
def test_states_are_those_foretold(ranks, block, train):
    texts = [
        "tp=2",
        "tp=2,sp",
        "cp=2",
        "dp=2,zero=3,replicate=2",
        *(f"dp=2,zero={zero}" for zero in range(4)),
    ]
    how = {"seq": SEQ, "recipe": "fp32", "device": "cpu"}
    runs = [(replace(case_of(block, train), steps=1), text, {}) for text in texts]
    kept = ranks(on_ranks, runs, states, ranks=2).values
    for i, text in enumerate(texts):
        told = predict(case_of(block, train).shape, Layout.parse(text), **how).stages[0]
        most = {kind: max(results[i][1][kind] for results in kept) for kind in kept[0][i][1]}
        assert most == {kind: getattr(told, kind) for kind in most}, text
