"""Shapes: parameter counts against what is published, validation, and the ways to write one down."""

import dataclasses
import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.errors import ShapeError
from playbook.layout import Layout
from playbook.planning.flops import forward_flops
from playbook.planning.memory import predict
from playbook.shapes import MLA, PRESETS, ModelShape, MoE, load
from playbook_book.parameter_counts import PUBLISHED, classical_parameters, llama_parameters

OURS = {"tiny", "tiny-gpt2", "tiny-moe", "tiny-deepseek", "llama3-tiny"}  # nobody publishes a count of these
SIZES = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100}


def test_every_other_preset_has_a_published_count():
    assert set(PRESETS) - OURS == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_match_the_published_count(name):
    published = PUBLISHED[name]
    counted = PRESETS[name].num_parameters + published.excluded
    assert abs(counted - published.parameters) <= published.tolerance
    # A rounded figure has zeros to show for it; an exact one must be met exactly.
    assert (published.tolerance > 0) == (published.parameters % 1_000_000 == 0)
    assert published.source


@pytest.mark.parametrize("name", [name for name, published in PUBLISHED.items() if published.active])
def test_active_parameters_match_the_published_count(name):
    published, shape = PUBLISHED[name], PRESETS[name]
    assert abs(shape.active_parameters - published.active) <= published.active_tolerance
    assert published.active_tolerance < 0.04 * published.active


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("smollm-135m", 134_515_008),
        ("qwen3-8b", 8_190_735_360),
        ("deepseek-v3", 671_026_419_200 - 58 * 256),
    ],
)
def test_well_known_counts(name, count):
    assert load(name).num_parameters == count


def test_tolerances_are_those_of_the_rounding():
    for name, published in PUBLISHED.items():
        # Half a unit of the last printed digit; GPT-3's 350M and LLaMA's 65.2B are looser, and say so.
        digits = str(published.parameters).rstrip("0")
        half = 10 ** (len(str(published.parameters)) - len(digits)) // 2
        assert published.tolerance <= half or published.note, name
        assert published.tolerance < 0.04 * published.parameters, name


def test_own_presets_are_as_small_as_promised():
    tiny, gpt = PRESETS["tiny"], PRESETS["tiny-gpt2"]
    for shape in (tiny, gpt):
        assert (shape.layers, shape.hidden, shape.heads, shape.vocab) == (4, 256, 8, 256)
    assert (tiny.kv_heads, tiny.ffn, tiny.gated, tiny.tied, tiny.norm) == (4, 688, True, False, "rmsnorm")
    assert (gpt.kv_heads, gpt.ffn, gpt.dropout, gpt.tied, gpt.positions) == (8, 1024, 0.1, True, "learned")


# Shapes of every kind, for the properties below.
@st.composite
def shapes(draw):
    heads, group, half = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    layers = draw(st.integers(1, 5))
    experts = draw(st.integers(1, 6))
    moe = MoE(
        experts=experts,
        top_k=draw(st.integers(1, experts)),
        ffn=draw(st.integers(1, 64)),
        shared_experts=draw(st.integers(0, 2)),
        dense_layers=draw(st.integers(0, layers)),
        every=draw(st.integers(1, 3)),
    )
    return ModelShape(
        layers=layers,
        hidden=draw(st.integers(1, 64)),
        heads=heads * group,
        kv_heads=heads,
        head_dim=2 * half,
        vocab=draw(st.integers(1, 300)),
        ffn=draw(st.integers(1, 99)),
        gated=draw(st.booleans()),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        positions=draw(st.sampled_from(["learned", "rotary", "none"])),
        bias=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        tied=draw(st.booleans()),
        moe=draw(st.sampled_from([None, moe])),
        windows=draw(st.sampled_from([(), (8, 0), (4, 4, 0)])),
    )


@given(shapes())
def test_breakdown_sums_to_the_total_and_to_its_layers(shape):
    parts = shape.parameters()
    assert sum(parts.values()) == shape.num_parameters
    assert all(count > 0 for count in parts.values())
    for part in ("attention", "mlp", "router", "norms"):
        layers = sum(shape.block_parameters(shape.kind(i)).get(part, 0) for i in range(shape.layers))
        assert parts.get(part, 0) == layers
    assert ("head" in parts) == (not shape.tied)
    assert ("positions" in parts) == (shape.positions == "learned")
    assert shape.active_parameters <= shape.num_parameters


@given(shapes(), st.data())
def test_blocks_of_each_kind_are_counted_as_if_one_by_one(shape, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, shape.layers), min_size=2, max_size=6)))
    runs = [range(a, b) for a, b in pairwise(cuts)][:: data.draw(st.integers(1, 2))]
    kinds = [shape.kind(layer) for run in runs for layer in run]
    assert shape.blocks(runs) == Counter(kinds)
    assert list(shape.blocks(runs)) == sorted({*kinds})
    assert sum(shape.blocks().values()) == shape.layers


