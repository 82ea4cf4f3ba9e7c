"""A config.json read as a shape: published counts, the book's presets, models that transformers makes, refusals."""

import contextlib
import dataclasses
import json

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.calculator import compute
from published_configs import COUNTS, PUBLISHED, config, gpt2

from playbook.block import Kind
from playbook.cli import main
from playbook.config_families import EVERY
from playbook.config_hybrids import HYBRIDS, STATES
from playbook.errors import ShapeError
from playbook.huggingface import ARCHITECTURES, STRANGE
from playbook.layout import Layout
from playbook.model.ops import TORCH_OPS
from playbook.model.transformer import Transformer
from playbook.planning.memory import predict
from playbook.shapes import PRESETS, ModelShape, MoE, load
from playbook_book.instruments.measured import SavedActivations

#: What presets say and a config.json does not: losses and rates of a report, and the length that one trained with.
BEYOND = {
    "qwen3-30b-a3b": {"balance_loss": 0.001, "balance_over": "global_batch"},
    "qwen3-235b-a22b": {"balance_loss": 0.001, "balance_over": "global_batch"},
    "deepseek-v3": {"balance_loss": 0.0001, "balance_over": "sample", "bias_rate": 0.001},
}
MAX_SEQ = {"deepseek-v3": 131072}
#: Presets of architectures that are not read, or that have no config.json of their authors.
NO_CONFIG = (
    "tiny", "llama3-tiny", "gpt3-", "llama1-", "llama4-", "smollm3-", "kimi-", "glm-", "gpt-oss-", "gemma", "mistral-",
    "qwen3.5-", "qwen3-next-", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b",
)  # fmt: skip
#: What transformers makes beyond the parameters that are counted, by layer: sinks of heads and biases of routers.
UNCOUNTED = {"gpt_oss": lambda config: config["num_attention_heads"] + config["num_local_experts"]}
#: Families whose models can be trained, and those that are planned alone.
#: Of these transformers knows all but Kimi K2's name of DeepSeek-V3.
TRAINED = [kind for kind, known in ARCHITECTURES.items() if not known.differs and kind != "kimi_k2"]
PLANNED = [kind for kind, known in ARCHITECTURES.items() if known.differs]


def preset_of(name):
    """The preset of a model on Hugging Face."""
    short = name.partition("/")[2].lower().removeprefix("meta-").removesuffix("-v0.1").removesuffix("-hf")
    return short.replace("llama-", "llama")


def test_every_model_published_is_a_preset_or_has_a_published_count():
    presets = {preset_of(name) for name in PUBLISHED if name not in COUNTS}
    assert presets == {name for name in PRESETS if not name.startswith(NO_CONFIG)}
    assert {PUBLISHED[name]["model_type"] for name in PUBLISHED} == set(TRAINED)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in COUNTS])
def test_presets_are_what_their_config_says(name):
    preset = PRESETS[preset_of(name)]
    shape = load(json.dumps(PUBLISHED[name]))
    more = BEYOND.get(preset.name, {})
    moe = dataclasses.replace(shape.moe, **more) if shape.moe else None
    assert shape.replace(moe=moe, max_seq=MAX_SEQ.get(preset.name, shape.max_seq), name=preset.name) == preset
    for key, value in more.items():  # and no config says it
        assert getattr(shape.moe, key) != value or key == "balance_over"


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in COUNTS])
def test_names_on_the_hub_are_presets(name):
    preset = PRESETS[preset_of(name)]
    for written in (
        name,
        f"https://huggingface.co/{name}",
        f"{name}-Instruct",
        name.split("/")[1],
        f"hf.co/{name}/tree/main",
    ):
        assert load(written) is preset


def test_a_name_on_the_hub_without_a_preset_says_where_its_config_is():
    with pytest.raises(ShapeError) as caught:
        load("https://huggingface.co/google/gemma-7b/tree/main")
    assert str(caught.value) == (
        "no preset is 'https://huggingface.co/google/gemma-7b/tree/main': save https://huggingface.co/google/gemma-7b"
        "/raw/main/config.json, and give that file"
    )


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_many_as_published(name):
    assert load(PUBLISHED[name]).num_parameters == COUNTS[name]


