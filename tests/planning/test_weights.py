"""Parameters of a rank on paper are those that it has: as many units, in each the same tensors in the same order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import hypothesis
import pytest
import torch.distributed as dist
from hypothesis import strategies as st
from parallel_runs import Case
from random_shapes import latents, mixtures, shapes
from torch.testing._internal.distributed.fake_pg import FakeStore

from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.job import Job
from playbook.planning.messages import Sender
from playbook.shapes import ModelShape

LAYOUTS = [
    "dp=2,ep=2",
    "dp=4,ep=2,zero=1",
    "dp=2,ep=2,tp=2",
    "tp=2,sp,zero=3",
    "tp=4,sp,dp=2,zero=2",
    "dp=2,cp=2,ep=4,zero=3",
    "dp=2,pp=2,zero=1",
    "dp=2,ep=2,pp=2,zero=2,schedule=zb-v",
    "dp=2,tp=2,ep=2,pp=2,zero=3,schedule=dualpipe",
    "cp=4,ep=2,pp=2,vpp=2,schedule=interleaved,zero=3",
]


@contextmanager
def a_rank(rank: int, world: int) -> Iterator[None]:
    """One rank among others that are not there: collectives end at once, and change nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def tensors(engine: Engine) -> list[list[list[tuple[int, str]]]]:
    """Elements of each parameter of each unit of each set, and over which ranks its gradient is a partial sum."""
    found = []
    for one in engine.sets:
        order, units = one.order, []
        for start, stop in order.regions:
            slots = [slot for slot in order.slots if start <= slot.start < stop]
            units.append([(slot.stop - slot.start, kind(engine, slot.name)) for slot in slots])
        found.append(units)
    return found


def kind(engine: Engine, name: str) -> str:
    (axis,) = engine.placements[name].partial or ("",)
    return "copies" if "/" in axis else axis


@pytest.mark.parametrize("text", LAYOUTS)
@hypothesis.settings(max_examples=8)
@hypothesis.given(shape=shapes(), experts=mixtures(), mla=st.none() | latents(), data=st.data())
def test_units_are_those_of_the_engine(text, shape, experts, mla, data):
    layout = Layout.parse(text)
    shape = fitting(shape, experts, mla)
    rank = data.draw(st.integers(0, layout.world_size - 1))
    with a_rank(rank, layout.world_size):
        engine = parallelize(Transformer(shape), Mesh(layout), Case().make())
        real = tensors(engine)
    sets = Sender(Job(shape, layout, seq=8, recipe="fp32"), rank).sets
    assert [[[(w.elements, w.partial) for w in unit.weights] for unit in one.units] for one in sets] == real
    assert [one.group for one in sets] == [groups(layout, rank, expert) for expert in range(len(sets))]


def groups(layout: Layout, rank: int, expert: bool) -> tuple[int, int]:
    """How many ranks have the same weights, and which of them this one is, as the layout lists them."""
    axes = ("edp",) if expert else ("dp", "cp")
    listed = layout.mirrored(*axes) if layout.schedule == "dualpipe" else layout.groups(*axes)
    (group,) = (group for group in listed if rank in group)
    return len(group), group.index(rank)


def fitting(shape: ModelShape, experts: dict, mla: dict | None) -> ModelShape:
    """The shape with sizes that divide over all ranks, and experts in some of its blocks."""
    moe = {**experts, "experts": 4 * experts["experts"], "ffn": 4 * experts["ffn"]}
    heads = {"kv_heads": None, "qkv_bias": False, "qk_norm": False} if mla else {"kv_heads": 2, "head_dim": 6}
    return dataclasses.replace(
        shape, layers=4, heads=4, ffn=48, dropout=0.0, moe=moe, mla=mla, **{"head_dim": None, **heads}
    )
