"""The classical activation formula, against its published closed form and its published consequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.errors import ConfigError, ShapeError
from playbook.shapes import ModelShape, load
from playbook_book.classical_activations import (
    QUADRATIC,
    classical_activation_bytes,
    classical_layer_activations,
)

GPT3 = load("gpt3-175b")


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 16), st.integers(1, 4), st.integers(1, 64))
def test_tensors_add_up_to_the_closed_form(layers, heads, width, batch, seq):
    shape = ModelShape(layers=layers, hidden=heads * width, heads=heads, vocab=10, dropout=0.1)
    sbh, as2b = seq * batch * shape.hidden, heads * seq**2 * batch
    assert classical_activation_bytes(shape, batch, seq) == layers * (34 * sbh + 5 * as2b)
    assert classical_activation_bytes(shape, batch, seq, "selective") == layers * 34 * sbh
    assert classical_activation_bytes(shape, batch, seq, "full") == layers * 2 * sbh


def test_gpt3_saves_70_percent_by_selective_recomputation():
    everything = classical_activation_bytes(GPT3, 1, 2048)
    saved = everything - classical_activation_bytes(GPT3, 1, 2048, "selective")
    assert saved / everything == pytest.approx(0.70, abs=0.005)
    # Korthikanti et al. 2022, section 5: 5as/h = 80 for GPT-3, against the 34 of the rest.
    layer = classical_layer_activations(GPT3, 1, 2048)
    assert sum(layer[name] for name in QUADRATIC) / (2048 * 12288) == 80


def test_parts_of_a_layer_are_those_of_the_paper():
    layer = classical_layer_activations(GPT3, 1, 2048)
    sbh = 2048 * 12288
    of = {
        "attention": ("qkv", "queries", "values", "output", "attention"),
        "mlp": ("up", "gelu", "down", "mlp"),
        "norm": ("norm",),
    }
    sums = {
        part: sum(size for name, size in layer.items() if name.split()[0] in words and name not in QUADRATIC)
        for part, words in of.items()
    }
    assert sums == {"attention": 11 * sbh, "mlp": 19 * sbh, "norm": 4 * sbh}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"activation": "silu"}, "needs activation = gelu, got silu"),
        ({"gated": True}, "needs gated = false, got True"),
        ({"norm": "rmsnorm"}, "needs norm = layernorm, got rmsnorm"),
        ({"kv_heads": 2}, "needs kv_heads = heads = 8, got 2"),
        ({"head_dim": 64}, "needs head_dim = hidden / heads, got 64"),
        ({"ffn": 688}, "needs ffn = 4 * hidden = 1024, got 688"),
        ({"dropout": 0.0}, "needs dropout > 0, got 0.0"),
        ({"moe": {"experts": 2, "top_k": 1, "ffn": 8}}, "needs moe = none, got MoE"),
    ],
)
def test_a_shape_outside_the_assumptions_is_refused_unless_asked(changes, sentence):
    shape = load("tiny-gpt2").replace(**changes)
    with pytest.raises(ShapeError) as caught:
        classical_activation_bytes(shape, 1, 128)
    assert sentence in str(caught.value)
    assert classical_activation_bytes(shape, 1, 128, check=False) > 0


def test_latent_attention_is_refused():
    with pytest.raises(ShapeError, match="needs mla = none"):
        classical_activation_bytes(load("deepseek-v3"), 1, 128)


def test_sizes_are_checked():
    for bad, sentence in (
        ({"batch": 0}, "batch must be at least 1"),
        ({"seq": 1.5}, "seq must be an integer"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            classical_activation_bytes(GPT3, **{"batch": 1, "seq": 8, **bad})
    with pytest.raises(ConfigError, match="unknown recompute 'all'"):
        classical_activation_bytes(GPT3, 1, 8, "all")