# ---- models that transformers makes of the same config

SMALL = (2, 64, 4, 2, 96, 100, 128, 1e-06, 5e5, False)
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
QWEN = {"num_experts": 8, "decoder_sparse_step": 2, **EXPERTS}
LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
    **EXPERTS, "num_key_value_heads": 4,
}  # fmt: skip
MADE = {
    "llama": config("llama", *SMALL),
    "llama, tied": config("llama", *SMALL[:-1], True, head_dim=24),
    "mistral": config("mistral", *SMALL, head_dim=32),
    "mixtral": config("mixtral", *SMALL, num_local_experts=4, num_experts_per_tok=2),
    "qwen2": config("qwen2", *SMALL[:-1], True),
    "qwen3": config("qwen3", *SMALL, head_dim=24),
    "qwen2_moe": config("qwen2_moe", *SMALL, **QWEN, shared_expert_intermediate_size=48),
    "qwen3_moe": config("qwen3_moe", *SMALL, **QWEN | {"decoder_sparse_step": 1}, head_dim=16, mlp_only_layers=[0]),
    "deepseek_v2": config("deepseek_v2", *SMALL) | LATENT | {"q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": config("deepseek_v3", *SMALL) | LATENT | {"q_lora_rank": 20},
    "gpt2": {**gpt2(2, 64, 4), "vocab_size": 100, "n_positions": 128, "n_inner": 96},
    "gpt_neox": {
        key: value for key, value in config("gpt_neox", *SMALL).items()
        if key not in ("num_key_value_heads", "rope_theta")
    } | {"use_parallel_residual": False, "rotary_pct": 1.0, "rotary_emb_base": 5e5},
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_transformers_makes_a_model_of_as_many_parameters(name):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    given_config = MADE[name]
    more = {key: value for key, value in given_config.items() if key != "model_type"}
    theirs = transformers.AutoConfig.for_model(given_config["model_type"], **more)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    shape = load(given_config)
    gates = 64 * shape.blocks()[Kind(experts=True)] if name == "qwen2_moe" else 0
    assert sum(p.numel() for p in model.parameters()) == shape.num_parameters + gates
    written = {**theirs.to_dict(), "architectures": [type(model).__name__]}
    assert load(json.dumps(written)) == shape


def test_every_architecture_is_made():
    assert {given_config["model_type"] for given_config in MADE.values()} == set(TRAINED)


# ---- what else is read


def test_fields_are_read():
    shape = load(MADE["deepseek_v3"])
    assert shape.moe == MoE(8, 2, 24, 2, 1, scores="sigmoid", scale=2.5, groups=4, top_groups=2)
    assert (shape.mla.q_rank, shape.mla.kv_rank, shape.kv_heads) == (20, 16, 4)
    assert (shape.rope_theta, shape.norm_eps, shape.max_seq, shape.tied) == (5e5, 1e-6, 128, False)
    v2 = load(MADE["deepseek_v2"])
    assert (v2.mla.q_rank, v2.moe.groups, v2.moe.top_groups, v2.moe.scores) == (None, 1, 1, "softmax")
    neox = load(MADE["gpt_neox"])
    assert (neox.norm, neox.bias, neox.gated, neox.positions, neox.rope_theta) == (
        "layernorm", True, False, "rotary", 5e5,
    )  # fmt: skip
    shape = load(MADE["qwen3_moe"])
    assert (shape.qk_norm, shape.moe.dense_layers, shape.moe.normalized) == (True, 1, True)
    assert load(MADE["qwen2_moe"]).moe.shared_experts == 2
    assert load({**MADE["deepseek_v3"], "n_shared_experts": None}).moe.shared_experts == 0


def test_a_balancing_loss_is_taken_where_transformers_adds_it():
    loss = {**MADE["mixtral"], "router_aux_loss_coef": 0.02}
    assert load(loss).moe.balance_loss == 0
    assert load({**loss, "output_router_logits": True}).moe.balance_loss == 0.02


def test_null_is_what_is_left_out():
    optional = (
        "num_key_value_heads",
        "head_dim",
        "rope_theta",
        "hidden_act",
        "tie_word_embeddings",
        "rope_parameters",
    )
    absent = {key: value for key, value in MADE["llama"].items() if key not in optional}
    assert load({**absent, **dict.fromkeys(optional)}) == load(absent)
    assert load(absent).kv_heads == 4


def test_a_file_is_named_after_itself_or_its_folder(tmp_path):
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    for file, name in ((folder / "config.json", "My-Llama"), (folder / "small.json", "small")):
        file.write_text(json.dumps(MADE["llama"], indent=2))
        shape = load(MADE["llama"])
        assert load(file) == load(str(file)) == dataclasses.replace(shape, name=name)
    file.write_text(json.dumps({"model": {**shape.sizes(), "name": "own"}}))
    assert load(file) == dataclasses.replace(shape, name="own")


def test_a_bad_file_is_named(tmp_path):
    file = tmp_path / "config.json"
    for text, sentence in (
        ('{"model_type": "llama",}', "is not valid at line 1 column"),
        ("[1]", "a model shape must be a table of sizes, got [1]"),
        ('{"model_type": "llama"}', "num_hidden_layers is missing"),
        ("1" * 5000, "holds a number of thousands of digits"),
        ("[" * 50_000, "is nested too deeply"),
    ):
        file.write_text(text)
        with pytest.raises(ShapeError) as caught:
            load(file)
        assert sentence in str(caught.value)
        assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["LLAMA3-8B", "Llama3-8b", " llama3-8B\n"])
def test_names_are_found_in_any_case(name):
    assert load(name) is PRESETS["llama3-8b"]


def test_the_command_line_and_the_calculator_take_a_config(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(PUBLISHED["meta-llama/Meta-Llama-3-8B"]))
    answers = []
    for model in ("llama3-8b", str(file), file.read_text()):
        assert main(["memory", "--model", model, "--layout", "dp=2", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["stages"])
    assert answers[0] == answers[1] == answers[2]
    asked = [{"model": model, "seq": 4096} for model in ("llama3-8b", file.read_text())]
    named, text = compute({"configs": asked})["results"]
    assert (text["peak"], text["parameters"]) == (named["peak"], named["parameters"])
    assert main(["memory", "--model", '{"model_type": "llama"}']) == 2
    assert "num_hidden_layers is missing" in capsys.readouterr().err


@given(st.sampled_from(sorted(PRESETS)))
@settings(deadline=None)
def test_a_shapes_own_json_is_read_as_before(name):
    shape = PRESETS[name]
    assert load(json.dumps(shape.sizes())) == dataclasses.replace(shape, name="")


# ---- families that are planned alone


#: What else tells families apart that have a state in place of attention: which blocks attend, and sizes.
HYBRID = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_n_groups": 2},
    "granitemoehybrid": {"mamba_n_heads": 8, "shared_intermediate_size": 192, "layer_types": ["mamba", "attention"] * 2},
    "kimi_linear": {"num_key_value_heads": 4},
    "lfm2": {"full_attn_idxs": [0, 2]},
    "olmo_hybrid": {"num_key_value_heads": 4},
}  # fmt: skip
#: Gates of shared experts, which have one parameter for each feature, in families that have them.
GATED = ("qwen3_next", "qwen3_5_moe_text")


def theirs(kind: str) -> tuple[dict, int]:
    """A small config of a family, as transformers writes it, and the parameters of the model that it makes of it."""
    sizes = {
        "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    } | HYBRID.get(kind, {})  # fmt: skip
    made = transformers.AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    written = {**made.to_dict(), "architectures": [type(model).__name__]}
    return written, sum(p.numel() for p in model.parameters()) - 4 * 64 * (kind in GATED)


@pytest.mark.parametrize("kind", PLANNED)
def test_a_family_that_is_planned_has_the_parameters_of_transformers(kind):
    config, parameters = theirs(kind)
    shape = load(json.dumps(config))
    uncounted = UNCOUNTED[kind](config) * 4 if kind in UNCOUNTED else 0
    assert shape.num_parameters == parameters - uncounted
    kinds = config.get("layer_types") or []
    slides = [each == "sliding_attention" for each in kinds]
    window = bool(config.get("sliding_window")) and any(slides)
    assert [shape.kind(i).window > 0 for i in range(4)] == (slides if window else [False] * 4)
    states = [each in STATES for each in kinds] or [False] * 4
    if kind == "bamba":
        states = [True, False, True, True]
    assert [shape.kind(i).recurrent for i in range(4)] == states
    with pytest.raises(ShapeError, match="can be planned, but not trained"):
        Transformer(shape)


def _norm(self, x):
    """A norm of transformers by the operator that CUDA fuses; PyTorch's own on CPUs keeps a copy more."""
    weight = 1 + self.weight if type(self).__name__.startswith("Gemma") else self.weight
    return TORCH_OPS.rms_norm(x, weight, 1e-6)


@pytest.mark.parametrize(
    "kind", ["gemma3_text", "granite", "olmo2", "olmoe", "qwen3", "smollm3", "starcoder2"]
)
def test_activations_are_what_autograd_saves_in_transformers_own_model(kind):
    """Of five families that the library cannot run, and of two that it can; attention by a kernel, all in fp32."""
    sizes = {
        "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 320, "vocab_size": 512, "pad_token_id": 0, "max_position_embeddings": 256,
        "use_cache": False,
    }  # fmt: skip
    made = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").train()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm.__get__(module)
    tokens = torch.randint(512, (2, 128))
    with SavedActivations(model, inputs=(tokens,)) as saved:
        model(input_ids=tokens, labels=tokens)
    shape = load(json.dumps({**made.to_dict(), "architectures": [type(model).__name__]}))
    planned = predict(shape, Layout(micro_batch=2), seq=128, recipe="fp32", device="cpu")
    assert planned.stages[0].activations == pytest.approx(saved.bytes, rel=0.01)


@pytest.mark.parametrize("kind", HYBRIDS)
def test_which_blocks_attend_is_what_transformers_makes_of_the_same_words(kind):
    """Also where no list says it, as in older files and in those of the hub."""
    more = {"mamba_n_heads": 128, "intermediate_size": 1024} if kind == "granitemoehybrid" else {}
    made = transformers.AutoConfig.for_model(kind, num_hidden_layers=8, **more)
    config = {key: v for key, v in made.to_dict().items() if key not in ("layer_types", "layers_block_type")}
    shape = load(json.dumps(config))
    kinds = made.layer_types
    assert [shape.kind(i).recurrent for i in range(8)] == [each in STATES for each in kinds]


def test_kimi_linear_says_it_in_a_table():
    """The names and places of its own config.json."""
    made = transformers.AutoConfig.for_model("kimi_linear").to_dict()
    for key in (
        "layer_types",
        "mlp_layer_types",
        "linear_num_heads",
        "linear_head_dim",
        "linear_conv_kernel_dim",
    ):
        made.pop(key)
    renamed = {
        "num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts",
        "norm_topk_prob": "moe_renormalize", "n_group": "num_expert_group", "num_local_experts": "num_experts",
        "max_position_embeddings": "model_max_length",
    }  # fmt: skip
    config = {renamed.get(key, key): value for key, value in made.items()}
    table = {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    }
    shape = load(json.dumps(config | {"linear_attn_config": table, "first_k_dense_replace": 1}))
    assert shape.replace(name="", max_seq=1) == PRESETS["kimi-linear-48b-a3b"].replace(name="", max_seq=1)


@pytest.mark.parametrize(
    ("kind", "preset"), [("qwen3_next", "qwen3-next-80b-a3b"), ("qwen3_5_moe_text", "qwen3.5-35b-a3b")]
)
def test_presets_are_what_transformers_makes_without_being_told(kind, preset):
    shape, preset = load(json.dumps(transformers.AutoConfig.for_model(kind).to_dict())), PRESETS[preset]
    left = {"name": "", "max_seq": 1, "rope_theta": 1.0, "ffn": 1}
    assert shape.replace(**left) == preset.replace(**left)


@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("wrong", ["x", -1, 1.5, [], {}, [0], None, True])
def test_a_wrong_word_for_a_state_is_one_sentence(kind, wrong):
    """Or no harm: what has a default may be null."""
    config, _ = theirs(kind)
    for key in [
        k for k in config if STRANGE.search(k) or k in ("layer_types", "attn_layer_indices", "head_dim")
    ]:
        with contextlib.suppress(ShapeError):
            load(json.dumps({**config, key: wrong}))


@pytest.mark.parametrize("kind", EVERY)
def test_windows_that_no_list_names_are_those_of_transformers(kind):
    """Older files have neither the kinds of their layers nor the pattern."""
    made = transformers.AutoConfig.for_model(kind, num_hidden_layers=12, sliding_window=64)
    config = {k: v for k, v in made.to_dict().items() if k not in ("layer_types", "sliding_window_pattern")}
    shape = load(json.dumps(config))
    assert [bool(shape.kind(i).window) for i in range(12)] == [
        each == "sliding_attention" for each in made.layer_types
    ]


def test_kimi_k2_is_deepseek_v3_of_other_sizes():
    config = {**PUBLISHED["deepseek-ai/DeepSeek-V3"], "model_type": "kimi_k2"}
    assert load(json.dumps(config)) == load(json.dumps(config | {"model_type": "deepseek_v3"}))


@pytest.mark.parametrize("kind", ["olmo", "granite_swa"])
def test_a_family_that_nobody_knows_is_read_as_a_llama_and_says_so(kind, tmp_path, capsys):
    config, parameters = theirs(kind)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"text_config": config, "model_type": "sees"}))
    assert main(["memory", "--model", str(file), "--seq", "128"]) == 0
    said = capsys.readouterr().out
    assert (
        f"planned as the book's model of these sizes: model_type '{kind}' is not known here, and read as a Llama"
        in said
    )
    assert load(file).num_parameters == pytest.approx(parameters, rel=0.01)
    assert main(["train", "--model", str(file), "--steps", "1"]) == 2
    assert "can be planned, but not trained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"layer_types": ["mamba", "full_attention"]},
            "layer_types must be a list of full_attention and sliding_attention",
        ),
        ({"layer_types": "LLLG"}, "layer_types must be a list of"),
        ({"layer_types": [[1]]}, "layer_types must be a list of"),
        ({"sliding_window": "big"}, "sliding_window must be an integer, got 'big'"),
        ({"sliding_window": -4}, "sliding_window must be at least 1, got -4"),
        ({"sliding_window": 64, "num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"sliding_window": 64, "num_hidden_layers": 10**12}, "num_hidden_layers must be at most"),
    ],
)
@pytest.mark.parametrize("kind", ["phi3", "nobody-knows"])
def test_layers_that_a_family_cannot_have_are_refused_in_one_sentence(kind, changes, sentence):
    sizes = {key: MADE["llama"][key] for key in ARCHITECTURES["llama"].needed.values()}
    with pytest.raises(ShapeError, match=sentence):
        load({"model_type": kind, **sizes, **changes})


