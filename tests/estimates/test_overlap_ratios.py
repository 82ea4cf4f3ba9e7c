"""What hides behind what: bytes are those that one more block adds to a step's traffic, FLOPs those of its products."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import hypothesis
import pytest
import torch
from helpers import BLOCKS, DEEPSEEK
from hypothesis import strategies as st

from playbook.block import DENSE
from playbook.errors import ConfigError
from playbook.hardware import CLUSTERS
from playbook.layout import Layout
from playbook.layout.tokens import MaskBlock
from playbook.model import attend
from playbook.planning import operations
from playbook.planning.flops import ATTENTION_CORE, forward_flops, step_flops
from playbook.planning.job import Job
from playbook.planning.messages import Message
from playbook.planning.operations import Sizes
from playbook.planning.traffic import traffic
from playbook.shapes import ModelShape, load
from playbook_book.context_cost import context_traffic, hiding_tokens
from playbook_book.instruments.measured import count_flops
from playbook_book.overlap_estimates import data_parallel_ratio, side_by_side
from playbook_book.overlap_ratios import (
    Overlap,
    context,
    data_parallel,
    expert,
    group_bandwidth,
    pipeline,
    tensor,
    zero3,
)

GPT = BLOCKS["gpt"].replace(layers=2, hidden=24, heads=4, vocab=40)
LLAMA = BLOCKS["llama"].replace(layers=2, hidden=32, heads=8, kv_heads=2, ffn=48, vocab=40)
#: Latent attention; experts with shared ones and without; one dense block first.
LATENT = DEEPSEEK.replace(layers=2, moe=None, heads=4, vocab=40, ffn=48)
MIXTRAL = LLAMA.replace(moe={"experts": 8, "top_k": 2, "ffn": 16})
SHARED = LATENT.replace(moe={"experts": 8, "top_k": 3, "ffn": 16, "shared_experts": 1, "dense_layers": 1})
SHAPES = (GPT, LLAMA, LATENT, MIXTRAL, SHARED)
SEQ = 32
#: Of weights in bf16: what the default of gradients is, and in how many bytes each recipe sends them.
FP32_GRADIENTS = "bf16-mixed-fp32-grads"
GRADIENTS = {FP32_GRADIENTS: {}, "bf16-mixed": {"gradient_bytes": 2}}
MACHINE = {"peak_flops": 400e12, "bandwidth": 40e9}
EIGHT = CLUSTERS["h100-8"]

shapes = st.sampled_from(SHAPES)
sizes = st.sampled_from((1, 2, 4))


def given(*drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Few cases: values are few."""
    return lambda test: hypothesis.settings(max_examples=30)(hypothesis.given(*drawn)(test))


def added(
    shape: ModelShape,
    layout: Layout,
    axis: str,
    *phases: str,
    wanted: Callable[[Message], bool] = bool,
    recipe: str = "bf16-mixed",
) -> Fraction:
    """Bytes that one more block adds to a step of one micro-batch: the mean over all ranks."""
    found = 0
    for layers, sign in ((shape.layers + 1, 1), (shape.layers, -1)):
        for rank in range(layout.world_size):
            messages = traffic(shape.replace(layers=layers), layout, SEQ, rank=rank, recipe=recipe)
            found += sign * sum(
                m.total for m in messages if m.axis == axis and m.phase in phases and wanted(m)
            )
    return Fraction(found, layout.world_size)


def in_both(technique: Callable[..., Overlap], *args: Any, **kwargs: Any) -> tuple[Overlap, Overlap]:
    return technique(*args, **kwargs), technique(*args, backward=True, **kwargs)


