"""Weights from any training layout to any sampling layout: the values, the bytes, the memory, and all of it on paper."""

from __future__ import annotations

import functools
import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import DEEPSEEK
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_runs import BUCKETS, SMALL, Case, at_collectives, passes, world_of

from playbook import launch
from playbook.errors import ConfigError, LayoutError
from playbook.instruments.counting import CountBytes
from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.layout import Layout
from playbook.model.moe import routers
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.planning.job import Job
from playbook.planning.jobs import run_of
from playbook.planning.messages import Sender
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens
from playbook_book.sampling import plan
from playbook_book.sampling import transfer as paper
from playbook_book.sampling.plan import Region
from playbook_book.sampling.reshard import gather_and_cut
from playbook_book.sampling.sampler import Sampler

SHAPES = {
    **SMALL,
    "latent": DEEPSEEK.replace(layers=2, heads=4, tied=True),
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


def step(case: Case, engine: Any, mesh: Mesh) -> None:
    share = case.samples // mesh.size("dp")
    x, y = (t[mesh.index("dp") * share :][:share] for t in case.batch(0))
    x, y, where = own_tokens(x, y, mesh, mesh.layout.token_placement)
    engine.zero_grad()
    engine.accumulate(x, y, max(1, share // mesh.layout.grad_acc), where)
    engine.step()


def differences(engine: Any, sampler: Sampler) -> list[str]:
    """Names of tensors that are not, to the last bit, slices of what a checkpoint of one device would have."""
    whole = engine._everywhere(shard for shard in engine.local_shards() if shard.kind == "parameter")
    found = []
    for name, p in sampler.model.named_parameters():
        of = sampler.placements[name]
        if not torch.equal(of.of(whole["parameter", of.name]), p):
            found.append(name)
    buffers = dict(sampler.model.named_buffers())
    every = [buffer for own in engine._from_all(engine.buffers()) for buffer in own.items()]
    return found + [name for name, buffer in every if not torch.equal(buffer, buffers[name])]


def transfers(cases: list[tuple[Case, str, dict[str, Any], int]]) -> list[Seen]:
    """In a rank: a sampler, a step, a refresh."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for case, text, options, tp in cases:
            mesh = Mesh(Layout.parse(text).replace(**options))
            engine = case.engine(mesh)
            sampler = Sampler(engine, tp, limit=LIMIT)
            for router in routers(engine.model).values():  # as they are after some steps of balancing
                router.bias += torch.linspace(-1e-3, 1e-3, len(router.bias))
            places = [p.data_ptr() for p in sampler.model.parameters()]
            step(case, engine, mesh)
            before = [p.clone() for p in sampler.model.parameters()]
            count = CountBytes()
            with at_collectives(count):
                sampler.refresh()
            changed = any(
                not torch.equal(a, b) for a, b in zip(before, sampler.model.parameters(), strict=True)
            )
            wrong = differences(engine, sampler) + ["no step was made"] * (not changed)
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
    return f"{axes},schedule={one['schedule']},grad_acc={passes(one)},micro_batch=1" + ",sp" * (one["tp"] > 1)


def shape_of(one: dict[str, Any]) -> ModelShape:
    return SHAPES[one["shape"]].replace(layers=4 if one["schedule"] == "zb-v" else 2)


def fits(one: dict[str, Any]) -> bool:
    world = world_of(one)
    if not 1 < world <= 6 or (one["pp"] == 1) != (one["schedule"] == "naive") or world % one["sampler"]:
        return False
    if (one["replicate"] > 1 and not one["zero"]) or (
        one["zero"] and one["dp"] * one["cp"] == 1
    ):  # nothing to shard
        return False
    shape = shape_of(one)
    with suppress(LayoutError):
        layout = Layout.parse(layout_of(one))
        layout.check(shape, seq=layout.padded(9))
        Layout(dp=world // one["sampler"], tp=one["sampler"]).check(shape)
        return True
    return False


WORLDS = (2, 3, 4, 6)


@functools.cache
def chosen() -> list[dict[str, Any]]:
    every = combined(
        dp=(1, 2, 3, 4), tp=(1, 2, 4), cp=(1, 2), pp=(1, 2), ep=(1, 2), etp=(0, 1), zero=(0, 1, 2, 3), replicate=(1, 2),
        schedule=("naive", "1f1b", "dualpipe", "zb-v"), shape=tuple(SHAPES), sampler=(1, 2, 4),
    )  # fmt: skip
    return all_pairs(filter(fits, every), lambda one: world_of(one) ** 2 * shape_of(one).layers)


@pytest.mark.parametrize("world", WORLDS)
def test_any_two_options(ranks, world):
    """To the last bit what a checkpoint says, in the bytes and messages that a job predicts, twice in the same memory."""
    some = [one for one in chosen() if world_of(one) == world]
    assert {world_of(one) for one in chosen()} == set(WORLDS)
    cases = [
        (
            Case(shape_of(one), samples=passes(one) * one["dp"]),
            layout_of(one),
            {0: {}, 1: {**BUCKETS, "gather": "lazily"}, 2: BUCKETS, 3: {}}[one["zero"]],
            one["sampler"],
        )
        for one in some
    ]
    found = ranks(transfers, cases, ranks=world).values
    for i, (case, text, options, tp) in enumerate(cases):
        job = Job(case.shape, Layout.parse(text).replace(**options), seq=9, recipe="fp32", device="cpu")
        told = plan.sent(paper.transfer(job, tp), world, LIMIT)
        to = job.on(paper.sampling(job.layout, job.shape, tp))
        for rank, seen in enumerate(each[i] for each in found):
            assert not seen.wrong, (text, tp, rank, seen.wrong[:5])
            assert not seen.moved
            counted = seen.sent, seen.got, seen.messages
            assert counted == (told.sent[rank], told.got[rank], told.messages[rank]), (text, tp, rank)
            boxes = paper.held(Sender(to, paper.order(job.layout, tp).index(rank)))
            assert seen.weights >= paper.weights(boxes, paper.itemsizes(job)) > 0.9 * seen.weights


#: What learns in part, or is kept in two sizes: only the latter is planned.
ODD = [
    (SMALL["llama"].replace(train="lora:4"), "dp=2,zero=3", 2, torch.float32),
    (SMALL["llama"].replace(train="lora:4"), "tp=2,sp", 1, torch.float32),
    (SMALL["tied"].replace(train="mlp+head"), "dp=2,zero=3", 2, torch.float32),
    (SMALL["experts"], "dp=2,ep=2,zero=3", 2, torch.bfloat16),
]


def odd_transfers() -> list[tuple[list[str], int]]:
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for shape, text, tp, dtype in ODD:
            case, mesh = Case(shape, dtype=dtype, samples=2), Mesh(Layout.parse(text))
            engine = case.engine(mesh)
            sampler = Sampler(engine, tp, limit=LIMIT)
            step(case, engine, mesh)
            count = CountBytes()
            with at_collectives(count):
                sampler.refresh()
            found.append((differences(engine, sampler), count["world"]["send"].sent))
    return found


def test_what_is_frozen_moves_and_weights_in_16_bits_beside_biases_in_fp32(ranks):
    found = ranks(odd_transfers, ranks=2).values
    assert not [wrong for rank in found for wrong, _ in rank if wrong]
    shape, text, tp, _ = ODD[-1]
    told = plan.sent(paper.transfer(Job(shape, Layout.parse(text), seq=9, recipe="bf16-mixed"), tp), 2, LIMIT)
    assert [rank[-1][1] for rank in found] == told.sent


WIDE = SMALL["llama"].replace(hidden=64, heads=8, kv_heads=4, ffn=160, vocab=512, layers=4)
TWICE = [
    ("dp=4,zero=3", 2),
    ("tp=2,sp,pp=2,schedule=1f1b,grad_acc=4,micro_batch=1", 4),
    ("dp=2,tp=2,zero=1", 1),
]


def memory(cases: list[tuple[str, int]], limit: int) -> list[list[tuple[int, int]]]:
    """In a rank: bytes sent, and the most memory beside weights, of a transfer and of its naive twin."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for text, tp in cases:
            engine = Case(WIDE).engine(Mesh(Layout.parse(text)))
            sampler = Sampler(engine, tp, limit=limit)
            naive = functools.partial(gather_and_cut, engine, sampler.model, sampler.placements)
            numbers = []
            for way in (sampler.refresh, naive):
                kept = {"parameters": [*engine.tensors()["parameters"], *sampler.model.parameters()]}
                count = CountBytes()
                with MemoryTimeline(engine.model, None, kept) as timeline, at_collectives(count):
                    timeline.mark("begin")
                    way()
                total = timeline.curves().total
                numbers.append((count["world"]["send"].sent, max(total) - total[timeline.marks[0][0]]))
            assert not differences(engine, sampler)
            found.append(numbers)
    return found


def test_memory_beside_the_weights_is_two_buffers(ranks):
    """The naive twin has the whole model on every rank, and sends more."""
    limit, whole = 20_000, sum(p.nbytes for p in Transformer(WIDE).parameters())
    found = ranks(memory, TWICE, limit, ranks=4).values
    for i, (text, tp) in enumerate(TWICE):
        job = Job(WIDE, Layout.parse(text), seq=9, recipe="fp32")
        told = plan.sent(paper.transfer(job, tp), 4, limit).sent, plan.sent(paper.everything(job), 4).sent
        for rank, ((sent, most), (naive_sent, naive_most)) in enumerate(each[i] for each in found):
            assert most <= 2 * limit, (text, most)
            assert naive_most >= whole, (text, naive_most)
            assert (sent, naive_sent) == (told[0][rank], told[1][rank])
        assert sum(told[0]) == sum(told[1]) if tp == 1 else sum(told[0]) < 0.6 * sum(told[1])


# ---- on paper


@st.composite
def partitions(draw, dims: int = 2):
    """The sizes of a tensor, and boxes that cover it without overlap."""
    sizes = tuple(draw(st.integers(1, 7)) for _ in range(dims))
    boxes = [Region((0,) * dims, sizes)]
    for _ in range(draw(st.integers(0, 4))):
        whole = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        boxes += whole.pieces(draw(st.integers(1, whole.elements)))
    return sizes, boxes


def elements(region: Region) -> set[tuple[int, ...]]:
    ranges = (range(o, o + n) for o, n in zip(region.offsets, region.sizes, strict=True))
    return set(itertools.product(*ranges))


@given(st.data())
@settings(max_examples=60)
def test_each_element_that_a_rank_lacks_comes_once_and_no_other(data):
    sizes, parts = data.draw(partitions())
    world = data.draw(st.integers(1, 4))
    holders = [data.draw(st.sets(st.integers(0, world - 1), min_size=1)) for _ in parts]
    has = [{"w": [part for part, own in zip(parts, holders, strict=True) if r in own]} for r in range(world)]
    cuts = [
        Region((0, 0), sizes),
        *data.draw(partitions().filter(lambda p: p[0] == sizes) | st.just((0, parts)))[1],
    ]
    wants = [{"w": data.draw(st.lists(st.sampled_from(cuts[1:] or cuts), unique=True))} for _ in range(world)]
    limit = data.draw(st.integers(8, 100))
    moves = plan.plan(has, wants, {"w": 4})
    together = plan.rounds(moves, limit)
    for r in range(world):
        own = set().union(*(elements(box) for box in has[r]["w"]))
        wanted = set().union(*(elements(box) for box in wants[r]["w"]))
        came = [e for some in together for m in some if m.to == r for e in elements(m.region)]
        assert len(came) == len(set(came))
        assert set(came) == wanted - own
    for some in together:
        for move in some:
            assert elements(move.region) <= set().union(*(elements(b) for b in has[move.source]["w"]))
        for end in ("source", "to"):
            for r in range(world):
                assert sum(m.bytes for m in some if getattr(m, end) == r) <= limit


def test_replicas_share_the_sending_and_neighbours_come_first():
    """Two replicas of a pipeline: each sends to one rank of the other stage, or to the one in its node."""
    job = Job(WIDE, Layout.parse("dp=4,pp=2,schedule=1f1b,grad_acc=2"), seq=9, recipe="fp32")
    told = plan.sent(paper.transfer(job, 1), 8)
    assert max(told.sent) - min(told.sent) < 0.05 * max(told.sent)
    lines = [{"w": [Region((0,), (8,))]} if rank % 2 else {} for rank in range(8)]
    moves = plan.plan(lines, [{"w": [Region((0,), (8,))]}] * 8, {"w": 4}, node=2)
    assert {(move.source, move.to) for move in moves} == {(1, 0), (3, 2), (5, 4), (7, 6)}


def test_groups_are_chosen_so_that_ranks_keep_what_they_have():
    """A quarter of each matrix here, half wanted: each rank lacks a quarter, or as neighbours some lack half."""
    job = Job(WIDE, Layout.parse("dp=2,tp=4,sp"), seq=9, recipe="fp32")
    assert paper.order(job.layout, 2) == [0, 2, 1, 3, 4, 6, 5, 7]
    told, neighbours = (plan.sent(paper.transfer(job, 2, ranks=ranks), 8) for ranks in (None, range(8)))
    matrices = [box for boxes in paper.held(Sender(job, 0)).values() for box in boxes if len(box.sizes) > 1]
    assert set(told.got) == set(told.sent) == {4 * sum(box.elements for box in matrices)}
    assert max(neighbours.got) == 2 * max(told.got)


def test_seconds_are_those_of_the_busiest_rank():
    """Ranks 0 to 7 in one node, 8 in another: what leaves a node goes through an adapter, 50 of 450 GB/s on paper."""
    links = run_of(
        {"model": "llama3-8b", "cluster": "h100-8", "gpus": 16, "layout": "dp=16", "seq": 4096}
    ).links
    fabric, half = links.fabric(2), Region((0,), (10**9,))
    inside, outside = plan.Move("w", half, 0, 1, 2), plan.Move("w", half, 0, 8, 2)
    assert paper.seconds([inside], links) == 2e9 / fabric.intra
    assert paper.seconds([inside, outside], links) == pytest.approx(2e9 / fabric.intra + 2e9 / fabric.inter)
    assert paper.seconds([outside, plan.Move("w", half, 1, 9, 2)], links) == 2e9 / fabric.inter
    assert 4 < fabric.intra / fabric.inter < 12
    assert paper.seconds([], links) == 0


def test_a_layout_that_has_what_it_needs_sends_nothing():
    for text, tp in (("dp=4", 2), ("dp=2,tp=2,zero=2", 2), ("dp=2,cp=2,zero=1", 4)):
        assert not paper.transfer(Job(WIDE, Layout.parse(text), seq=9), tp)


def test_what_cannot_be_is_refused_in_one_sentence():
    job = Job(WIDE, Layout.parse("dp=4,zero=3"), seq=9)
    with pytest.raises(LayoutError, match=r"tp of the sampler must divide the trainer's 4 ranks, got 3"):
        paper.transfer(job, 3)
    with pytest.raises(LayoutError, match="tp must divide heads = 8"):
        paper.transfer(Job(WIDE, Layout(dp=16), seq=9), 16)
    with pytest.raises(ConfigError, match=r"no rank has \(3,\) elements of 'w' from \(5,\) on"):
        plan.plan([{"w": [Region((0,), (5,))]}], [{"w": [Region((0,), (8,))]}], {"w": 4})
    adapters = WIDE.replace(train="lora:4")
    with pytest.raises(ConfigError, match="train is lora:4"):
        paper.transfer(Job(adapters, Layout(dp=2), seq=9), 2)
