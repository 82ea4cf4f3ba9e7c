"""Operations of one rank against the FLOPs of the whole model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import shapes

from playbook.errors import PlaybookError
from playbook.layout import Layout
from playbook.planning import operations
from playbook.planning.flops import ATTENTION_CORE, forward_flops
from playbook.planning.operations import Sizes
from playbook.planning.recipes import load_recipe
from playbook.shapes import load


def sizes(shape, layout, seq, attention="sdpa"):
    layout.check(shape, seq=seq)
    return Sizes(shape, layout, layout.padded(seq), load_recipe("bf16-mixed"), attention)


def flops(some):
    return sum(o.work for o in some)


@settings(max_examples=100, deadline=None)
@given(shapes(), st.sampled_from(["sdpa", "reference"]), st.integers(1, 3))
def test_forward_is_what_the_model_needs(shape, attention, batch):
    """All matrix products; of attention the half that a causal mask leaves, unless scores are written."""
    seq = 24
    here = sizes(shape, Layout(micro_batch=batch), seq, attention)
    whole = forward_flops(shape, batch, seq)
    blocks = {kind: operations.block(here, kind) for kind in shape.blocks()}
    found = sum(flops(blocks[kind].forward) * n for kind, n in shape.blocks().items())
    found += flops(operations.head(here).forward)
    core = sum(whole[name] for name in ATTENTION_CORE)
    expected = sum(whole.values()) - (core / 2 if attention == "sdpa" else 0)
    # Experts have whole rows, and as many each.
    slack = 0.0
    if shape.moe:
        rows = shape.moe.experts * -(-batch * seq * shape.moe.top_k // shape.moe.experts)
        wide = 3 if shape.gated else 2
        slack = (rows - batch * seq * shape.moe.top_k) * wide * 2 * shape.hidden * shape.moe.ffn
        slack *= shape.blocks().get("moe", 0)
    assert found == pytest.approx(expected + slack, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(shapes(dense=True))
def test_backward_has_two_products_for_one(shape):
    here = sizes(shape, Layout(), 16, "reference")
    for passes in (operations.block(here, "dense"), operations.head(here)):
        assert flops(passes.inputs) + flops(passes.weights) == pytest.approx(2 * flops(passes.forward))


@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-6.7b", "deepseek-v3", "mixtral-8x7b"])
@pytest.mark.parametrize("text", ["tp=2,sp", "tp=8,sp", "dp=2,ep=2", "cp=2", "dp=4,tp=4,ep=4,sp"])
def test_ranks_share_the_work(model, text):
    shape, layout = load(model), Layout.parse(text)
    try:
        here = sizes(shape, layout, 2048)
    except PlaybookError:
        pytest.skip("this layout cannot run this model")
    one = sizes(shape, Layout(), 2048)
    for kind in shape.blocks():
        mine, whole = operations.block(here, kind), operations.block(one, kind)
        routers = sum(
            o.work for o in whole.forward if o.name == "router"
        )  # and latents: every rank has them whole
        latent = sum(o.work for o in whole.forward if o.name in ("keys and values, down", "queries, down"))
        parts = layout.tp * layout.cp
        again = (routers + latent) * (layout.tp - 1) / layout.tp / layout.cp
        assert flops(mine.forward) == pytest.approx(flops(whole.forward) / parts + again, rel=1e-3)


def test_flash_attention_has_two_products_forward_and_five_backward():
    """q·kᵀ and p·v; then q·kᵀ again, and gradients of p, v, q and k; the mask leaves half of each."""
    shape, seq = load("llama3-8b"), 512
    found = operations.block(sizes(shape, Layout(), seq), "dense")
    product = 2 * shape.heads * seq * seq * shape.qk_dim / 2
    for some, count in ((found.forward, 2), (found.inputs, 5)):
        assert flops(o for o in some if o.kind == "attention") == count * product


def test_a_norm_moves_twice_as_much_backward():
    """Forward its input and output; backward dy, x, dx and what came past the branch, of 2 bytes each."""
    shape, seq = load("llama3-8b"), 512
    found = operations.block(sizes(shape, Layout(), seq), "dense")
    for some, count in ((found.forward, 2), (found.inputs, 4)):
        assert sum(o.bytes for o in some if o.name == "norm") == 2 * count * 2 * seq * shape.hidden


def test_recomputation_repeats_what_it_says():
    here = sizes(load("llama3-8b"), Layout(recompute="selective"), 4096)
    core = operations.block(here, "dense").core
    assert [o.name for o in core] == ["attention"]
    written = sizes(load("gpt3-6.7b"), Layout(recompute="selective"), 2048, "reference")
    assert {o.name for o in operations.block(written, "dense").core} == {
        "scores",
        "values",
        "softmax",
        "reorder",
    }


def test_sequence_parallelism_divides_norms_and_residuals():
    shape = load("llama3-8b")
    whole, cut = (
        sum(
            o.bytes
            for o in operations.block(sizes(shape, Layout.parse(text), 4096), "dense").forward
            if o.name in ("norm", "residual")
        )
        for text in ("tp=4", "tp=4,sp")
    )
    assert whole == 4 * cut