# --- FLOPs


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_flops_are_those_of_the_products_with_weights(shape):
    """Of a model and one with a block more."""
    layout = Layout(dp=2, micro_batch=3)
    more, less = (forward_flops(shape.replace(layers=n), 3, SEQ) for n in (shape.layers + 1, shape.layers))
    products = sum(flops - less[name] for name, flops in more.items() if name not in ATTENTION_CORE)
    backward = [
        step_flops(shape.replace(layers=n), 3, SEQ).backward for n in (shape.layers + 1, shape.layers)
    ]
    core = 2 * sum(more[name] - less[name] for name in ATTENTION_CORE)
    assert zero3(shape, layout, SEQ).flops == products
    assert data_parallel(shape, layout, SEQ).flops == backward[0] - backward[1] - core


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_flops_of_a_stage_are_a_share_of_all_blocks(shape):
    terms = forward_flops(shape, 1, SEQ)
    products = sum(flops for name, flops in terms.items() if name not in {*ATTENTION_CORE, "head"})
    assert pipeline(shape, Layout(pp=2, tp=2), SEQ).flops == Fraction(products, 4)
    assert pipeline(shape, Layout(pp=2), SEQ, backward=True).flops == products


@given(shapes, st.sampled_from((1, 2)), sizes)
def test_hops_together_compute_the_attention_core(shape, tp, cp):
    """Of all ranks and all their blocks of keys; a mask leaves half."""
    layout = Layout(tp=tp, cp=cp, micro_batch=3)
    core = sum(forward_flops(shape, 3, SEQ)[name] for name in ATTENTION_CORE)
    whole = context(shape, layout, SEQ, causal=False)
    assert whole.flops * cp * cp * tp * shape.layers == core
    assert context(shape, layout, SEQ).flops * 2 == whole.flops


@pytest.mark.parametrize("block", [attend.attend_backward, attend.flash_backward], ids=["formulas", "flash"])
def test_a_hop_is_five_products_backward_for_two_forward(block):
    """As PyTorch counts the products of a block of attention that really runs: 64 queries and 64 keys, no mask."""
    layout, tokens = Layout(cp=4, micro_batch=3), 64
    hops = in_both(context, LLAMA, layout, 4 * tokens, causal=False)
    q, k, v = (torch.randn(3, LLAMA.heads, tokens, LLAMA.qk_dim) for _ in range(3))
    here = MaskBlock(0, tokens, 0, tokens, causal=False)
    forward = attend.attend if block is attend.attend_backward else attend.flash
    out, lse = forward(here, q, k, v)
    counted = [
        count_flops(lambda: forward(here, q, k, v)),
        count_flops(lambda: block(here, torch.ones_like(q), q, k, v, out, lse)),
    ]
    assert [hop.flops for hop in hops] == counted
    assert counted[1] == 5 * counted[0] / 2


@given(st.sampled_from((GPT, LLAMA)), st.sampled_from((1, 2)), sizes)
def test_hops_are_the_attention_of_the_simulator(shape, tp, cp):
    """Of a micro-batch: cp blocks of a causal mask, forward and backward."""
    layout = Layout(tp=tp, cp=cp, micro_batch=3)
    passes = operations.block(Sizes(Job(shape, layout, seq=SEQ)), DENSE)
    for hop, some in zip(in_both(context, shape, layout, SEQ), (passes.forward, passes.inputs), strict=True):
        assert cp * hop.flops == sum(o.work for o in some if o.name.startswith("attention"))


# --- bytes


def with_experts(shape: ModelShape, ranks: int, tp: int, ep: int) -> dict[str, Any]:
    """How a layout spreads experts, where it can: over four ranks, whole ones over tp too."""
    whole = {"etp": 1, "sp": True} if ep == 4 else {}
    can = shape.moe and ranks * (tp if whole else 1) % ep == 0 and (tp > 1 or not whole)
    return {"ep": ep, **whole} if can else {}


@pytest.mark.parametrize("recipe", GRADIENTS)
@given(shapes, sizes, st.sampled_from((1, 2)), st.sampled_from((1, 2)), st.sampled_from((1, 2, 4)))
def test_gradients_of_replicas(recipe, shape, dp, cp, tp, ep):
    layout = Layout(dp=dp, cp=cp, tp=tp, **with_experts(shape, dp * cp, tp, ep))
    sent = data_parallel(shape, layout, SEQ, **GRADIENTS[recipe]).sent
    assert sent == added(shape, layout, "dp", "gradients", recipe=recipe)


