"""Layers that multiply in four bits learn on many ranks what they learn on one device, rounding at random included."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial

import pytest
from helpers import LLAMA
from parallel_runs import Case, Run, on_one_device, on_ranks

from playbook.model.fp4 import FP4
from playbook.model.fp8 import use_fp8
from playbook.model.linear import TORCH, Linear, linear_layers

DENSE = LLAMA.replace(hidden=64, heads=4, kv_heads=2, ffn=96, layers=2, max_seq=64)
EXPERTS = DENSE.replace(moe={"experts": 4, "top_k": 2, "ffn": 32, "shared_experts": 1})
LATENT = DENSE.replace(
    heads=4, kv_heads=4, mla={"q_rank": 32, "kv_rank": 32, "nope_dim": 16, "rope_dim": 16, "value_dim": 16}
)
#: Where no sum is in another order that a code hangs on, gradients are the same but for their own sums.
ROUNDING = 1e-6
EXACT = (
    "dp=2,zero=3",
    "tp=2",
    "cp=2",
    "pp=2,grad_acc=2,schedule=zb-h1",
    "dp=2,ep=2",
    "dp=2,tp=2,zero=3",
    "dp=4,ep=2",
)
#: Elsewhere some code is taken for its neighbour; those of four bits lie farther apart than those of eight.
CODE = 4e-3
SIZES = {"steps": 2, "samples": 4, "seq": 64}


def case(shape, recipe: str, **given) -> Case:
    name, alone, _ = recipe.partition(" of experts")
    prepare = partial(of_experts, recipe=name) if alone else partial(use_fp8, recipe=name, seed=3)
    return Case(shape, prepare=prepare, **{**SIZES, **given})


def of_experts(model, recipe: str) -> None:
    """Experts alone in four bits: a tensor's scale is that of all ranks of ep, which other layers have micro-batches of
    their own on."""
    use_fp8(model, recipe, seed=3)
    for layer in linear_layers(model):
        if isinstance(layer, Linear):
            layer.products = TORCH


@functools.cache
def reference(shape, name: str, grad_acc: int) -> Run:
    return on_one_device(case(shape, name), grad_acc)


#: Model, recipe, layout, recomputation, and the micro-batches that one device has in a step.
RUNS = {
    2: [
        (DENSE, "nvfp4", "dp=2,zero=3", "none", 2),
        (DENSE, "nvfp4", "tp=2", "full", 1),
        (DENSE, "nvfp4,square=off", "tp=2,sp", "none", 1),
        (DENSE, "nvfp4", "cp=2", "none", 1),
        (DENSE, "mxfp4", "dp=2,zero=1", "none", 2),
        (DENSE, "nvfp4", "pp=2,grad_acc=2,schedule=zb-h1", "none", 2),
        (LATENT, "nvfp4", "tp=2,sp", "none", 1),
        (EXPERTS, "mxfp4", "dp=2,ep=2", "none", 1),
        (EXPERTS, "nvfp4,hadamard=off", "tp=2,sp", "none", 1),
    ],
    4: [
        (DENSE, "nvfp4", "cp=2,tp=2,sp", "full", 1),
        (DENSE, "nvfp4", "dp=2,tp=2,zero=3", "none", 2),
        (EXPERTS, "nvfp4 of experts", "dp=4,ep=2", "none", 2),
        (EXPERTS, "nvfp4 of experts", "dp=2,ep=2,tp=2,sp", "full", 1),
        (DENSE, "nvfp4,stochastic=off", "pp=2,tp=2,sp,grad_acc=4,schedule=1f1b", "none", 4),
        (EXPERTS, "mxfp4", "dp=4,ep=2,zero=2", "none", 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("world", RUNS)
def test_ranks_learn_what_one_device_learns(ranks, world):
    runs = [(case(shape, name, recompute=again), layout, {}) for shape, name, layout, again, _ in RUNS[world]]
    for rank, each in enumerate(ranks(on_ranks, runs, ranks=world).values):
        for (shape, name, layout, _, grad_acc), run in zip(RUNS[world], each, strict=True):
            alone = reference(shape, name, grad_acc)
            assert (run.losses / alone.losses - 1).abs().max() <= 1e-6, (rank, name, layout)
            assert run.error(alone) <= (ROUNDING if layout in EXACT else CODE), (rank, name, layout)


def test_rows_of_documents_round_alike(ranks):
    """The rows of a micro-batch are one, in which each token has a place of its own."""
    runs = [
        (case(DENSE, "nvfp4", documents=True), layout, {})
        for layout in ("dp=2", "tp=2,sp", "pp=2,grad_acc=2", "dp=2,zero=3,grad_acc=2")
    ]
    runs.append((case(EXPERTS, "mxfp4", documents=True), "dp=2,ep=2", {}))
    for each in ranks(on_ranks, runs, ranks=2).values:
        for (one, layout, _), run, grad_acc in zip(runs, each, (2, 1, 2, 4, 1), strict=True):
            alone = on_one_device(one, grad_acc)
            assert (run.losses / alone.losses - 1).abs().max() <= 1e-6, layout
            assert run.error(alone) <= (CODE if layout == "tp=2,sp" else ROUNDING), layout


def deaf(model, recipe: str, what: str) -> None:
    """Layers whose ranks tell each other no magnitudes, or do not know of which columns they are."""
    use_fp8(model, recipe, seed=3)
    for layer in linear_layers(model):
        if isinstance(layer.products, FP4):
            layer.products.over = partial(_over, layer.products, what)


def _over(products: FP4, what: str, group, *tensors: str) -> None:
    FP4.over(products, group, *tensors)
    if what == "magnitudes":
        products._groups = {"x": [], "dy": [], "weight": []}
    else:
        products._columns = None


@pytest.mark.parametrize("what", ["magnitudes", "columns"])
def test_what_ranks_must_know_of_each_other(ranks, what):
    one = dataclasses.replace(case(DENSE, "nvfp4"), prepare=partial(deaf, recipe="nvfp4", what=what))
    for (run,) in ranks(on_ranks, [(one, "tp=2", {})], ranks=2).values:
        assert run.error(reference(DENSE, "nvfp4", 1)) > 10 * CODE
