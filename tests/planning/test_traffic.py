"""What a rank sends is what a run counts: every message of a step, on every rank, by axis, collective and bytes.

Most of it is counted where runs are compared with one device, in ``tests/parallel``."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from helpers import BLOCKS, DEEPSEEK
from hypothesis import strategies as st
from random_shapes import shapes
from traffic_runs import SEQ, Cases, check

from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.layout.fields import CONTEXT
from playbook.planning.job import Job
from playbook.planning.memory import predict
from playbook.planning.messages import PHASES, Sender
from playbook.planning.traffic import by_axis, total, traffic
from playbook.precision.recipes import FP8_RECIPES
from playbook.schedules.validate import schedule_of
from playbook.shapes import load
from playbook_book.context_cost import context_traffic
from playbook_book.replica_traffic import traffic as of_replicas

#: Odd sizes, tied tables, biases; and grouped heads, norms of queries and keys, a table at either end.
GPT = BLOCKS["gpt"].replace(layers=3, hidden=24, heads=4, vocab=37)
LLAMA = BLOCKS["llama"].replace(layers=2, hidden=32, heads=8, kv_heads=2, ffn=52, vocab=37, qk_norm=True)
#: Latent attention, with latent queries and without: values are narrower than keys.
LATENT = DEEPSEEK.replace(layers=2, moe=None, heads=4, tied=True, bias=True, qkv_bias=False, ffn=52)
DIRECT = LATENT.replace(
    bias=False, mla={"q_rank": None, "kv_rank": 12, "nope_dim": 6, "rope_dim": 4, "value_dim": 5}
)
MIXED = DEEPSEEK.replace(layers=2)
FEW = {"bucket": 4096, "first_bucket": 512}  # bytes: several buckets
#: Three stages on two ranks, B and W apart.
OWN = schedule_of(
    {
        "ranks": [
            [{"op": op, "stage": s, "microbatch": m} for m in range(2) for op, s in steps]
            for steps in (
                [("F", 0), ("F", 2), ("B", 2), ("B", 0), ("W", 0), ("W", 2)],
                [("F", 1), ("B", 1), ("W", 1)],
            )
        ],
    }
)

TWO: Cases = [
    (LLAMA, "dp=2", {"data_parallel": "naive"}),
    (GPT, "dp=2", {"data_parallel": "overlapped", "find_unused": True}),
    (LLAMA, "dp=2,zero=1,grad_acc=2", {**FEW, "gather": "lazily"}),
    (GPT, "pp=2,grad_acc=2", {"own_schedule": OWN, "stage_layers": (0, 2, 1)}),
    (LATENT, "tp=2,sp,recompute=full", {}),
    (DIRECT, "tp=2,recompute=full", {}),
    (LATENT, "tp=2,sp", {"tensor_overlap": "chunked"}),
    (DIRECT, "cp=2,zero=3", {"context": "ulysses"}),
    (LATENT, "cp=2,recompute=selective", {}),
    (LLAMA, "tp=2,recompute=mlp+core_attn", {}),
    (LATENT, "tp=2,sp,recompute=mlp", {"tensor_overlap": "chunked"}),
    (MIXED, "cp=2,ep=2,recompute=moe", {}),
    (MIXED, "tp=2,sp,recompute=moe", {}),
    (MIXED, "tp=2,sp,recompute=shared_experts", {}),
    (MIXED, "tp=2,recompute=mlp+shared_experts", {}),
    (MIXED, "dp=2,ep=2,zero=3,recompute=moe+mlp", {"dispatch": "two-step", "node": 1}),
    (LATENT.replace(layers=4), "pp=2,zero=1,schedule=zb-v,grad_acc=4", {}),
    (MIXED, "tp=2,sp,recompute=full:1", {}),
    (MIXED.replace(layers=4), "cp=2,ep=2,recompute=moe:3", {}),
    (LATENT, "tp=2,recompute=full:1", {}),
    (LLAMA.replace(layers=4), "pp=2,zero=3,grad_acc=2,recompute=full:1", {}),
    (LLAMA, "cp=2,recompute=selective:1", {}),
    (MIXED, "dp=2,ep=2,zero=3,recompute=full:1", {}),
]
FOUR: Cases = [
    (GPT.replace(layers=4), "pp=4,schedule=dualpipe,grad_acc=8", {}),
    (LLAMA, "dp=2,pp=2,zero=3,grad_acc=3,schedule=afab", {"reshard": False}),
    (LATENT, "tp=2,sp,cp=2,zero=2,recompute=selective", {"context": "gather", **FEW}),
    (DIRECT, "tp=2,cp=2,grad_acc=2", {"context": "ulysses"}),
    (LATENT.replace(layers=4), "tp=2,sp,pp=2,zero=3,schedule=dualpipe,grad_acc=4", {}),
]


@pytest.mark.parametrize(("cases", "world"), [(TWO, 2), (FOUR, 4)], ids=["two", "four"])
def test_every_message_of_a_step(ranks, cases, world):
    """Of what ``tests/parallel``, which counts as well, has not: latent attention, one's own schedule, rare options."""
    check(ranks, cases, world)