@pytest.mark.parametrize("recipe", GRADIENTS)
@given(shapes, st.sampled_from((2, 3, 4)), st.sampled_from((1, 2)), st.sampled_from((1, 2, 4)))
def test_weights_that_zero3_gathers(recipe, shape, dp, tp, ep):
    layout = Layout(dp=dp, tp=tp, zero=3, **with_experts(shape, dp, tp, ep))
    forward, backward = in_both(zero3, shape, layout, SEQ, **GRADIENTS[recipe])
    assert forward.sent == added(shape, layout, "dp", "forward", recipe=recipe)
    assert backward.sent == added(shape, layout, "dp", "backward", "gradients", recipe=recipe)


@given(shapes, st.sampled_from((2, 4)), st.sampled_from((False, True, "whole")), st.integers(1, 3))
def test_what_crosses_the_borders_of_tensor_parallel_regions(shape, tp, sp, micro_batch):
    whole = {"ep": tp, "etp": 1} if sp == "whole" and shape.moe else {}
    layout = Layout(tp=tp, sp=bool(sp), micro_batch=micro_batch, **whole)
    forward, backward = in_both(tensor, shape, layout, SEQ)
    assert forward.sent == added(shape, layout, "tp", "forward")
    assert backward.sent == added(shape, layout, "tp", "backward")


@given(shapes, st.sampled_from((2, 4)), st.sampled_from((1, 2, 4)))
def test_hops_of_keys_and_values(shape, cp, tp):
    layout = Layout(cp=cp, tp=tp)
    forward, backward = in_both(context, shape, layout, SEQ)
    assert (cp - 1) * forward.sent == added(shape, layout, "cp", "forward")
    assert (cp - 1) * backward.sent == added(shape, layout, "cp", "backward")
    assert (cp - 1) * forward.sent == context_traffic(shape, layout, SEQ).forward
    assert (cp - 1) * backward.sent == context_traffic(shape, layout, SEQ).backward


@given(shapes, st.sampled_from((1, 2)), st.booleans(), st.sampled_from((1, 2)))
def test_a_hop_of_a_pipeline(shape, tp, sp, cp):
    layout = Layout(pp=2, tp=tp, sp=sp and tp > 1, cp=cp)
    for one, phase, rank in zip(
        in_both(pipeline, shape, layout, SEQ), ("forward", "backward"), (0, tp * cp), strict=True
    ):
        messages = traffic(shape, layout, SEQ, rank=rank)
        sent = [m.total for m in messages if (m.axis, m.phase, m.collective) == ("pp", phase, "send")]
        assert sent == [one.sent]


