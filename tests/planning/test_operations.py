"""Operations of one rank against the FLOPs of the whole model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import shapes

from playbook.block import DENSE, Core, Kind
from playbook.errors import PlaybookError, ShapeError
from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.planning import operations
from playbook.planning.flops import ATTENTION_CORE, forward_flops
from playbook.planning.job import Job
from playbook.planning.memory import predict
from playbook.planning.operations import Sizes
from playbook.planning.simulator import simulate
from playbook.shapes import ModelShape, load


def sizes(shape, layout, seq, attention="sdpa"):
    layout.check(shape, seq=seq)
    return Sizes(Job(shape, layout, seq=seq, attention=attention))


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
        slack *= shape.blocks().get(Kind(experts=True), 0)
    assert found == pytest.approx(expected + slack, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(shapes(dense=True))
def test_backward_has_two_products_for_one(shape):
    here = sizes(shape, Layout(), 16, "reference")
    for passes in (operations.block(here, DENSE), operations.head(here)):
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
    found = operations.block(sizes(shape, Layout(), seq), DENSE)
    product = 2 * shape.heads * seq * seq * shape.qk_dim / 2
    for some, count in ((found.forward, 2), (found.inputs, 5)):
        assert flops(o for o in some if o.kind == "attention") == count * product


@pytest.mark.parametrize("spread", [Layout(), Layout(cp=4), Layout(cp=4, context="ulysses")])
def test_packed_documents_attend_to_their_own(spread):
    """Eight of 512 tokens as one of 4,096: each token sees an eighth of the keys, and all else is the same."""
    whole = Job(load("llama3-8b"), spread, seq=4096)
    packed = Job(load("llama3-8b"), spread, seq=4096, document=512)
    for some in ("forward", "inputs"):
        one, eight = (getattr(operations.block(Sizes(job), DENSE), some) for job in (whole, packed))
        attention, less = (flops(o for o in all_ if o.kind == "attention") for all_ in (one, eight))
        assert attention == 8 * less
        assert flops(one) - attention == flops(eight) - less


def test_a_norm_moves_twice_as_much_backward():
    """Forward its input and output; backward dy, x, dx and what came past the branch, of 2 bytes each."""
    shape, seq = load("llama3-8b"), 512
    found = operations.block(sizes(shape, Layout(), seq), DENSE)
    for some, count in ((found.forward, 2), (found.inputs, 4)):
        assert sum(o.bytes for o in some if o.name == "norm") == 2 * count * 2 * seq * shape.hidden


def test_recomputation_repeats_what_it_says():
    here = sizes(load("llama3-8b"), Layout(recompute="selective"), 4096)
    core = operations.block(here, DENSE).core
    assert [o.name for o in core] == ["attention"]
    written = sizes(load("gpt3-6.7b"), Layout(recompute="selective"), 2048, "reference")
    assert {o.name for o in operations.block(written, DENSE).core} == {
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
            for o in operations.block(sizes(shape, Layout.parse(text), 4096), DENSE).forward
            if o.name in ("norm", "residual")
        )
        for text in ("tp=4", "tp=4,sp")
    )
    assert whole == 4 * cut


#: Gemma 2 2B, but for norms after its branches: every second block sees the last 4,096 tokens.
GEMMA = ModelShape(
    layers=26, hidden=2304, heads=8, kv_heads=4, head_dim=256, ffn=9216, vocab=256000, gated=True, activation="silu",
    norm="rmsnorm", positions="rotary", bias=False, max_seq=8192, windows=(4096, 0),
)  # fmt: skip


@given(st.integers(0, 9), st.integers(1, 20))
def test_a_window_leaves_the_pairs_that_it_leaves_one_by_one(window, seq):
    """As without one, half of a square counts for a triangle: without the diagonal's halves."""
    row = Core(window=window)
    seen = sum(q - k < (window or seq) for q in range(seq) for k in range(q + 1))
    assert row.pairs(seq) + row.keys(seq) / seq == pytest.approx(2 * seen / seq)


def test_windows_are_planned():
    """In half of the blocks three quarters of the pairs: 8,192² / 2 of the whole, less the triangle beyond 4,096."""
    local, whole = Kind(window=4096), DENSE
    assert GEMMA.blocks() == {whole: 13, local: 13}
    assert GEMMA.blocks([range(3, 8)]) == {whole: 3, local: 2}
    here = sizes(GEMMA, Layout(), 8192)
    near, far = (
        flops(o for o in operations.block(here, kind).forward if o.kind == "attention")
        for kind in (local, whole)
    )
    assert near == 0.75 * far
    scores = forward_flops(GEMMA, 1, 8192)["attention scores"]
    assert scores == 0.75 * forward_flops(GEMMA.replace(windows=()), 1, 8192)["attention scores"]
    layout, cluster = Layout(dp=4, pp=2, grad_acc=4), load_cluster("h100-8")
    seconds, peaks = [], set()
    for windows in ((4096,), (4096, 0), ()):
        step = simulate(GEMMA.replace(windows=windows), layout, cluster, seq=8192, limit=False)
        seconds.append(step.seconds)
        peaks.add(step.memory.peak)
    assert seconds == sorted({*seconds})
    assert len(peaks) == 1  # a flash kernel keeps no scores


def test_norms_are_planned_wherever_they_stand():
    """A norm keeps its input and a statistic for each token; a part beside another reads, and keeps, the same input."""
    llama, tokens = load("llama3-8b"), 2048
    plans = {
        norms: predict(llama.replace(norms=norms), Layout(), seq=tokens).stages[0]
        for norms in ("before", "after", "both", "parallel")
    }
    kept = {norms: plan.activations - plans["before"].activations for norms, plan in plans.items()}
    one = llama.layers * tokens * (2 * llama.hidden + 4)
    assert kept == {
        "before": 0, "after": 0, "both": 2 * one, "parallel": -one - llama.layers * tokens * 2 * llama.hidden
    }  # fmt: skip
    weights = {norms: llama.replace(norms=norms).num_parameters - llama.num_parameters for norms in plans}
    each = llama.layers * llama.hidden
    assert weights == {"before": 0, "after": 0, "both": 2 * each, "parallel": -each}
    for norms in plans:
        step = simulate(
            llama.replace(norms=norms), Layout(tp=2), load_cluster("h100-8"), seq=2048, limit=False
        )
        assert step.seconds > 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norms": "both"}, "norms is 'both'"),
        ({"qk_norm": True, "qk_norm_over": "heads"}, "qk_norm_over is 'heads'"),
        ({"norm_bias": False}, "norm_bias is False"),
    ],
)
def test_norms_of_others_cannot_be_trained(changes, says):
    with pytest.raises(ShapeError, match=f"this model can be planned, but not trained: {says}"):
        Transformer(load("llama3-tiny").replace(**changes))


def test_windows_cannot_be_trained():
    with pytest.raises(
        ShapeError, match=r"this model can be planned, but not trained: windows is \(4096, 0\)"
    ):
        Transformer(GEMMA.replace(layers=1, hidden=64, vocab=256))
    with pytest.raises(ShapeError, match="windows must be at least -1, got -2"):
        GEMMA.replace(windows=(4096, -2))
    with pytest.raises(ShapeError, match="windows has -1, a state in place of attention"):
        GEMMA.replace(windows=(4096, -1))