def test_elements_of_sixteen_bits(ranks):
    cases = [
        (GPT, "tp=2,sp", {}), (LLAMA, "cp=2", {}), (GPT, "pp=2,grad_acc=2", {}),
        (LLAMA, "dp=2,zero=1", FEW), (LLAMA, "cp=2", {"context": "gather"}),
    ]  # fmt: skip
    check(ranks, cases, 2, torch.bfloat16, "bf16-mixed")
    check(ranks, cases[:3], 2, torch.float32, "autocast")


@pytest.mark.parametrize("fp8", FP8_RECIPES)
def test_layers_in_fp8(ranks, fp8):
    gpt = GPT.replace(layers=2)
    cases = [
        (LATENT, "tp=2,sp", {}), (LLAMA, "tp=2,sp,recompute=full", {}), (gpt, "tp=2,grad_acc=2", {}),
        (LLAMA, "dp=2,zero=3,grad_acc=2", {}), (MIXED, "cp=2,ep=2,recompute=full", {}),
        (gpt, "pp=2,grad_acc=4,schedule=dualpipe", {}),
        (MIXED, "dp=2,ep=2,zero=3,recompute=full", {"dispatch": "two-step", "node": 1}),
        (MIXED, "tp=2,sp,recompute=moe", {}), (MIXED, "cp=2,ep=2,recompute=mlp+moe", {}),
        (LLAMA, "tp=2,recompute=mlp", {}), (MIXED, "tp=2,recompute=shared_experts", {}),
    ]  # fmt: skip
    # Of recipes whose scales are their rank's own one has all cases, as the one whose scales ranks share.
    check(ranks, cases if fp8 in ("tensorwise", "blockwise") else cases[1::2], 2, fp8=fp8)


def test_scales_that_four_ranks_share(ranks):
    each_product = [
        (LLAMA, "tp=2,cp=2,sp", {}), (DEEPSEEK.replace(layers=2, heads=6), "tp=2,dp=2,ep=2,sp,zero=2", {}),
    ]  # fmt: skip
    each_step = [
        (GPT, "dp=2,cp=2,grad_acc=2", {}), (LATENT, "tp=2,dp=2,pp=1,zero=3,grad_acc=2", {}),
        (GPT, "dp=2,pp=2,zero=3,grad_acc=3", {}),
    ]  # fmt: skip
    check(ranks, each_product, 4, fp8="tensorwise")
    check(ranks, each_step, 4, fp8="delayed")


#: By option: a layout, options, and whether another value changes what is sent, or only when.
OPTIONS = {
    "context": (LLAMA, "cp=2", {"context": "gather"}, {}, True),
    "placement": (LLAMA, "cp=2", {"placement": "contiguous"}, {}, False),
    "tensor_overlap": (LLAMA, "tp=2,sp", {"tensor_overlap": "chunked"}, {}, True),
    "data_parallel": (LLAMA, "dp=2", {"data_parallel": "naive"}, {}, True),
    "bucket": (LLAMA, "dp=2", {"bucket": 4096}, {"first_bucket": 512}, True),
    "first_bucket": (LLAMA, "dp=2", {"first_bucket": 512}, {}, True),
    "gather": (LLAMA, "dp=2,zero=1", {"gather": "lazily"}, {}, False),
    "reshard": (LLAMA, "dp=2,zero=3", {"reshard": False}, {}, True),
    "prefetch": (LLAMA, "dp=2,zero=3", {"prefetch": False}, {}, False),
    "dispatch": (DEEPSEEK, "dp=4,ep=4", {"dispatch": "two-step"}, {"node": 2}, True),
    "node": (DEEPSEEK, "dp=4,ep=4", {"node": 1}, {"dispatch": "two-step", "node": 2}, True),
    "find_unused": (LLAMA, "dp=2", {"find_unused": True}, {}, True),
    "muon": (LLAMA, "dp=2,zero=1", {"muon": "owner"}, {}, True),
    "stage_layers": (LLAMA.replace(layers=4), "pp=2,tp=2", {"stage_layers": (1, 3)}, {}, True),
    "own_schedule": (GPT, "pp=2,grad_acc=2", {"own_schedule": OWN}, {}, True),
}


