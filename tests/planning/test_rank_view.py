"""One rank on paper is that rank of a run: its process groups, its stages and experts, its bytes by axis and level."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
from helpers import DEEPSEEK
from parallel_runs import at_collectives

from playbook import launch
from playbook.errors import LayoutError
from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.layout import AXES, Layout
from playbook.parallel.channels import Channel
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.stages import own_blocks
from playbook.planning.expert_traffic import Routed
from playbook.planning.rank_view import groups_of, rank_view
from playbook.planning.traffic import by_axis, traffic
from playbook.shapes import ModelShape, load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.expert_load import ExpertRoutes

SEQ = 16
GROUPS = ("ep", "edp")
LLAMA = ModelShape(
    layers=4, hidden=32, heads=8, kv_heads=2, ffn=52, vocab=256, gated=True, activation="silu", norm="rmsnorm",
    positions="rotary", bias=False, tied=False, max_seq=64,
)  # fmt: skip
MOE = LLAMA.replace(moe={"experts": 8, "top_k": 2, "ffn": 20, "every": 2})
FEW = MOE.replace(layers=2)
MLA = DEEPSEEK.replace(layers=2, heads=4, vocab=256, max_seq=64)
TIED = LLAMA.replace(kv_heads=4, tied=True, bias=True)

Cases = list[tuple[ModelShape, str, dict]]
FOUR: Cases = [
    (
        LLAMA.replace(layers=1, kv_heads=1),
        "tp=2,sp,dp=2,grad_acc=2",
        {"tensor_overlap": "chunked"},
    ),  # keys twice
    (TIED.replace(layers=2), "cp=2,pp=2,grad_acc=2", {"context": "ulysses"}),
    (FEW, "dp=4,ep=4,zero=2", {"dispatch": "gather"}),
]
EIGHT: Cases = [
    (TIED.replace(layers=2), "tp=2,sp,cp=2,pp=2,zero=1,grad_acc=2", {"context": "gather"}),
    (LLAMA, "cp=2,dp=2,pp=2,vpp=2,schedule=interleaved,grad_acc=2,zero=3", {}),
    (TIED, "tp=2,pp=4,grad_acc=2", {}),
    (LLAMA.replace(layers=1), "tp=2,sp,dp=4,zero=3,replicate=2", {}),
    (LLAMA.replace(layers=2), "dp=4,pp=2,zero=2,replicate=2,schedule=dualpipe,grad_acc=4", {}),
    (MOE, "dp=2,cp=2,pp=2,ep=2,zero=1,grad_acc=2", {}),
    (FEW, "cp=4,tp=2,sp,ep=4,zero=3", {}),
    (FEW, "dp=8,ep=4", {"dispatch": "two-step", "node": 2}),  # two nodes of two: two kinds of groups of two
    (MLA, "dp=4,pp=2,ep=2,zero=1,grad_acc=4,schedule=dualpipe", {}),
    (MLA, "dp=4,tp=2,ep=2,zero=2,grad_acc=2", {}),
    (FEW, "dp=8,ep=2,zero=3,replicate=2", {}),
    (FEW, "dp=2,cp=2,tp=2,sp,ep=4,etp=1,zero=1", {}),
    (FEW, "dp=4,tp=2,sp,ep=4,etp=1,zero=3,replicate=2", {}),
]


@dataclass
class Live:
    """What a rank of a run has and sends."""

    groups: dict[str, tuple[int, ...]]
    replicas: set[tuple[int, ...]]
    peers: set[int]
    layers: list[int]
    experts: list[int]
    levels: dict[str, Counter[str]]
    routing: dict[int, list[Routed]] | None


def live(cases: Cases) -> list[Live]:
    """In a rank: each case as a run of two steps, of which the second is counted."""
    torch.set_num_threads(1)
    found, corpus = [], load_corpus()
    with launch.process_group():
        for shape, text, given in cases:
            layout = Layout.parse(text).replace(**given)
            config = TrainConfig(
                steps=2, global_batch=layout.global_batch, seq=SEQ, device="cpu", layout=layout, micro_batch=1
            )
            mesh = Mesh(layout)
            trainer = make_trainer(shape, corpus, config, mesh)
            engine = trainer.engine
            trainer.step()
            groups = {name: mesh.ranks(name) for name in (*AXES, *(n for n in mesh.names() if n in GROUPS))}
            replicas = {members(group) for one in engine.sets for group in one.groups()}
            channels = list(engine.pipeline.channels.values()) if engine.pipeline else []
            peers = {channel.peer for channel in channels}
            layers = [layer for layer, _ in own_blocks(trainer.model)]
            routes = ExpertRoutes(trainer.model, mesh.group("ep"), layout.node) if layout.ep > 1 else None
            with routes or nullcontext():
                levels = by_level(mesh, traffic_groups(engine), channels, trainer.step)
            routing = routes and routes.counted()
            found.append(Live(groups, replicas, peers, layers, experts_of(engine), levels, routing))
    return found


def experts_of(engine: Engine) -> list[int]:
    """The experts that this rank has of each block."""
    known = {name: placement for name, placement in engine.placements.items() if ".experts." in name}
    cuts = {
        (cut.start, cut.stop) for placement in known.values() for cut in placement.shards if cut.axis == "ep"
    }
    return [expert for start, stop in cuts for expert in range(start, stop)]


def members(group: dist.ProcessGroup) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def by_level(
    mesh: Mesh,
    groups: dict[str, list[dist.ProcessGroup]],
    channels: list[Channel],
    step: Callable[[], object],
) -> dict[str, Counter[str]]:
    """Bytes that ``step`` sends, by axis and level, as live process groups and channels have it."""
    labels: dict[str, list[dist.ProcessGroup]] = {}
    for axis, several in groups.items():
        for group in several:
            labels.setdefault(f"{axis} {members(group)}", []).append(group)
    to: list[int] = []
    for channel in channels:
        channel._start = partial(noted, channel._start, to, channel.peer)
    with at_collectives(count := CountBytes(labels)):
        step()
    node, found = mesh.layout.world_size // 2, {axis: Counter() for axis in groups}
    for event in (event for event in count.events if event.sent and event.group in labels):
        axis, ranks = event.group.split()[0], members(labels[event.group][0])
        others = [r for r in ranks if r != mesh.rank]
        if (axis, event.kind) == ("pp", "send"):
            others = [to.pop(0)]
        elif event.kind != "all_to_all":
            others = [ranks[(ranks.index(mesh.rank) + 1) % len(ranks)]]
        near = sum(r // node == mesh.rank // node for r in others)
        found[axis]["within"] += event.sent * near // len(others)
        found[axis]["across"] += event.sent - event.sent * near // len(others)
    if to:  # no assert, for which a rank would have to import pytest
        raise RuntimeError(f"of what was sent to {to} nothing was counted")
    return found


def noted(start: Callable[[torch.Tensor], None], to: list[int], peer: int, tensor: torch.Tensor) -> None:
    to.append(peer)
    start(tensor)


@pytest.mark.parametrize(("cases", "world"), [(FOUR, 4), (EIGHT, 8)], ids=["four", "eight"])
def test_a_rank_of_a_run(ranks, cases, world):
    """On two nodes."""
    for rank, mine in enumerate(ranks(live, cases, ranks=world).values):
        for (shape, text, given), run in zip(cases, mine, strict=True):
            layout, case = Layout.parse(text).replace(**given), (rank, text, given)
            known = {"recipe": "fp32", "ranks_per_node": world // 2, "routing": run.routing}
            view = rank_view(shape, layout, SEQ, rank=rank, **known)
            for axis, group in run.groups.items():
                assert view.groups.get(axis, (rank,)) == group, case
            same = {view.groups.get("replicas", view.groups.get("dp", (rank,)))}
            if layout.ep > 1 and view.experts:
                same.add(view.groups.get("edp", (rank,)))
            if layout.replicate > 1:
                same |= {tuple(r for r in group if r in view.groups["shard"]) for group in same}
            assert same == run.replicas, case
            assert (list(view.experts) if layout.ep > 1 else []) == run.experts, case
            assert set(view.neighbours) == run.peers, case
            assert sorted(layer for blocks in view.blocks for layer in blocks) == run.layers, case
            sent = {axis: sent for axis, sent in view.sent.items() if axis != "world"}
            levels = {axis: (sent.within, sent.across) for axis, sent in sent.items()}
            counted = {
                axis: (n["within"], n["across"])
                for axis, n in run.levels.items()
                if axis in sent or n.total()
            }
            assert levels == counted, case


MANY = [
    "tp=2,cp=2,dp=4,ep=4",
    "tp=2,cp=3,dp=4,pp=3,ep=6",
    "dp=6,ep=2,pp=2",
    "cp=4,ep=4",
    "tp=2,cp=3,dp=4,pp=3,ep=8,etp=1,sp",
    "tp=4,sp,dp=2,ep=2,etp=1",
    "pp=4,dp=2,cp=2,ep=2,schedule=dualpipe",
    "dp=4,cp=2,ep=2,zero=1,replicate=2",
    "dp=6,tp=2,ep=2,zero=3,replicate=3",
]


@pytest.mark.parametrize("text", MANY)
def test_groups_of_a_rank_are_those_of_the_layout(text):
    layout = Layout.parse(text)
    both = layout.schedule == "dualpipe"
    for rank in range(layout.world_size):
        found = groups_of(layout, rank, mirrored=both)
        for axis in (*AXES, "ep"):
            assert [found[axis]] == [group for group in layout.groups(axis) if rank in group]
        copies = layout.mirrored if both else layout.groups
        assert [found["edp"]] == [group for group in copies("edp") if rank in group]
        for axis in ("shard", "replicate"):
            assert [found.get(axis, found["dp"])] == [
                group for group in layout.groups(axis if layout.replicate > 1 else "dp") if rank in group
            ]
        same = found.get("replicas", found["dp"])
        assert [same] == [group for group in copies("dp", "cp") if rank in group]


def test_llama_3_on_16384_gpus():
    """Tensor parallelism stays in a node, all else leaves it (arXiv 2407.21783, section 3.3.2 and table 4)."""
    layout = Layout.parse("tp=8,pp=16,dp=128,sp,zero=1,grad_acc=16")
    view = rank_view(load("llama3.1-405b"), layout, 8192, rank=5000)
    assert (view.node, view.coordinates) == (625, {"tp": 0, "cp": 0, "dp": 113, "pp": 4})
    assert {name: len(group) for name, group in view.groups.items()} == {"tp": 8, "dp": 128, "pp": 16}
    assert view.neighbours == (5000 - 1024, 5000 + 1024)
    assert [axis for axis, sent in view.sent.items() if sent.within > 1000] == ["tp"]
    assert view.sent["tp"].across == 0
    told = traffic(load("llama3.1-405b"), layout, 8192, rank=5000)
    assert {axis: sent.total for axis, sent in view.sent.items()} == by_axis(told)
    assert view.blocks == (range(32, 40),)
    assert json.loads(json.dumps(view.to_json()))["parameters"] == view.parameters


def test_one_device_and_bad_input():
    view = rank_view(load("tiny"), Layout(), 64, rank=0)
    assert (view.groups, view.neighbours, view.sent) == ({}, (), {})
    assert view.parameters == load("tiny").num_parameters
    with pytest.raises(LayoutError, match="rank must be below the layout's 8 ranks, got 8"):
        rank_view(load("tiny"), Layout(dp=8), 64, rank=8)
    with pytest.raises(LayoutError, match="ranks_per_node must be at least 1, got 0"):
        rank_view(load("tiny"), Layout(dp=8), 64, rank=0, ranks_per_node=0)
