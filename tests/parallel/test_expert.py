"""Expert parallelism, alone and with every other technique: what one device gives, in the messages that are predicted.
And where rows go."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from all_pairs import all_pairs
from helpers import BLOCKS, DEEPSEEK, MIXTRAL
from parallel_runs import Case, Run, nothing, on_one_device, on_ranks
from traffic_runs import check_kept, check_run, kept

from playbook import launch
from playbook.errors import LayoutError, ShapeError
from playbook.instruments.counting import CountBytes
from playbook.kernels import jit
from playbook.layout import Layout
from playbook.layout.fields import DISPATCH
from playbook.model.moe import Experts, Router, Routing, here, routers
from playbook.parallel.expert import Trip, make_path
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.shapes import MoE as Sizes
from playbook.training.data import own_tokens
from playbook_book.instruments.measured import SavedActivations

TOLERANCE = 1e-5
#: Odd widths, top-1, top-2 and top-4, biases, groups, shared experts, latent attention.
SHAPES = {
    "top-1": BLOCKS["gpt"].replace(heads=4, hidden=24, moe={"experts": 8, "top_k": 1, "ffn": 8, "normalized": False}),
    "top-2": MIXTRAL.replace(heads=4, kv_heads=4, moe={"experts": 8, "top_k": 2, "ffn": 20, "shared_experts": 1}),
    "top-4": DEEPSEEK.replace(
        layers=2, heads=4, tied=True, moe=dataclasses.replace(DEEPSEEK.moe, experts=16, ffn=12, groups=4),
        mla=dataclasses.replace(DEEPSEEK.mla, q_rank=None),
    ),
}  # fmt: skip
#: How the load is kept even; each is a change of the sizes.
BALANCE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "capacity": {"capacity": 1.0},
    "loss": {"balance_loss": 0.1, "z_loss": 0.01},
    "loss of a sample": {"balance_loss": 0.1, "balance_over": "sample"},
    "loss of the batch": {"balance_loss": 0.1, "balance_over": "global_batch"},
    "bias": {"bias_rate": 0.01},
}
#: Other options of techniques: of replicas,
DATA: dict[str | None, dict[str, Any]] = {
    None: {},
    "small buckets": {"bucket": 4096, "first_bucket": 512},
    "naive": {"data_parallel": "naive"},
    "find_unused": {"data_parallel": "overlapped", "find_unused": True},
    "keep": {"reshard": False},
}
#: of sequence and context parallelism.
TOKENS: dict[str | None, dict[str, Any]] = {
    None: {},
    "chunked": {"tensor_overlap": "chunked"},
    "gather": {"context": "gather"},
    "ulysses": {"context": "ulysses", "placement": "contiguous"},
}


@functools.cache
def reference(case: Case, grad_acc: int) -> Run:
    return on_one_device(case, grad_acc)


parse = functools.cache(Layout.parse)


def balanced(shape, balance: str):
    return shape.replace(moe=dataclasses.replace(shape.moe, **BALANCE[balance]))


def fits(one: dict[str, Any]) -> bool:
    layout = parse(one["axes"])
    if (one["dispatch"] is None) == (layout.ep > 1) or (layout.pp == 1) != (one["schedule"] is None):
        return False
    if one["schedule"] == "dualpipe" and layout.etp:
        return False
    least = {None: 1, "zb-v": 4, "dualpipe": 4, "dualpipev": 4}.get(one["schedule"], 2)  # micro-batches
    if one["grad_acc"] < least:
        return False
    # What a global batch has seen so far depends on the order of its micro-batches.
    if one["balance"] == "loss of the batch" and one["grad_acc"] > 1:
        return False
    needs = {
        "naive": not one["zero"], "find_unused": not one["zero"], "keep": one["zero"] == 3, "chunked": layout.sp,
        "gather": layout.cp > 1, "ulysses": layout.cp > 1, None: True,
    }  # fmt: skip
    if not (needs.get(one["data"], True) and needs[one["tokens"]]):
        return False
    return not (one["dispatch"] == "two-step" and layout.ep < 4)


def run_of(one: dict[str, Any]) -> tuple[Case, str, dict]:
    shape = balanced(SHAPES[one["shape"]], one["balance"])
    axes = together(one)
    layout = Layout.parse(axes)
    # Routers that count tokens want no padding.
    seq = 8 if one["balance"] != "nothing" and layout.padded(9) != 9 else 9
    text = axes + "".join(f",{key}={one[key]}" for key in ("zero", "grad_acc", "schedule") if one[key])
    if one["schedule"] in ("interleaved",):
        text += ",vpp=2"
        shape = shape.replace(layers=layout.pp * 2)
    elif one["schedule"] in ("zb-v", "dualpipev", "dualpipe"):
        shape = shape.replace(layers=layout.pp * 2)
    options = {
        "dispatch": one["dispatch"] or "all-to-all",
        "node": 2 if one["dispatch"] == "two-step" else None,
    }
    case = Case(shape, one["recompute"], steps=steps(one), seq=seq, samples=16)
    return case, text, {**options, **DATA[one["data"]], **TOKENS[one["tokens"]]}


def alone(case: Case, layout: Layout) -> Run:
    """The run of one device, whatever is recomputed: where the size of micro-batches counts, each has the samples of one
    of the layout's, or all that the layout has at a time."""
    moe = case.shape.moe
    counts, at_a_time = moe.capacity or moe.balance_loss, moe.balance_over == "global_batch"
    micro_batches = layout.grad_acc * (1 if at_a_time else layout.dp) if counts else 1
    return reference(dataclasses.replace(case, recompute="none"), micro_batches)


