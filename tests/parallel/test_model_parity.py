"""Tensor, sequence and context parallelism, alone and with data parallelism and ZeRO: what one device gives."""

from __future__ import annotations

import functools

import pytest
from helpers import BLOCKS
from parallel_runs import Case, Run, on_one_device, on_ranks

from playbook.shapes import ModelShape

TOLERANCE = 1e-5
#: The samples of most cases have 9 tokens, and the vocabularies 97 or 37 words: nothing divides.
SHAPES = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4, vocab=37),
    "grouped": BLOCKS["llama"].replace(hidden=32, heads=8, kv_heads=2, ffn=52),
    "tied, query norm": BLOCKS["llama"].replace(heads=4, kv_heads=4, ffn=52, qk_norm=True, tied=True),
    "one key head": BLOCKS["llama"].replace(heads=4, kv_heads=1, ffn=52, qk_norm=True, qkv_bias=True),
}


@functools.cache
def reference(case: Case) -> Run:
    return on_one_device(case)


def check(ranks, case: Case, runs: list[tuple[str, dict]], world: int) -> None:
    given = [(case, text, options) for text, options in runs]
    for rank, found in enumerate(ranks(on_ranks, given, ranks=world, timeout=200).values):
        for (text, options), run in zip(runs, found, strict=True):
            assert run.error(reference(case)) <= TOLERANCE, (rank, text, options)


TWO_RANKS = [
    ("tp=2", {}),
    ("tp=2", {"tensor_overlap": "none"}),
    ("tp=2,sp", {}),
    ("tp=2,sp", {"tensor_overlap": "none"}),
    ("tp=2,sp,grad_acc=3", {"tensor_overlap": "chunked"}),
    ("cp=2", {}),
    ("cp=2,grad_acc=3", {"placement": "contiguous"}),
    ("cp=2", {"context": "gather"}),
]
FOUR_RANKS = [
    ("tp=4", {}),
    ("tp=4,sp", {"tensor_overlap": "chunked"}),
    ("cp=4", {}),
    ("cp=4", {"placement": "contiguous"}),
    ("cp=4", {"context": "gather"}),
    ("cp=2,tp=2", {"context": "gather", "placement": "contiguous"}),
    ("cp=2,tp=2,sp", {}),
    ("tp=2,sp,dp=2,zero=1,grad_acc=2", {"bucket": 3000}),
    ("tp=2,sp,dp=2,zero=3", {}),
    ("cp=2,dp=2,zero=2,grad_acc=2", {"bucket": 3000}),
]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", SHAPES)
def test_two_ranks(ranks, name, recompute):
    whole_heads = [("cp=2", {"context": "ulysses"})] if SHAPES[name].n_kv_heads > 1 else []
    check(ranks, Case(SHAPES[name], recompute, steps=3), TWO_RANKS + whole_heads, 2)


@pytest.mark.parametrize(
    ("name", "recompute"),
    [("gpt", "selective"), ("grouped", "none"), ("tied, query norm", "full"), ("one key head", "none")],
)
def test_four_ranks(ranks, name, recompute):
    whole_heads = [("cp=4", {"context": "ulysses"})] if SHAPES[name].n_kv_heads == 4 else []
    check(ranks, Case(SHAPES[name], recompute, steps=3), FOUR_RANKS + whole_heads, 4)


def test_all_axes_at_once(ranks):
    runs = [(f"tp=2,sp,cp=2,dp=2,zero={zero}", {}) for zero in range(4)]
    check(ranks, Case(SHAPES["grouped"], "full", steps=3), runs, 8)


@pytest.mark.parametrize("name", ["gpt", "tied, query norm"])
def test_without_a_causal_mask(ranks, name):
    """Tokens that see all others: nothing may be padded, so the samples have 8."""
    runs = [(text, options) for text, options in TWO_RANKS if options != {"tensor_overlap": "none"}]
    check(
        ranks, Case(SHAPES[name], causal=False, seq=8, steps=2), [*runs, ("cp=2", {"context": "ulysses"})], 2
    )


def test_ten_steps(ranks):
    """As many as the losses of data parallelism are compared for."""
    shape: ModelShape = SHAPES["grouped"]
    check(ranks, Case(shape), [("tp=4,sp", {}), ("cp=2,tp=2,sp", {}), ("cp=4", {})], 4)
