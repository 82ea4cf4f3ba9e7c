"""Hybrid sharding: ZeRO over dp / replicate neighbours, gradients summed over the other replicas. One device, as ever."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from all_pairs import all_pairs, combined
from parallel_runs import BUCKETS, SMALL, Case, on_ranks, reference
from traffic_runs import check_kept, check_run, kept

from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.shapes import ModelShape

TOLERANCE = 1e-5


def check(ranks, runs: list[tuple[Case, str, dict]], world: int) -> None:
    every = ranks(on_ranks, runs, kept, True, ranks=world).values
    for i, (case, text, options) in enumerate(runs):
        check_kept(case, text, options, [found[i][1] for found in every])
        for rank, (run, _) in enumerate(found[i] for found in every):
            error = run.error(reference(replace(case, recompute="none")))
            assert error <= TOLERANCE, (rank, case, text, options, error)
            check_run(case, text, options, rank, run)


def layout_of(one: dict[str, Any]) -> Layout:
    return Layout.parse(text_of(one))


def text_of(one: dict[str, Any]) -> str:
    axes = ",".join(
        f"{axis}={one[axis]}" for axis in ("tp", "cp", "pp", "ep", "zero", "replicate", "grad_acc")
    )
    return (
        f"dp={one['each'] * one['replicate']},{axes},schedule={one['schedule']},micro_batch=2"
        + ",sp" * one["sp"]
    )


def shape_of(one: dict[str, Any]) -> ModelShape:
    """A layer for each stage, of which these schedules have two on a rank."""
    shape = SMALL[one["shape"]]
    return shape.replace(layers=4) if one["schedule"] in ("zb-v", "dualpipe") else shape


def world_of(one: dict[str, Any]) -> int:
    return one["each"] * one["replicate"] * one["tp"] * one["cp"] * one["pp"]


def fits(one: dict[str, Any]) -> bool:
    """As many as two cores can run; and what each axis asks for. All axes together are in a test of their own."""
    others = sum(one[axis] > 1 for axis in ("tp", "cp", "pp"))
    if (
        world_of(one) > (4 if one["schedule"] == "dualpipe" else 8)
        or others > (one["replicate"] == 2)
        or one["sp"] != (one["tp"] > 1)
        or (one["pp"] == 1) != (one["schedule"] == "naive")
    ):
        return False
    with suppress(LayoutError):
        layout = layout_of(one)
        layout.check(shape_of(one), seq=layout.padded(9))
        return True
    return False


def steps(one: dict[str, Any]) -> int:
    """A second step has seen weights that came back, and that of 1F1B those of a stage."""
    return 2 if shape_of(one).layers == 2 else 1


def cost(one: dict[str, Any]) -> int:
    """About the passes of all ranks, and the messages between them."""
    passes = shape_of(one).layers * (1 + steps(one) * one["grad_acc"]) / one["pp"]
    return world_of(one) * (2 * world_of(one) + passes)


WORLDS = (3, 4, 6, 8)


@functools.cache
def chosen() -> list[dict[str, Any]]:
    """A shard group is one rank, two or three along dp, and those along cp."""
    every = combined(
        each=(1, 2, 3), replicate=(2, 3), zero=(1, 2, 3), tp=(1, 2), sp=(False, True), cp=(1, 2), pp=(1, 2), ep=(1, 2),
        grad_acc=(1, 4), schedule=("naive", "1f1b", "zb-v", "dualpipe"), shape=tuple(SMALL), recompute=("none", "full"),
    )  # fmt: skip
    return all_pairs(filter(fits, every), cost)


def run_of(one: dict[str, Any]) -> tuple[Case, str, dict]:
    samples = 2 * one["each"] * one["replicate"] * one["grad_acc"]
    case = Case(shape_of(one), one["recompute"], steps=steps(one), samples=samples)
    return case, text_of(one), BUCKETS if one["zero"] < 3 else {}


@pytest.mark.parametrize("world", WORLDS)
def test_any_two_options_are_one_device(ranks, world):
    runs = [run_of(one) for one in chosen() if world_of(one) == world]
    assert {world_of(one) for one in chosen()} == set(WORLDS)
    check(ranks, runs, world)


def test_on_eight_ranks(ranks):
    """Pipelines that run both ways beside other axes, and experts that lie on ranks of tp."""
    tied, experts = (Case(SMALL[name].replace(layers=4), steps=1, samples=16) for name in ("tied", "experts"))
    both_ways = "pp=2,schedule=dualpipe,grad_acc=4"
    runs = [
        (tied, f"dp=2,tp=2,sp,{both_ways},zero=1,replicate=2,micro_batch=2", BUCKETS),
        (experts, f"dp=4,ep=2,{both_ways},zero=3,replicate=2", {}),
        (experts, "dp=4,tp=2,sp,ep=4,etp=1,zero=3,replicate=2,micro_batch=4", {}),
    ]
    check(ranks, runs, 8)


def test_with_options(ranks):
    case = Case(SMALL["tied"], steps=2, samples=24)
    deep = replace(case, shape=case.shape.replace(layers=4))
    runs = [
        (case, "dp=4,zero=1,replicate=2,grad_acc=3,micro_batch=2", {**BUCKETS, "gather": "lazily"}),
        (case, "dp=4,zero=2,replicate=2,grad_acc=3,micro_batch=2", {**BUCKETS, "find_unused": True}),
        (case, "dp=4,zero=3,replicate=2,grad_acc=3,micro_batch=2", {"reshard": False}),
        (deep, "dp=2,pp=2,zero=3,replicate=2,grad_acc=6,micro_batch=2,vpp=2,schedule=interleaved", {}),
    ]
    check(ranks, runs, 4)


def test_all_axes_at_once(ranks):
    """Experts are spread over the two ranks of a shard group, those of one sample."""
    case = Case(SMALL["experts"], steps=1, samples=4)
    check(ranks, [(case, "tp=2,sp,cp=2,pp=2,dp=2,ep=2,zero=3,replicate=2,grad_acc=2", {})], 16)