def check(ranks, runs: list[tuple[Case, str, dict]], world: int) -> None:
    for start in range(0, len(runs), 8):  # of the threads of gloo, too, hundreds are many
        some = runs[start : start + 8]
        every = ranks(on_ranks, some, kept, True, ranks=world).values
        for i, (case, text, options) in enumerate(some):
            check_kept(case, text, options, [found[i][1] for found in every])
            for rank, (run, _) in enumerate(found[i] for found in every):
                check_run(case, text, options, rank, run)
                error = run.error(alone(case, parse(text)))
                assert error <= TOLERANCE, (rank, error, case, text, options)


AXES = {
    2: ("dp=2,ep=2", "cp=2,ep=2", "tp=2", "tp=2,sp", "tp=2,sp,ep=2,etp=1", "pp=2"),
    4: (
        "dp=4,ep=4", "dp=4,ep=2", "dp=2,cp=2,ep=4", "dp=2,tp=2,ep=2", "dp=2,tp=2,sp,ep=2", "dp=2,pp=2,ep=2",
        "dp=2,tp=2,sp,ep=4,etp=1", "dp=2,tp=2,sp,ep=2,etp=1", "tp=2,sp,pp=2,ep=2,etp=1",
    ),
    8: (
        "dp=2,cp=2,tp=2,sp,ep=2",
        "dp=2,cp=2,pp=2,ep=4",
        "dp=2,tp=2,pp=2,ep=2",
        "dp=2,cp=2,tp=2,sp,ep=4,etp=1",
    ),
}  # fmt: skip


#: Not all of them everywhere, for time.
FEWER: dict[int, dict[str, tuple]] = {
    2: {"schedule": (None, "1f1b", "dualpipev")},
    4: {
        "balance": ("capacity", "loss of a sample", "loss of the batch", "bias"),
        "schedule": (None, "1f1b", "zb-v", "dualpipe"),
        "grad_acc": (1, 4),
        "zero": (0, 2, 3),
        "recompute": ("none", "full"),
        "data": (None, "keep"),
        "tokens": (None, "chunked", "gather"),
    },
    8: {
        "dispatch": ("all-to-all", "two-step"),
        "shape": ("top-2", "top-4"),
        "balance": ("loss of a sample", "bias"),
        "schedule": (None, "interleaved"),
        "grad_acc": (1, 2),
        "zero": (1, 3),
        "recompute": ("none", "full"),
        "data": (None,),
        "tokens": (None,),
    },
}