@pytest.mark.parametrize("option", Layout().options)
def test_an_option_changes_messages_or_only_when_they_are_sent(option):
    """Whoever adds an option says here which."""
    shape, text, changed, given, other = OPTIONS[option]
    layouts = (Layout.parse(text).replace(**{**given, **more}) for more in ({}, changed))
    optimizer = "muon" if option == "muon" else "adamw"
    plain, now = (traffic(shape, layout, SEQ, optimizer=optimizer) for layout in layouts)
    assert (plain != now) is other


def test_of_one_device_nothing_is_sent():
    assert traffic(load("tiny"), Layout(grad_acc=4), 64, first=True) == []


def test_sums_by_axis_and_phase():
    found = traffic(load("llama3-8b"), Layout.parse("dp=2,tp=8,sp,pp=4,zero=1,grad_acc=8"), 8192)
    assert {message.phase for message in found} <= set(PHASES)
    assert sum(by_axis(found).values()) == total(found)
    assert by_axis(found)["tp"] == total(found, "tp") > by_axis(found)["dp"] > by_axis(found)["pp"]
    assert total(found, "dp", "gradients") == total(found, "dp", "parameters")


def test_what_cannot_run_has_no_traffic():
    with pytest.raises(LayoutError, match="tp must divide heads"):
        traffic(load("gpt2"), Layout(tp=5), 64)


@pytest.mark.parametrize("context", CONTEXT)
def test_context_parallelism_is_that_of_its_formula(context):
    layout = Layout(cp=4, tp=2, micro_batch=3, grad_acc=2, context=context)
    for shape in (LLAMA.replace(kv_heads=8), LATENT.replace(heads=8)):
        found = traffic(shape, layout, 64)
        assert total(found, "cp") == context_traffic(shape, layout, 64, context).total * shape.layers * 2


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("zero", range(4))
def test_replicas_are_those_of_their_formula(zero, reshard):
    """Of which the mean over ranks has no rounding."""
    layout = Layout(dp=3, zero=zero, grad_acc=2, reshard=reshard)
    units = predict(GPT, layout, seq=SEQ).stages[0].counts.units
    told = of_replicas(units, 3, zero, grad_acc=2, reshard=reshard).total
    sent = 0
    for rank in range(3):
        found = traffic(GPT, layout, SEQ, rank=rank)
        sent += sum(total(found, "dp", phase) for phase in ("gradients", "parameters", "forward", "backward"))
    assert sent == 3 * told


CUT = [
    "",
    "tp=2,sp",
    "tp=4",
    "pp=2",
    "pp=2,schedule=zb-v,grad_acc=3",
    "pp=2,tp=2,zero=3",
    "pp=2,zero=3",
    "zero=3",
]


@hypothesis.given(shapes(dense=True), st.sampled_from(CUT))
def test_weights_are_the_parameters_of_the_rank(shape, text):
    """Tensor by tensor as many as the formulas of memory have."""
    shape = shape.replace(layers=5, heads=4, kv_heads=2, ffn=48, head_dim=6)
    layout = Layout.parse(text)
    for stage in predict(shape, layout, seq=SEQ).stages:
        place = layout.rank(pp=stage.stage)
        (one,) = Sender(Job(shape, layout, seq=SEQ, recipe="fp32"), place).sets
        sizes = [sum(weight.elements for weight in unit.weights) for unit in one.units]
        assert sum(sizes) == stage.counts.local
        if layout.pp > 1 or layout.zero == 3:
            told = [unit.parameters for unit in stage.counts.units if unit.parameters]
            assert sorted(sizes) == sorted(told)
