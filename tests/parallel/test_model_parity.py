"""Tensor, sequence and context parallelism, alone and with data parallelism and ZeRO: what one device gives, in
the messages that are predicted."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from all_pairs import all_pairs, combined
from helpers import BLOCKS
from parallel_runs import Case, on_ranks, reference
from traffic_runs import check_run

from playbook.layout import Layout
from playbook.layout.fields import CONTEXT

TOLERANCE = 1e-5
#: The samples of most cases have 9 tokens, and the vocabularies 97 or 37 words: nothing divides.
SHAPES = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4, vocab=37),
    "grouped": BLOCKS["llama"].replace(hidden=32, heads=8, kv_heads=2, ffn=52),
    "tied, query norm": BLOCKS["llama"].replace(heads=4, kv_heads=4, ffn=52, qk_norm=True, tied=True),
    "one key head": BLOCKS["llama"].replace(heads=4, kv_heads=1, ffn=52, qk_norm=True, qkv_bias=True),
}


parse = functools.cache(Layout.parse)
Runs = list[tuple[Case, str, dict]]


def check(ranks, runs: Runs, world: int) -> None:
    for rank, found in enumerate(ranks(on_ranks, runs, None, True, ranks=world).values):
        for (case, text, options), run in zip(runs, found, strict=True):
            error = run.error(reference(replace(case, recompute="none")))
            assert error <= TOLERANCE, (rank, case, text, options)
            check_run(case, text, options, rank, run)


#: How ranks share the work, by their number.
AXES = {2: ("tp=2", "cp=2"), 4: ("tp=4", "cp=4", "cp=2,tp=2", "tp=2,dp=2", "cp=2,dp=2")}


def fits(one: dict[str, Any]) -> bool:
    """Options of an axis that is not there are None; and what a technique asks for."""
    layout, shape = parse(one["axes"]), SHAPES[one["shape"]]
    for axis, names in (("tp", ("sp", "overlap")), ("cp", ("context", "placement")), ("dp", ("zero",))):
        if any((one[name] is None) == (getattr(layout, axis) > 1) for name in names):
            return False
    if one["overlap"] == "chunked" and not one["sp"]:
        return False
    whole_heads = shape.n_kv_heads >= layout.tp * layout.cp and one["placement"] == "contiguous"
    return one["context"] != "ulysses" or whole_heads


def run_of(one: dict[str, Any]) -> tuple[Case, str, dict]:
    zero, given = (
        one["zero"],
        {"tensor_overlap": one["overlap"], "context": one["context"], "placement": one["placement"]},
    )
    text = together(one) + (f",zero={zero}" if zero else "")
    buckets = {"bucket": 3000} if zero in (1, 2) else {}
    options = {name: value for name, value in given.items() if value is not None} | buckets
    # A second step has seen weights that came back; an update of cut ones is in the tests below.
    steps = 2 if zero else 1
    return (
        Case(SHAPES[one["shape"]], one["recompute"], steps=steps),
        f"{text},grad_acc={one['grad_acc']}",
        options,
    )


def apart(one: dict[str, Any]) -> dict[str, Any]:
    """Each axis is an option of its own."""
    layout = parse(one["axes"])
    return {name: value for name, value in one.items() if name != "axes"} | {
        axis: getattr(layout, axis) for axis in ("tp", "cp", "dp")
    }


def together(one: dict[str, Any]) -> str:
    return ",".join(["sp"] * bool(one["sp"]) + [f"{axis}={one[axis]}" for axis in ("tp", "cp", "dp")])


def cost(one: dict[str, Any]) -> float:
    """About the messages between all ranks, and their passes."""
    return world_of(one) * (world_of(one) + one["grad_acc"] * (1 + bool(one["zero"])))


def world_of(one: dict[str, Any]) -> int:
    return one["tp"] * one["cp"] * one["dp"]


@functools.cache
def chosen() -> list[dict[str, Any]]:
    """Any two options on some number of ranks."""
    cases = combined(
        axes=sum(AXES.values(), ()), sp=(None, False, True), overlap=(None, "none", "async", "chunked"),
        context=(None, "ring", "gather", "ulysses"), placement=(None, "zigzag", "contiguous"), zero=(None, 1, 2, 3),
        grad_acc=(1, 3), shape=tuple(SHAPES),
        recompute=("none", "selective", "full+offload", "mlp+moe", "core_attn+offload"),
    )  # fmt: skip
    return all_pairs(map(apart, filter(fits, cases)), cost)


@pytest.mark.parametrize("part", range(3))
def test_any_two_options(ranks, part):
    assert {world_of(one) for one in chosen()} == {4}
    check(ranks, [run_of(one) for one in chosen()][part::3], 4)


def test_all_axes_at_once(ranks):
    case = Case(SHAPES["grouped"], "full", steps=2)
    check(ranks, [(case, f"tp=2,sp,cp=2,dp=2,zero={zero}", {}) for zero in (1, 3)], 8)


def test_without_a_causal_mask(ranks):
    """Tokens that see all others: nothing may be padded, so the samples have 8."""
    runs = [
        (Case(SHAPES[name], causal=False, seq=8, steps=1), text, options)
        for name in ("gpt", "tied, query norm")
        for text, options in (
            ("tp=2", {}), ("tp=2,sp", {}), ("tp=2,sp,grad_acc=3", {"tensor_overlap": "chunked"}),
            ("cp=2,grad_acc=3", {"placement": "contiguous"}), *(("cp=2", {"context": name}) for name in CONTEXT),
        )
    ]  # fmt: skip
    check(ranks, runs, 2)


def test_ten_steps(ranks):
    """As many as the losses of data parallelism are compared for."""
    check(ranks, [(Case(SHAPES["grouped"]), "cp=2,tp=2,sp", {})], 4)
