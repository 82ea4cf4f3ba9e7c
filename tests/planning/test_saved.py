"""Predicted activations equal, to the byte, what autograd saves when the model really runs."""

from unittest import mock

import pytest
import torch
from helpers import tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import RUNS, shapes

from playbook.kernels import jit
from playbook.kernels.cross_entropy import cross_entropy
from playbook.kernels.ops import FusedOps
from playbook.layout import Layout
from playbook.layout.fields import blocks_again
from playbook.model.fp8 import use_fp8
from playbook.model.ops import TORCH_OPS, Ops
from playbook.model.transformer import Transformer
from playbook.planning.fusion import EVERYTHING, NOTHING, load_fused, loss_of
from playbook.planning.job import Job
from playbook.planning.recipes import RECIPES
from playbook.planning.saved import block_terms, embedding_terms, head_terms
from playbook.planning.terms import SYMBOLS, maker, symbols, total
from playbook.precision.recipes import FP8_RECIPES
from playbook.shapes import ModelShape, load
from playbook_book.instruments.measured import SavedActivations

MODES = ["none", "selective", "full", "mlp", "core_attn+mlp+moe", "shared_experts", "full:1", "mlp+moe:1"]


def nothing(launch: jit.Launch) -> None:
    """In the place of the interpreter."""


def predicted(shape, batch, seq, recompute, attention, recipe, fused=NOTHING, fp8=""):
    layout = Layout(micro_batch=batch)
    numbers = RECIPES[recipe].with_fp8(fp8)
    make = maker(symbols(Job(shape, layout, seq=seq, recipe=numbers, fused=fused, device="cpu")))
    written = "reference" if attention == "reference" or shape.dropout else "sdpa"  # see sdpa_attention
    blocks = [
        count
        * total(block_terms(shape, make, recompute=recompute, attention=written, kind=kind, fused=fused))
        for kind, count in shape.blocks(again=blocks_again(recompute)).items()
    ]
    return total(embedding_terms(shape, make)) + sum(blocks) + total(head_terms(make, loss=loss_of(fused, 1)))


def measured(shape, batch, seq, recompute, attention, recipe, ops=TORCH_OPS, fp8=""):
    run = RUNS[recipe]
    model = Transformer(shape, attention=attention, recompute=recompute, ops=ops, dtype=run["dtype"])
    if fp8:
        use_fp8(model, fp8)
    x, y = tokens(shape, batch, seq)
    with (
        torch.autocast("cpu", dtype=run["autocast"], enabled=run["autocast"] is not None),
        SavedActivations(model, (x, y)) as saved,
    ):
        model.loss(x, y)
    return saved


@given(
    shapes(), st.integers(1, 3), st.integers(2, 17), st.sampled_from(MODES),
    st.sampled_from(["reference", "sdpa"]), st.sampled_from(list(RUNS)),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_predicted_activations_are_the_measured_ones(shape, batch, seq, recompute, attention, recipe):
    saved = measured(shape, batch, seq, recompute, attention, recipe)
    assert predicted(shape, batch, seq, recompute, attention, recipe) == saved.bytes


@given(
    shapes(), st.integers(1, 3), st.integers(2, 17), st.sampled_from(MODES),
    st.sampled_from(["reference", "sdpa"]), st.sampled_from(list(RUNS)),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_so_they_are_with_fused_kernels(shape, batch, seq, recompute, attention, recipe):
    """Tensors are real, and what launches would write is not computed: sizes are all that is looked at."""
    with mock.patch.object(jit, "interpret", new=nothing):
        saved = measured(shape, batch, seq, recompute, attention, recipe, Ops.fused())
    assert predicted(shape, batch, seq, recompute, attention, recipe, EVERYTHING) == saved.bytes


@given(
    shapes(), st.integers(1, 3), st.integers(2, 17), st.sampled_from(MODES),
    st.sampled_from(["reference", "sdpa"]), st.sampled_from(list(RUNS)), st.sampled_from(list(FP8_RECIPES)),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_so_they_are_with_products_in_fp8(shape, batch, seq, recompute, attention, recipe, fp8):
    saved = measured(shape, batch, seq, recompute, attention, recipe, fp8=fp8)
    assert predicted(shape, batch, seq, recompute, attention, recipe, fp8=fp8) == saved.bytes


@pytest.mark.parametrize(
    ("model", "modules", "bytes_per_token"),
    [
        ("llama3-8b", "layernorm", 2 * 4096 * 2),  # inputs of q/k/v, and of gate and up
        ("mixtral-8x7b", "moe_act", 2 * 14_336 * 2),  # SwiGLU of two experts
        ("deepseek-v3", "mla_up_proj", 128 * (192 + 192 + 128) * 2),  # queries, keys, values
        ("deepseek-v3", "moe_act+mla_up_proj", (8 * 2048 + 128 * (192 + 192 + 128)) * 2),
    ],
)
def test_what_megatron_discards_is_not_kept(model, modules, bytes_per_token):
    """With kernels fused as there; by hand from the sizes of the models."""
    shape = load(model)
    kind = max(shape.blocks())  # with experts where the model has them
    job = Job(shape, Layout(), seq=4096, recipe="bf16-mixed", fused=EVERYTHING, device="cuda")
    kept = {
        again: total(
            block_terms(
                shape, maker(symbols(job)), recompute=again, attention="sdpa", kind=kind, fused=EVERYTHING
            )
        )
        for again in ("none", modules)
    }
    assert kept["none"] - kept[modules] == bytes_per_token * 4096


class LogitsKept(FusedOps):
    """All of the fused kernels, but with logits."""

    fuses_head = False


@pytest.mark.parametrize("recipe", RUNS)
def test_a_fused_loss_keeps_the_logits_it_is_given(recipe):
    shape = ModelShape(layers=1, hidden=8, heads=2, vocab=11, max_seq=16)
    ops = LogitsKept()
    run = RUNS[recipe]
    model = Transformer(shape, ops=ops, dtype=run["dtype"])
    model.token_losses = lambda logits, targets: cross_entropy(logits, targets)[0]
    x, y = tokens(shape, 2, 7)
    autocast = torch.autocast("cpu", dtype=run["autocast"], enabled=run["autocast"] is not None)
    with autocast, SavedActivations(model, (x, y)) as saved:
        model.loss(x, y)
    fused = load_fused("norms,swiglu,attention,cross-entropy")
    assert predicted(shape, 2, 7, "none", "sdpa", recipe, fused) == saved.bytes


def test_every_symbol_is_explained():
    shape = load("qwen3-next-80b-a3b")  # which has all of them
    assert set(symbols(Job(shape, seq=4, recipe="fp32", device="cpu"))) == set(SYMBOLS)


@pytest.mark.parametrize("recipe", RUNS)
def test_one_wrong_byte_would_be_seen(recipe):
    """The comparison is exact: a batch of one more token changes it."""
    shape = ModelShape(layers=1, hidden=8, heads=2, vocab=8, max_seq=16)
    saved = measured(shape, 1, 8, "none", "sdpa", recipe)
    assert predicted(shape, 1, 9, "none", "sdpa", recipe) != saved.bytes