def test_counting_takes_no_longer_for_more_layers():
    shape = load("deepseek-v3").replace(layers=5000)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelShape, "is_moe", lambda self, layer: calls.append(layer) or layer >= 3)
        for pp in (1, 2):
            predict(shape, Layout(pp=pp), seq=64)
        forward_flops(shape, 1, 64)
        assert shape.num_parameters > 5e13
    assert len(calls) < 50


@given(shapes())
def test_a_token_meets_the_parameters_of_the_model_that_has_only_its_experts(shape):
    if shape.moe is None:
        assert shape.active_parameters == shape.num_parameters
        return
    moe = shape.moe
    few = shape.replace(moe=dataclasses.replace(moe, experts=moe.top_k))
    routers = (
        sum(n for kind, n in shape.blocks().items() if kind.experts)
        * shape.hidden
        * (moe.experts - moe.top_k)
    )
    assert shape.active_parameters == few.num_parameters + routers


@given(st.integers(1, 12), st.integers(1, 16), st.integers(1, 32), st.integers(1, 1000))
def test_classical_formula_is_the_breakdown_of_a_gpt_without_positions(layers, heads, width, vocab):
    shape = ModelShape(layers=layers, hidden=heads * width, heads=heads, vocab=vocab, positions="none")
    assert classical_parameters(shape) == shape.num_parameters


def test_classical_formula_misses_only_the_positions_of_gpt2():
    shape = PRESETS["gpt2"]
    assert shape.num_parameters - classical_parameters(shape) == shape.parameters()["positions"] == 1024 * 768


@pytest.mark.parametrize("name", ["tiny", "llama2-70b", "llama3-8b", "llama3.2-1b", "smollm-360m"])
def test_llama_formula_is_the_breakdown_of_a_llama(name):
    assert llama_parameters(PRESETS[name]) == PRESETS[name].num_parameters


def test_latent_attention_counts_each_matrix():
    shape = load("deepseek-v3")
    h, heads = 7168, 128
    query = h * 1536 + 1536 * heads * (128 + 64)
    latent = h * (512 + 64) + 512 * heads * (128 + 128)
    assert shape.block_parameters(shape.kind(0))["attention"] == query + latent + heads * 128 * h
    assert shape.block_parameters(shape.kind(0))["norms"] == 2 * h + 1536 + 512
    assert "router" not in shape.block_parameters(shape.kind(2))
    assert shape.block_parameters(shape.kind(3))["router"] == 256 * h
    assert shape.block_parameters(shape.kind(3))["mlp"] == 257 * 3 * h * 2048
    uncompressed = shape.replace(mla=MLA(None, 512, 128, 64, 128))
    assert (
        uncompressed.block_parameters(uncompressed.kind(0))["attention"]
        == h * heads * 192 + latent + heads * 128 * h
    )


def test_missing_sizes_are_filled_in():
    shape = ModelShape(**SIZES)
    assert (shape.kv_heads, shape.head_dim, shape.ffn, shape.qkv_bias) == (4, 16, 256, True)
    assert ModelShape(**SIZES, bias=False).qkv_bias is False


