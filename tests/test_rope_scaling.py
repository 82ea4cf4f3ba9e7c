"""Stretched rotary angles: transformers' own frequencies, texts that say them, and what is refused."""

from __future__ import annotations

import pytest
import torch
from helpers import LLAMA

from playbook.errors import ShapeError
from playbook.huggingface import shape_of
from playbook.model.attention import rotary_table
from playbook.model.transformer import Transformer
from playbook.rope_scaling import OPTIONS, frequencies, of_config, parse, to_config

TEXTS = (
    "linear:factor=3",
    "yarn:factor=4,original=32768",
    "yarn:factor=40,original=4096,fast=24,slow=2,attention=1.25",
    "yarn:factor=2,original=12",  # all pairs between no turn and many
    "llama3:factor=8,original=8192",
    "llama3:factor=32,original=64,low=0.5,high=8",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dims", [16, 64, 128])
def test_frequencies_are_those_of_transformers(text, dims):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_theta": 5e5, **to_config(text)}
    config = transformers.LlamaConfig(hidden_size=4 * dims, num_attention_heads=4, rope_parameters=parameters)
    theirs, by = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
    ours, sharper = frequencies(text, dims, 5e5)
    torch.testing.assert_close(torch.tensor(ours), theirs, rtol=1e-6, atol=0)
    assert sharper == pytest.approx(by)


@pytest.mark.parametrize("text", TEXTS)
def test_a_config_says_the_same(text):
    assert of_config({"rope_parameters": to_config(text)}) == text
    kind, options = parse(text)
    old = {"type" if key == "rope_type" else key: value for key, value in to_config(text).items()}
    assert of_config({"rope_scaling": old}) == text
    assert set(options) == set(OPTIONS[kind])


def test_the_original_length_is_the_models_where_a_config_says_none():
    table = {"rope_type": "yarn", "factor": 4.0}
    assert (
        of_config({"rope_scaling": table, "max_position_embeddings": 2048}) == "yarn:factor=4,original=2048"
    )


def test_angles_are_stretched_and_attention_is_sharper():
    (cos, sin), (plain, _) = rotary_table(64, 8, scaling="linear:factor=2"), rotary_table(64, 8)
    torch.testing.assert_close(cos[::2], plain[:32])
    assert (cos**2 + sin**2).allclose(torch.ones(64, 8))
    cos, sin = rotary_table(64, 8, scaling="yarn:factor=4,original=16")
    assert (cos**2 + sin**2).allclose(torch.full((64, 8), parse_attention(4.0) ** 2))
    scaled = Transformer(LLAMA.replace(rope_scaling="linear:factor=2"))
    assert torch.equal(scaled.cos, rotary_table(LLAMA.max_seq, LLAMA.rope_dim, scaling="linear:factor=2")[0])


def parse_attention(factor: float) -> float:
    """Peng et al. 2023, equation 22."""
    return 0.1 * float(torch.log(torch.tensor(factor))) + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dynamic:factor=2", "unknown rope_scaling 'dynamic'; known: linear, llama3, yarn"),
        ("linear:by=2", "unknown option of rope_scaling=linear 'by'; known: factor"),
        ("linear:factor=half", "factor of rope_scaling=linear must be a number, got 'half'"),
        ("linear:factor=0.5", "factor of rope_scaling=linear must be a number from 1 on"),
        ("yarn:factor=4", "original of rope_scaling=yarn must be a number"),
    ],
)
def test_bad_texts_are_one_sentence(text, words):
    with pytest.raises(ShapeError, match=words):
        LLAMA.replace(rope_scaling=text)


def test_what_a_plan_does_not_need_is_left_out():
    """DeepSeek's YaRN scales the softmax as well: the book has none of that, and plans without."""
    config = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99,
        "intermediate_size": 128, "max_position_embeddings": 256,
    }  # fmt: skip
    table = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert shape_of({**config, "rope_scaling": table}).rope_scaling == "yarn:factor=4,original=64"
    for strange in ({"mscale": 1.0}, {"truncate": False}, {"factor": "4"}, {"rope_type": "longrope"}):
        assert not shape_of({**config, "rope_scaling": {**table, **strange}}).rope_scaling
        with pytest.raises(ShapeError, match=f"{next(iter(strange))} must be"):
            of_config({"rope_scaling": {**table, **strange}})
