"""Weights from any training layout to any sampling layout: the values, the bytes, the memory, and all of it on paper."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import DEEPSEEK
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_runs import BUCKETS, SMALL, Case, at_collectives

from playbook import launch
from playbook.errors import ConfigError, LayoutError
from playbook.instruments.counting import CountBytes
from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.planning import reshard as plan
from playbook.planning.job import Job
from playbook.planning.reshard import Region
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens
from playbook.training.reshard import gather_and_cut, held
from playbook.training.sampler import Sampler

SHAPES = {
    **{name: shape.replace(layers=4) for name, shape in SMALL.items()},
    "latent": DEEPSEEK.replace(layers=4, heads=4, tied=True),
}
LIMIT = 3000


@dataclass
class Seen:
    """What a rank saw of one case."""

    wrong: list[str]
    sent: int
    got: int
    messages: int
    again: int
    moved: bool
    weights: int


def step(case: Case, engine: Any, mesh: Mesh, number: int) -> None:
    share = case.samples // mesh.size("dp")
    x, y = (t[mesh.index("dp") * share :][:share] for t in case.batch(number))
    x, y, where = own_tokens(x, y, mesh, mesh.layout.token_placement)
    engine.zero_grad()
    engine.accumulate(x, y, max(1, share // mesh.layout.grad_acc), where)
    engine.step()


def differences(engine: Any, sampler: Sampler) -> list[str]:
    """Names of tensors that are not, to the last bit, slices of what a checkpoint of one device would have."""
    whole = engine.state_dict()["model"]
    keys = {name: key for key, name in engine.names.state.items()}
    own = dict(sampler.model.named_parameters())
    found = [
        name
        for name, p in own.items()
        if not torch.equal(sampler.placements[name].of(whole[keys[sampler.placements[name].name]]), p)
    ]
    buffers = dict(sampler.model.named_buffers())
    return found + [name for name in engine.names.buffers if not torch.equal(whole[name], buffers[name])]


def transfers(cases: list[tuple[Case, str, dict[str, Any], int]]) -> list[Seen]:
    """In a rank: a step, a sampler, another step, a refresh."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for case, text, options, tp in cases:
            mesh = Mesh(Layout.parse(text).replace(**options))
            engine = case.engine(mesh)
            step(case, engine, mesh, 0)
            sampler = Sampler(engine, tp, limit=LIMIT)
            wrong = differences(engine, sampler)
            places = [p.data_ptr() for p in sampler.model.parameters()]
            step(case, engine, mesh, 1)
            changed = differences(engine, sampler)
            count = CountBytes()
            with at_collectives(count):
                sampler.refresh()
            wrong += differences(engine, sampler) + ["no step was made"] * (not changed)
            sent, got = count["world"]["send"], count["world"]["recv"]
            kept = sum(p.nbytes for p in sampler.model.parameters())
            kept += sum(b.nbytes for name, b in sampler.model.named_buffers() if name in engine.names.buffers)
            moved = places != [p.data_ptr() for p in sampler.model.parameters()]
            seen = Seen(wrong, sent.sent, got.payload, sent.calls, count["world"].total.calls, moved, kept)
            found.append(seen)
    return found


def layout_of(one: dict[str, Any]) -> str:
    axes = ",".join(
        f"{axis}={one[axis]}" for axis in ("dp", "tp", "cp", "pp", "ep", "etp", "zero", "replicate")
    )
    acc = 4 if one["pp"] > 1 else 1
    return f"{axes},schedule={one['schedule']},grad_acc={acc},micro_batch=1" + ",sp" * (one["tp"] > 1)


def world_of(one: dict[str, Any]) -> int:
    return one["dp"] * one["tp"] * one["cp"] * one["pp"]


def fits(one: dict[str, Any]) -> bool:
    world = world_of(one)
    if not 1 < world <= 8 or (one["pp"] == 1) != (one["schedule"] == "naive") or world % one["sampler"]:
        return False
    if one["replicate"] > 1 and not one["zero"]:
        return False
    shape = SHAPES[one["shape"]]
    with suppress(LayoutError):
        layout = Layout.parse(layout_of(one))
        layout.check(shape, seq=layout.padded(9))
        Layout(dp=world // one["sampler"], tp=one["sampler"]).check(shape)
        return True
    return False


@functools.cache
def chosen() -> list[dict[str, Any]]:
    every = combined(
        dp=(1, 2, 3, 4), tp=(1, 2, 4), cp=(1, 2), pp=(1, 2), ep=(1, 2), etp=(0, 1), zero=(0, 1, 2, 3), replicate=(1, 2),
        schedule=("naive", "1f1b", "dualpipe", "zb-v"), shape=tuple(SHAPES), sampler=(1, 2, 4, 8),
    )  # fmt: skip
    return all_pairs(filter(fits, every), lambda one: world_of(one) ** 2)


@pytest.mark.parametrize("world", [2, 3, 4, 6, 8])
def test_any_two_options(ranks, world):
    """To the last bit what a checkpoint says, in the bytes and messages that a job predicts, twice in the same memory."""
    some = [one for one in chosen() if world_of(one) == world]
    assert some
    cases = [
        (
            Case(SHAPES[one["shape"]], steps=2, samples=(4 if one["pp"] > 1 else 1) * one["dp"]),
            layout_of(one),
            BUCKETS if one["zero"] in (1, 2) else {},
            one["sampler"],
        )
        for one in some
    ]
    found = ranks(transfers, cases, ranks=world).values
    for i, (case, text, options, tp) in enumerate(cases):
        job = Job(case.shape, Layout.parse(text).replace(**options), seq=9, recipe="fp32", device="cpu")
        told = plan.sent(plan.transfer(job, tp), world, LIMIT)
        to = job.on(plan.sampling(job, tp))
        for rank, seen in enumerate(each[i] for each in found):
            assert not seen.wrong, (text, tp, rank, seen.wrong[:5])
            assert not seen.moved
            counted = seen.sent, seen.got, seen.messages
            assert counted == (told.sent[rank], told.got[rank], told.messages[rank]), (text, tp, rank)
            boxes = plan.held(plan.Sender(to, rank))
            assert seen.weights >= plan.weights(boxes, plan.itemsizes(job)) > 0.9 * seen.weights