# ---- what is refused


def without(name, key):
    return {other: value for other, value in MADE[name].items() if other != key}


@pytest.mark.parametrize("name", [name for name in MADE if "," not in name])
def test_a_key_that_is_needed_is_named_when_it_is_missing(name):
    for key in ARCHITECTURES[name].needed.values():
        with pytest.raises(ShapeError, match=f"^{key} is missing: the config.json of a {name} must have it$"):
            load(without(name, key))


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("llama", {"model_type": None}, "model_type is missing: a config.json must have it, one of llama, mistral,"),
        ("llama", {"model_type": "mamba"}, "got 'mamba': mamba may change its sizes"),
        ("llama", {"model_type": "new", "n_routed_experts": 8}, "got 'new': n_routed_experts may change its sizes"),
        ("llama", {"model_type": "new", "intermediate_size": None}, "or have the sizes of a Llama, got 'new'"),
        ("llama", {"model_type": ["llama"]}, "model_type must be one of llama, mistral"),
        ("llama", {"architectures": ["LlamaModel"]},
         "architectures must name LlamaForCausalLM where model_type is 'llama', got ['LlamaModel']"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, got 0"),
        ("llama", {"num_hidden_layers": "32"}, "num_hidden_layers must be an integer, got '32'"),
        ("llama", {"num_attention_heads": 3, "num_key_value_heads": 3},
         "hidden_size must be a multiple of num_attention_heads = 3 where no head_dim is given, got 64"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads = 4, got 3"),
        ("llama", {"head_dim": 5}, "head_dim must be even for rotary positions, got 5"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        ("llama", {"hidden_act": "xielu"}, 'hidden_act must be one of silu, swish, relu, gelu, gelu_new'),
        ("llama", {"hidden_act": 3}, "got 3"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps must be finite, got nan"),
        ("llama", {"attention_bias": True}, "attention_bias must be false for a model of the book, got true"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout must be 0 for a model of the book, got 0.1"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4}},
         "rope_theta must be rope_parameters.rope_theta = 10000.0, got 500000.0"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}},
         'rope_parameters must be without a partial_rotary_factor other than 1 for a model of the book, got {"partial'),
        ("llama", {"rope_parameters": 3}, "rope_parameters must be a table for a model of the book, got 3"),
        ("llama", {"rope_theta": "big"}, "rope_theta must be a number, got 'big'"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok must be at most num_local_experts = 4, got 5"),
        ("mixtral", {"output_router_logits": True, "router_aux_loss_coef": -1},
         "router_aux_loss_coef must be at least 0.0, got -1"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 50},
         "shared_expert_intermediate_size must be a multiple of moe_intermediate_size = 24 for a model of the book,"),
        ("qwen2_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size must be at least 1, got 0"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers must be the first blocks, as in [0, 1],"),
        ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers must be the first blocks"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be at least 1, got 0"),
        ("deepseek_v3", {"num_key_value_heads": 2},
         "num_key_value_heads must be num_attention_heads = 4 for a model of the book, got 2"),
        ("deepseek_v3", {"n_group": 3}, "n_group must divide n_routed_experts = 8 (1, 2, 4, 8), got 3"),
        ("deepseek_v3", {"topk_group": 5}, "topk_group must be at most n_group = 4, got 5"),
        ("deepseek_v3", {"scoring_func": "tanh"}, "scoring_func must be one of softmax, sigmoid, got 'tanh'"),
        ("deepseek_v3", {"v_head_dim": 21},
         "v_head_dim must be at most qk_nope_head_dim + qk_rope_head_dim = 20, got 21"),
        ("deepseek_v3", {"first_k_dense_replace": 3},
         "first_k_dense_replace must be at most num_hidden_layers = 2, got 3"),
        ("deepseek_v3", {"topk_method": "best"}, "topk_method must be one of greedy, group_limited_greedy, noaux_tc"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq must be 1 for a model of the book, got 2"),
        ("gpt2", {"attn_pdrop": 0.0}, "attn_pdrop must be resid_pdrop = 0.1, got 0.0"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention must be false for a model of the book, got true"),
        ("gpt2", {"n_embd": 63}, "n_embd must be a multiple of n_head = 4"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_one_sentence(name, changes, sentence):
    with pytest.raises(ShapeError) as caught:
        load(MADE[name] | changes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("use_parallel_residual", "attention and MLP are side by side"),
        ("rotary_pct", "a part of each head turns"),
    ],
)
def test_gpt_neox_is_planned_unless_it_says_otherwise(key, says):
    shape = load(without("gpt_neox", key))
    assert shape.differs.startswith(says)
    assert shape.num_parameters == load(MADE["gpt_neox"]).num_parameters
    with pytest.raises(ShapeError, match=f"can be planned, but not trained: {says}"):
        Transformer(shape)


def test_an_unknown_family_whose_mlp_may_have_no_gate_is_refused():
    config, _ = theirs("phi")
    with pytest.raises(ShapeError, match="hidden_act 'gelu_new' leaves open whether its MLP has a gate"):
        load(json.dumps(config))


JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(0, 2))
)


@given(st.sampled_from(sorted(MADE)), st.data())
@settings(deadline=None)
def test_any_value_is_read_or_refused(name, data):
    keys = sorted(
        {*ARCHITECTURES[MADE[name]["model_type"]].musts, *MADE[name], "rope_parameters", "mlp_only_layers"}
    )
    changes = data.draw(
        st.dictionaries(st.sampled_from(keys), JUNK | st.dictionaries(st.text(max_size=2), JUNK))
    )
    try:
        assert isinstance(load(MADE[name] | changes), ModelShape)
    except ShapeError as refused:
        message = str(refused)
    else:
        message = ""
    assert "\n" not in message