def cases(world: int) -> Iterator[dict[str, Any]]:
    """Some of all possible runs, the same every time."""
    draw = random.Random(world)
    options: dict[str, tuple] = {
        "axes": AXES[world], "zero": (0, 1, 2, 3), "dispatch": (None, *DISPATCH), "shape": tuple(SHAPES),
        "balance": tuple(BALANCE), "schedule": (None, "1f1b", "interleaved", "zb-v", "dualpipe", "dualpipev"),
        "grad_acc": (1, 2, 4), "recompute": ("none", "selective", "full"),
        "data": tuple(DATA), "tokens": tuple(TOKENS), **FEWER.get(world, {}),
    }  # fmt: skip
    drawn = ({name: draw.choice(values) for name, values in options.items()} for _ in range(10_000))
    return map(apart, filter(fits, drawn))


def apart(one: dict[str, Any]) -> dict[str, Any]:
    """Each axis is an option of its own."""
    layout = parse(one["axes"])
    each = {axis: getattr(layout, axis) for axis in ("dp", "cp", "tp", "sp", "pp", "ep", "etp")}
    return {name: value for name, value in one.items() if name != "axes"} | each


def steps(one: dict[str, Any]) -> int:
    """A second step has seen an update, and weights that came back; before it, a bias of routers changes nothing."""
    return 2 if one["balance"] == "bias" or (one["schedule"] is None and one["zero"]) else 1


def together(one: dict[str, Any]) -> str:
    return ",".join(
        ["sp"] * one["sp"] + [f"{axis}={one[axis]}" for axis in ("dp", "cp", "tp", "pp", "ep", "etp")]
    )


def cost(one: dict[str, Any]) -> float:
    """About the passes of all ranks, and the messages between them."""
    layers, world = 2 if one["schedule"] in (None, "1f1b") else 4, parse(together(one)).world_size
    return world * (2 * world + layers * (1 + steps(one) * one["grad_acc"]) / one["pp"])


@functools.cache
def chosen() -> list[dict[str, Any]]:
    """Any two options on some number of ranks."""
    return all_pairs((one for world in reversed(AXES) for one in cases(world)), cost)


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("world", AXES)
def test_any_two_options(ranks, world, part):
    found = [run_of(one) for one in chosen() if parse(together(one)).world_size == world]
    check(ranks, found[part::2], world)


def test_five_axes_on_sixteen_ranks(ranks):
    shape = balanced(SHAPES["top-4"], "bias").replace(layers=2)
    runs = [(Case(shape, steps=2, seq=8, samples=8), "tp=2,sp,cp=2,pp=2,dp=2,ep=4,zero=1,grad_acc=2", {})]
    check(ranks, runs, 16)


def all_to_two(model: torch.nn.Module) -> None:
    """Every token chooses experts 0 and 1: of four ranks with experts, three get no row."""
    with torch.no_grad():
        for router in routers(model).values():
            router.bias[:2] = 10.0


def test_ranks_and_experts_that_get_nothing(ranks):
    case = Case(SHAPES["top-2"], steps=2, prepare=all_to_two, samples=16)
    layouts = itertools.product(DISPATCH, ("dp=4,ep=4", "dp=4,ep=4,zero=3"))
    check(ranks, [(case, text, {"dispatch": dispatch, "node": 2}) for dispatch, text in layouts], 4)


# ---- where rows go


def routed(dispatch: str, node: int | None, n: int) -> dict[str, Any]:
    """In a rank of four: bytes that a layer of 8 experts sends, by group and in order; the choices; the worst error."""
    torch.set_num_threads(1)
    sizes = Sizes(experts=8, top_k=3, ffn=4)
    shape = MIXTRAL.replace(hidden=6, heads=1, kv_heads=1, moe=sizes)
    with launch.process_group():
        mesh = Mesh(Layout.parse("dp=4,ep=4"))
        mesh.add("ep", mesh.layout.groups("ep"))
        path = make_path(mesh, dispatch, node)
        every = Experts(shape, sizes)
        generator = torch.Generator().manual_seed(0)
        for p in every.parameters():
            torch.nn.init.normal_(p, generator=generator)
        own = copy.deepcopy(every)
        for p in own.parameters():
            p.data = p.data[2 * mesh.rank :][:2].clone()
        generator.manual_seed(mesh.rank)
        x = torch.randn(n, 6, generator=generator)
        weights, chosen = torch.rand(n, 8, generator=generator).topk(3)
        routing = Routing(chosen, weights, chosen.flatten().bincount(minlength=8))
        with CountBytes({name: [mesh.group(name)] for name in mesh.names()}) as count:
            y = path(own, x, routing)()
        error = (y - here(every, x, routing)()).detach().abs().sum()
        sent = [(e.group, e.kind, e.sent) for e in count.events]
        return {"sent": sent, "chosen": chosen.tolist(), "error": float(error)}