def test_replace_fills_in_again_what_was_filled_in():
    assert ModelShape(**SIZES).replace(hidden=128) == ModelShape(**{**SIZES, "hidden": 128})
    assert load("llama3-8b").replace(heads=64, head_dim=64).kv_heads == 8
    assert load("qwen3-0.6b").replace(layers=2).head_dim == 128
    odd = ModelShape(layers=1, hidden=25, heads=4, head_dim=6, vocab=1)  # 25 // 4, but given all the same
    assert odd.replace(layers=2).head_dim == 6
    with pytest.raises(ShapeError, match="unknown field of a model shape 'hiden'; did you mean hidden"):
        ModelShape(**SIZES).replace(hiden=3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": -1}, "layers must be at least 1, got -1"),
        ({"layers": 10**9}, "layers must be at most 10000, got 1000000000"),
        ({"layers": 1e9}, "layers must be an integer, got 1000000000.0"),
        (
            {"hidden": 10**30},
            "hidden must be at most 9223372036854775807, got 1000000000000000000000000000000",
        ),
        ({"hidden": 10**400}, "hidden must be at most 9223372036854775807, got 1000"),
        ({"dropout": 10**400}, "dropout must be finite, got 1000"),
        ({"name": "a\nb"}, "name must be one line of printable text, got 'a\\nb'"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"vocab": 1.5}, "vocab must be an integer, got 1.5"),
        ({"heads": True}, "heads must be an integer, got True"),
        ({"heads": "4"}, "heads must be an integer, got '4'"),
        ({"heads": 5}, "hidden must be a multiple of heads = 5 where no head_dim is given, got 64"),
        ({"kv_heads": 3}, "kv_heads must divide heads = 4, got 3"),
        ({"head_dim": 5, "positions": "rotary"}, "head_dim must be even for rotary positions, got 5"),
        ({"gated": 1}, "gated must be true or false, got 1"),
        ({"activation": "swish"}, "activation must be one of gelu, relu, silu, got 'swish'"),
        ({"norm": 3}, "norm must be text, got 3"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0.0, got -0.1"),
        ({"dropout": float("nan")}, "dropout must be finite, got nan"),
        ({"moe": {"experts": 2, "top_k": 3, "ffn": 8}}, "moe.top_k must be at most moe.experts = 2, got 3"),
        ({"moe": {"experts": 2, "topk": 1}}, "unknown field of moe 'topk'; did you mean top_k?"),
        ({"moe": {"experts": 2}}, "moe needs top_k, ffn"),
        ({"moe": 8}, "moe must be a table of sizes, got 8"),
        (
            {"moe": {"experts": 8, "top_k": 2, "ffn": 8, "groups": 3}},
            "moe.groups must divide moe.experts = 8 (1, 2, 4, 8), got 3",
        ),
        (
            {"moe": {"experts": 8, "top_k": 2, "ffn": 8, "groups": 4, "top_groups": 5}},
            "moe.top_groups must be at most moe.groups = 4, got 5",
        ),
        (
            {"moe": {"experts": 8, "top_k": 3, "ffn": 8, "groups": 4}},
            "moe.top_k must be at most the experts of moe.top_groups groups = 2, got 3",
        ),
        (
            {"moe": {"experts": 8, "top_k": 3, "ffn": 8, "scores": "softmin"}},
            "moe.scores must be one of softmax, sigmoid, got 'softmin'",
        ),
        (
            {"moe": {"experts": 8, "top_k": 3, "ffn": 8, "capacity": 0}},
            "moe.capacity must be a number above 0, got 0",
        ),
        (
            {"mla": {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "value_dim": 13}},
            "mla.value_dim must be at most nope_dim + rope_dim = 12, got 13",
        ),
        (
            {"moe": {"experts": 2, "top_k": 1, "ffn": 8, "dense_layers": 3}},
            "moe.dense_layers must be at most",
        ),
        (
            {"mla": {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 3, "value_dim": 8}},
            "rope_dim must be",
        ),
        ({"mla": MLA(8, 8, 8, 4, 8)}, "qkv_bias must be left out with latent attention"),
    ],
)
def test_impossible_shapes_are_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ShapeError) as caught:
        load({**SIZES, **changes})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_takes_every_way_to_write_a_shape(tmp_path):
    shape = load({**SIZES, "gated": True, "dropout": 0})
    assert load(shape) is shape
    assert load(json.dumps({**SIZES, "gated": True})) == shape
    assert load(" Llama3-8B ") is PRESETS["llama3-8b"]
    path = tmp_path / "small.toml"
    path.write_text(
        "layers = 2\nhidden = 64\nheads = 4\nvocab = 100\n[moe]\nexperts = 4\ntop_k = 2\nffn = 32\n"
    )
    expected = ModelShape(**SIZES, moe=MoE(4, 2, 32), name="small")
    assert load(path) == load(str(path)) == expected
    path.write_text(
        "[model]\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 100\nmoe.experts = 4\n"
        "moe.top_k = 2\nmoe.ffn = 32\n"
    )
    assert load(path) == expected


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("lama3-8b", "unknown model 'lama3-8b'; did you mean llama3-8b"),
        ("zzz", "unknown model 'zzz'; known: deepseek-v3"),
        ("", "unknown model ''"),
        ("nowhere.toml", "cannot read the model file 'nowhere.toml': No such file"),
        ('{"layers": 2,}', "the model's inline JSON is not valid at line 1 column"),
        ('{"layers": ' + "1" * 5000 + "}", "the model's inline JSON holds a number of thousands of digits"),
        ('{"moe": ' * 50_000, "the model's inline JSON is nested too deeply"),
        ("[]", "unknown model '[]'"),
        ('{"layers": 2}', "a model shape needs hidden, heads, vocab"),
        ('{"layers": 2, "widht": 3}', "unknown field of a model shape 'widht'"),
        (3, "a model is a preset name, a TOML or JSON file or inline JSON, got 3"),
        ([1], "a model is a preset name, a TOML or JSON file or inline JSON, got [1]"),
    ],
)
def test_load_says_what_is_wrong(spec, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShapeError) as caught:
        load(spec)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"layers = 2\nhidden = = 3\n", "is not valid TOML: Invalid value (at line 2, column 10)"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"layers = " + b"1" * 5000, "holds a number of thousands of digits"),
        (b"a = " + b"[" * 50_000, "is nested too deeply"),
        (b"#" * (2**20 + 1), "is larger than 1 MiB"),
        (b"layers = 2\n", "a model shape needs hidden, heads, vocab"),
        (b"model = 3\n", "a model shape must be a table of sizes, got 3"),
        (b"layers = 2\nhidden = -64\nheads = 4\nvocab = 1\n", "hidden must be at least 1, got -64"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(content, sentence, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ShapeError) as caught:
        load(str(path))
    assert sentence in str(caught.value)
    assert "bad.toml" in str(caught.value)
    with pytest.raises(ShapeError, match="cannot read the model file"):
        load(tmp_path)