@given(st.sampled_from((MIXTRAL, SHARED)), st.sampled_from((2, 4, 8)), st.sampled_from((1, 2)), st.booleans())
def test_rows_of_experts(shape, ep, tp, whole):
    layout = Layout(dp=ep, ep=ep, tp=tp)
    if whole and tp > 1:
        layout = Layout(dp=ep // tp, ep=ep, tp=tp, sp=True, etp=1)
    counts = shape.moe.experts * 8  # how many rows, told beforehand: few bytes
    for one, phase in zip(in_both(expert, shape, layout, SEQ), ("forward", "backward"), strict=True):
        assert one.sent == added(shape, layout, "ep", phase, wanted=lambda m: m.payload != counts)


@pytest.mark.parametrize("shape", [MIXTRAL, SHARED], ids=["mixtral", "shared"])
@pytest.mark.parametrize("node", [1, 2, 4])
def test_rows_that_leave_a_node_in_two_steps(shape, node):
    """A token goes to each other node once; the traffic rounds a mean up to whole tokens."""
    layout, row = Layout(dp=8, ep=8), shape.hidden * 2
    two_steps = layout.replace(dispatch="two-step", node=node)
    told = max(  # rows are longer than the choices and weights that go with them
        m.bytes
        for m in traffic(shape, two_steps, SEQ)
        if m.axis == "ep" and m.apart == node and m.phase == "forward"
    )
    sent = expert(shape, layout, SEQ, node=node, two_step=True).sent
    assert 2 * told == pytest.approx(float(sent), abs=2 * (8 / node - 1) * row)
    assert 2 * told >= sent
    assert sent <= expert(shape, layout, SEQ, node=node).sent


@pytest.mark.parametrize("technique", [data_parallel, zero3])
def test_gradients_of_experts_are_apart(technique):
    layout = Layout(dp=4, ep=2)
    parts = [technique(MIXTRAL, layout, SEQ, experts=which) for which in (True, False)]
    assert sum(one.sent for one in parts) == technique(MIXTRAL, layout, SEQ).sent
    assert {one.flops for one in parts} == {technique(MIXTRAL, layout, SEQ).flops}
    # Of two ranks: an all-reduce of gradients in fp32 sends all of them, a gather of weights in bf16 half of them.
    assert parts[0].sent == 4 * 3 * 32 * 16 * (4 if technique is data_parallel else 2 // 2)
    assert technique(MIXTRAL, Layout(dp=4), SEQ, experts=True).sent == 0


def test_rows_inside_a_node_are_no_rows_between_nodes():
    layout, rows = (
        Layout(dp=8, ep=8),
        2 * SEQ * 2 * MIXTRAL.hidden * 2,
    )  # there and back, two experts, two bytes
    sent = [expert(MIXTRAL, layout, SEQ, node=node).sent for node in (None, 1, 4, 8)]
    assert sent == [rows * 7 // 8, rows * 7 // 8, rows // 2, 0]
    assert expert(MIXTRAL, layout, SEQ, node=8, two_step=True).sent == 0


def test_a_technique_that_is_not_used_sends_nothing():
    alone = Layout()
    for technique in (data_parallel, zero3, tensor, context, pipeline, expert):
        one = technique(MIXTRAL, alone, SEQ)
        assert (one.sent, one.ratio(**MACHINE), one.intensity) == (0, 0, float("inf"))
        assert one.flops > 0


# --- ratios


@given(st.integers(1, 64), st.integers(2, 512))
def test_parameters_cancel_in_data_parallelism(samples, replicas):
    """Norms, which multiply nothing, are the difference. Gradients are in fp32, weights in bf16."""
    layout, shape = Layout(dp=replicas, micro_batch=samples), load("llama3-8b")
    short = data_parallel_ratio(samples * 1024, replicas, gradient_bytes=4, **MACHINE)
    assert data_parallel(shape, layout, 1024).ratio(**MACHINE) == pytest.approx(short, rel=1e-4)
    forward, backward = in_both(zero3, shape, layout, 1024)
    assert forward.ratio(**MACHINE) == pytest.approx(short / 2, rel=1e-4)
    assert backward.ratio(**MACHINE) == pytest.approx(short * 3 / 4, rel=1e-4)
    in_bf16 = [data_parallel(shape, layout, 1024, gradient_bytes=2)]
    in_bf16 += in_both(zero3, shape, layout, 1024, gradient_bytes=2)
    assert [one.ratio(**MACHINE) for one in in_bf16] == pytest.approx([short / 2] * 3, rel=1e-4)


@given(st.sampled_from((1024, 8192, 65536)), st.integers(1, 8), st.sampled_from((2, 4, 8)))
def test_tokens_cancel_in_tensor_pipeline_and_expert_parallelism(seq, micro_batch, ranks):
    few, many = ((1024, 1), (seq, micro_batch))
    for technique, layout in (
        (tensor, Layout(tp=ranks, sp=True)),
        (pipeline, Layout(pp=ranks)),
        (expert, Layout(dp=8, ep=ranks)),
    ):
        ratios = [
            technique(load("mixtral-8x7b"), layout.replace(micro_batch=m), s).ratio(**MACHINE)
            for s, m in (few, many)
        ]
        assert ratios[0] == pytest.approx(ratios[1])


def test_closed_forms():
    """Of a block of 12h² parameters, of gated experts, and of a hop; bytes/s are those of 2-byte elements."""
    gpt, mixtral, speed = load("gpt3-175b"), load("mixtral-8x7b"), 400e12 / 40e9
    h, ffn = gpt.hidden, mixtral.moe.ffn
    for sp in (False, True):
        found = tensor(gpt, Layout(tp=8, sp=sp), 2048)
        assert found.ratio(**MACHINE) == pytest.approx(7 / (3 * h) * speed)
    assert expert(mixtral, Layout(dp=8, ep=8), 4096).ratio(**MACHINE) == pytest.approx(
        7 / 8 * 2 / (3 * ffn) * speed
    )
    assert pipeline(gpt, Layout(pp=8), 2048).ratio(**MACHINE) == pytest.approx(
        speed / (12 * h * gpt.layers / 8)
    )
    tokens = hiding_tokens(gpt, **MACHINE)
    hop = context(gpt, Layout(cp=4), round(4 * tokens))
    assert hop.ratio(**MACHINE) == pytest.approx(1, rel=1e-3)


def test_backward_beside_forward():
    shape = load("llama3-70b")
    for technique, layout, factor in (
        (zero3, Layout(dp=64, zero=3), (2 + 4) / 2 / 2),
        (pipeline, Layout(pp=4), 1 / 2),
        (tensor, Layout(tp=8, sp=True), 6 / 4 / 2),
        (tensor, Layout(tp=8), 1 / 2),
        (context, Layout(cp=8), (2 + 4) / 2 / (5 / 2)),
    ):
        forward, backward = in_both(technique, shape, layout, 8192)
        assert backward.ratio(**MACHINE) == pytest.approx(factor * forward.ratio(**MACHINE))


def test_intensity_is_the_speed_at_which_sending_takes_as_long():
    one = zero3(load("llama3-8b"), Layout(dp=64), 4096)
    assert one.ratio(peak_flops=one.intensity * 40e9, bandwidth=40e9) == pytest.approx(1)
    assert one.intensity == pytest.approx(4096 * 64 / 63, rel=1e-4)


def test_what_cannot_be_is_refused():
    for wrong in ({"peak_flops": 0.0}, {"bandwidth": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            zero3(GPT, Layout(dp=2), SEQ).ratio(**{**MACHINE, **wrong})
    with pytest.raises(ConfigError, match="has no experts"):
        expert(GPT, Layout(), SEQ)
    with pytest.raises(ConfigError, match="node must divide ep = 8, got 3"):
        expert(MIXTRAL, Layout(dp=8, ep=8), SEQ, node=3)
    with pytest.raises(ConfigError, match="axis"):
        group_bandwidth(EIGHT, Layout(), "vpp")
    with pytest.raises(ConfigError, match="lost must be"):
        side_by_side(1.0, 1.0, 1.0)


# --- links


@pytest.mark.parametrize(
    ("text", "axis", "speed"),
    [
        ("tp=8", "tp", EIGHT.intra_bandwidth),
        ("tp=16", "tp", EIGHT.intra_bandwidth),  # eight adapters would carry more than NVLink brings
        ("tp=8,dp=4", "dp", EIGHT.inter_bandwidth),
        ("tp=2,dp=8", "dp", EIGHT.inter_bandwidth * 4),
        ("dp=8", "dp", EIGHT.intra_bandwidth),
        ("tp=4,cp=2,dp=4", "dp", EIGHT.inter_bandwidth * 2),  # replicas are those of cp as well
        ("tp=4,cp=2", "cp", EIGHT.intra_bandwidth),
        ("cp=16", "cp", EIGHT.inter_bandwidth),
        ("tp=8,pp=2", "pp", EIGHT.inter_bandwidth),
        ("tp=4,pp=2", "pp", EIGHT.intra_bandwidth),
        ("dp=8,ep=8", "ep", EIGHT.intra_bandwidth),
        ("dp=16,ep=16", "ep", EIGHT.inter_bandwidth),
        ("dp=16,ep=8", "edp", EIGHT.inter_bandwidth),  # one rank in each node
        ("dp=16,ep=4", "edp", EIGHT.inter_bandwidth * 2),
        ("dp=8,ep=4", "edp", EIGHT.intra_bandwidth),
        ("dp=8", "edp", EIGHT.intra_bandwidth),
    ],
)
def test_links_of_a_group(text, axis, speed):
    assert group_bandwidth(EIGHT, Layout.parse(text), axis) == pytest.approx(speed)


# --- side by side


@given(st.floats(0.01, 100), st.floats(0, 100), st.floats(0, 0.9))
def test_time_side_by_side(compute, sending, lost):
    """Two phases: both at a time, and what is left alone."""
    together = min(sending, compute / (1 - lost))
    left = compute - together * (1 - lost), sending - together
    took = side_by_side(compute, sending, lost)
    assert took == pytest.approx(together + max(left))
    assert max(compute, sending) <= took + 1e-9
    assert took <= compute + sending + 1e-9