@pytest.mark.parametrize("n", [0, 7])
@pytest.mark.parametrize(("dispatch", "node"), [("gather", None), ("all-to-all", None), ("two-step", 2)])
def test_bytes_that_travel(ranks, dispatch, node, n):
    found = ranks(routed, dispatch, node, n, ranks=4).values
    row = 6 * 4
    on = [{(t, e // 2) for t, choices in enumerate(one["chosen"]) for e in choices} for one in found]
    for rank, one in enumerate(found):
        assert one["error"] < 1e-3
        rows = [sum(e // 2 != rank for choices in one["chosen"] for e in choices)]  # there, and back:
        rows.append(sum(e // 2 == rank for r in range(4) if r != rank for c in found[r]["chosen"] for e in c))
        if dispatch == "gather":  # all tokens, weights and choices to three others; sums come back
            kinds = {"all_gather": n * 3 * (row + 3 * 4 + 3 * 8), "reduce_scatter": n * 3 * row}
            assert kinds == {kind: sum(b for _, k, b in one["sent"] if k == kind) for kind in kinds}
        elif dispatch == "all-to-all":  # two numbers (int64) to each of three others, then rows
            assert one["sent"] == [("ep", "all_to_all", b) for b in (3 * 2 * 8, row * rows[0], row * rows[1])]
        else:
            mine, other = rank // 2, rank ^ 2
            there = len({(t, r // 2) for t, r in on[rank] if r // 2 != mine})
            back = len({(t, r // 2) for t, r in on[other] if r // 2 == mine})
            across = [b for group, _, b in one["sent"] if group == "ep across nodes"]
            assert across == [8, there * row, there * 3 * 8, there * 3 * 4, back * row]
            inside = [b for group, _, b in one["sent"] if group == "ep in a node"]
            # Tokens of this rank and of its counterpart in the other node go on to the neighbour's experts.
            onward = sum(e // 2 == rank ^ 1 for r in (rank, other) for c in found[r]["chosen"] for e in c)
            home = sum(e // 2 == rank for r in (rank ^ 1, other ^ 1) for c in found[r]["chosen"] for e in c)
            assert inside == [2 * 8, onward * row, home * row]


def test_the_shared_expert_computes_while_rows_travel(ranks):
    """In both directions: rows leave before it, and are waited for behind it."""
    for order in ranks(in_which_order, ranks=2).values:
        assert order[:3] == ["send", "shared expert", "wait"]
        back = order.index("backward of the shared expert")
        assert order[back - 1] == "send"
        assert order[back + 1] == "wait"


def in_which_order() -> list[str]:
    """In a rank: what happens in a forward and a backward pass, in order."""
    torch.set_num_threads(1)
    order: list[str] = []
    shape = SHAPES["top-2"].replace(layers=1)
    with launch.process_group():
        mesh, case = Mesh(Layout.parse("dp=2,ep=2")), Case(shape)
        engine = parallelize(case.model(), mesh, case.make())
        start, arrive = Trip.start, Trip.arrive
        Trip.start = lambda self, rows: (order.append("send"), start(self, rows))[1]
        Trip.arrive = lambda self: (order.append("wait"), arrive(self))[1]
        shared = engine.model.blocks[0].mlp.shared
        shared.register_forward_hook(lambda *_: order.append("shared expert"))
        shared.down.register_full_backward_hook(lambda *_: order.append("backward of the shared expert"))
        x, y = case.batch(0)
        engine.accumulate(x, y, len(x))
    return order


# ---- what ranks keep


def saved(runs: list[tuple[Case, str]]) -> list[int]:
    """In a rank: what a forward pass of two samples saves for backward."""
    torch.set_num_threads(1)
    found = []
    with mock.patch.object(jit, "interpret", new=nothing), launch.process_group():
        for case, text in runs:
            mesh = Mesh(Layout.parse(text))
            engine = parallelize(case.model(), mesh, case.make())
            x, y = (t[:2] for t in case.batch(mesh.index("dp")))
            x, y, where = own_tokens(x, y, mesh, "zigzag")
            with SavedActivations(engine.model, inputs=(x, y) if where is None else (x, y, where)) as kept:
                engine.model.loss(x, y, where)[0].backward()
            found.append(kept.bytes)
    return found


SAVING = {
    2: (
        "dp=2,ep=2", "dp=2", "cp=2,ep=2,zero=1", "tp=2", "tp=2,sp", "tp=2,sp,ep=2,etp=1", "dp=2,ep=2 fused", "tp=2 fused",
    ),
    4: ("dp=4,ep=4,zero=1", "dp=4,ep=2,zero=2", "dp=2,tp=2,sp,ep=2", "dp=2,tp=2,sp,ep=2,etp=1,zero=1"),
}  # fmt: skip


@pytest.mark.parametrize("world", SAVING)
def test_what_ranks_save_is_what_the_planner_says(ranks, world):
    """The sum over ranks: rows go where the router sends them, and evenly is what the planner says.

    Not under ZeRO-3, where gathered weights lie in storages that look like activations.
    """
    runs = [
        (Case(shape, steps=1, seq=8, samples=8, kernels=kernels or "torch"), layout)
        for layout, _, kernels in (text.partition(" ") for text in SAVING[world])
        for shape in SHAPES.values()
    ]
    every = ranks(saved, runs, ranks=world).values
    for (case, text), bytes_ in zip(runs, zip(*every, strict=True), strict=True):
        how = {"recipe": "fp32", "device": "cpu", "fused": case.kernels == "fused"}
        told = predict(case.shape, Layout.parse(f"{text},micro_batch=2"), seq=8, **how).stages[0]
        assert sum(bytes_) == world * told.activations, (text, case.shape)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dp=2,ep=4", "ep must divide dp * cp = 2, got 4"),
        ("dp=3,ep=3", "ep must divide moe.experts = 8 (1, 2, 4, 8), got 3"),
        ("dp=2,tp=2,sp,ep=8,etp=1", "ep must divide dp * cp * tp = 4, got 8"),
        ("dp=2,tp=2,ep=2,etp=1", "etp must be tp = 2, or 1 where the layout has sp, got 1"),
        ("dp=2,tp=4,sp,ep=2,etp=2", "etp must be tp = 4, or 1 where the layout has sp, got 2"),
        (
            "dp=2,tp=2,sp,etp=1",
            "etp = 1 spreads experts over tp: it needs ep above 1, and another schedule than dualpipe",
        ),
    ],
)
def test_what_cannot_be_spread_is_refused(text, words):
    with pytest.raises(LayoutError) as error:
        Layout.parse(text).check(SHAPES["top-2"])
    assert str(error.value) == words


def test_two_steps_need_to_know_what_a_node_is():
    for options, words in (
        ({}, "dispatch is 'two-step', which needs node"),
        ({"node": 3}, "node must divide ep = 4 (1, 2, 4), got 3"),
    ):
        with pytest.raises(LayoutError) as error:
            Layout(dp=4, ep=4, dispatch="two-step", **options).check(SHAPES["top-2"])
        assert words in str(error.value)


def test_routers_that_count_take_no_padding():
    layout = Layout.parse("cp=2,ep=2")
    layout.check(SHAPES["top-2"], seq=10)
    with pytest.raises(LayoutError, match=r"seq must be a multiple of 4 .*moe\.capacity.* got 10"):
        layout.check(balanced(SHAPES["top-2"], "capacity"), seq=10)


@pytest.mark.parametrize("capacity", [0, -1.0, 0.0])
def test_a_capacity_of_nothing_is_refused(capacity):
    with pytest.raises(ShapeError, match=r"moe\.capacity must be a number above 0"):
        MIXTRAL.replace(moe={"experts": 4, "top_k": 1, "ffn": 4, "capacity": capacity})
    assert Router(4, MIXTRAL.moe).sizes.capacity is None
