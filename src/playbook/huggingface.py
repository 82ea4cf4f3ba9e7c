"""A model's ``config.json``, as Hugging Face's transformers writes it, read as a :class:`ModelShape`.

What is read is what a parameter, a product or a routed token depends on. A sliding window, a scaling of rotary
frequencies, dtypes and token ids are left out: no size depends on them, and the book's model has none of them. A loss
that balances experts is taken where transformers adds it, which is where ``output_router_logits`` is true; the rate at
which DeepSeek-V3 moves its biases is in no config. DeepSeek-V2 ranks groups by their best expert, the book's router by
their best few.

Some families differ from the book's model in what costs no parameter: they are read to be planned, and the shape says in
what it ``differs``. So is a ``model_type`` that is not known here, if its config has the common names.

Two counts differ, by what :class:`ModelShape` has no place for: the gate of Qwen2-MoE's shared experts (hidden_size
parameters in each block with experts), and DeepSeek-V3's biases, which no gradient trains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from playbook._checks import check_int
from playbook.errors import ShapeError
from playbook.presets import GEMMA, GEMMA2, PARTLY, SINKS
from playbook.shapes import ModelShape

Config = Mapping[str, Any]
#: Fields of a shape, those of its experts and of latent attention with a dot: ``moe.top_k``, ``mla.kv_rank``.
Sizes = dict[str, Any]

#: Names of activations. The exact GELU and its tanh form are one name in a shape: they cost the same.
ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu": "relu"} | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu"
)
#: Keys of what no Llama has: experts, latent attention, layers without attention.
STRANGE = re.compile("expert|lora_rank|mamba|ssm|linear|conv|state_size|cross_attention|encoder")
#: Keys that a config must have, but may set to null: queries without a latent, no shared experts.
NULLABLE = ("q_lora_rank", "n_shared_experts")


@dataclass(frozen=True)
class Architecture:
    """What a ``model_type`` stands for, and where its config says the rest.

    ``sizes`` are fields as they are unless a config says otherwise; ``needed`` and ``optional`` name its keys. ``musts``
    are the only values with which a key leads to a model of the book. ``more`` makes fields out of several keys, and
    refuses what does not go together. ``differs`` is what the book's model does otherwise: such a shape is planned alone.
    """

    causal_lm: str
    sizes: Sizes
    needed: dict[str, str]
    optional: dict[str, str]
    musts: dict[str, Any]
    more: Callable[[Config], Sizes]
    differs: str = ""


def shape_of(config: Config) -> ModelShape:
    """The shape that a config describes. Raises :class:`ShapeError` in one sentence, with the config's own keys."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "hidden_size" not in config:  # of a model that sees or hears as well
        config = inner
    architecture = _architecture(config)
    if config.get("num_experts") is None:  # transformers 5 writes Qwen3-MoE's by its name for Mixtral's
        config = {**config, "num_experts": config.get("num_local_experts")}
    for key in architecture.needed.values():
        if config.get(key) is None and not (key in NULLABLE and key in config):
            raise ShapeError(f"{key} is missing: the config.json of a {config['model_type']} must have it")
    for key, valid in architecture.musts.items():
        if config.get(key) not in (None, valid):
            raise _must(key, json.dumps(valid), config)
    keys = architecture.needed | architecture.optional
    given = {name: config[key] for name, key in keys.items() if config.get(key) is not None}
    if "activation" in given:
        more = {"relu2": "relu"} if architecture.differs else {}  # the square of a ReLU costs as much
        given["activation"] = _choice(keys["activation"], ACTIVATIONS | more, config)
    if "rope_theta" in keys:
        planned = bool(architecture.differs) or config["model_type"] == "gpt_neox"  # which says it itself
        given |= _rope_theta(keys["rope_theta"], config, planned)
    fields = {**architecture.sizes, **given, "differs": architecture.differs, **architecture.more(config)}
    try:
        return ModelShape(**_nested(fields))
    except ShapeError as error:
        raise ShapeError(_in_their_words(str(error), keys)) from None


def _architecture(config: Config) -> Architecture:
    kind, known = config.get("model_type"), ", ".join(ARCHITECTURES)
    if kind is None:
        raise ShapeError(f"model_type is missing: a config.json must have it, one of {known}")
    if not isinstance(kind, str):
        raise ShapeError(f"model_type must be one of {known}, got {kind!r}")
    if kind not in ARCHITECTURES:
        strange = [key for key, value in {kind: True, **config}.items() if value and STRANGE.search(key)]
        if strange or any(config.get(key) is None for key in _BLOCK.values()):
            why = f": {', '.join(strange[:3])} may change its sizes" if strange else ""
            raise ShapeError(
                f"model_type must be one of {known}, or have the sizes of a Llama, got {kind!r}{why}"
            )
        if config.get("hidden_act", "silu") not in ("silu", "swish", "gelu_pytorch_tanh"):
            raise ShapeError(
                f"model_type {kind!r} is not known here, and hidden_act {config['hidden_act']!r} leaves open whether its "
                "MLP has a gate"
            )
        differs = (
            f"model_type {kind!r} is not known here, and read as a Llama, whose sizes may differ from its own"
        )
        eps = next((key for key in ("layer_norm_eps", "norm_epsilon") if key in config), None)
        norm = {"norm": "layernorm"} if eps else {}
        return _planned("", differs, {"qkv_bias": "attention_bias", "norm_eps": eps or "rms_norm_eps"}, norm)
    found, classes = ARCHITECTURES[kind], config.get("architectures")
    if classes and (not isinstance(classes, list) or found.causal_lm not in classes):
        raise ShapeError(
            f"architectures must name {found.causal_lm} where model_type is {kind!r}, got {classes!r}"
        )
    return found


def _must(key: str, valid: str, config: Config) -> ShapeError:
    return ShapeError(f"{key} must be {valid} for a model of the book, got {json.dumps(config.get(key))}")


def _choice(key: str, choices: Mapping[str, str], config: Config) -> str:
    value = config[key]
    if not isinstance(value, str) or value not in choices:
        raise _must(key, f"one of {', '.join(choices)}", config)
    return choices[value]


def _rope_theta(key: str, config: Config, partial: bool) -> Sizes:
    """The base of the rotary frequencies, where it stands (since transformers 5) in a table with their scaling."""
    table = config.get("rope_parameters")
    if table is None:
        return {}
    if not isinstance(table, Mapping):
        raise _must("rope_parameters", "a table", config)
    if table.get("partial_rotary_factor") not in (None, 1) and not partial:
        raise _must("rope_parameters", "without a partial_rotary_factor other than 1", config)
    inner = table.get("rope_theta")
    if inner is not None and config.get(key) not in (None, inner):
        raise ShapeError(f"{key} must be rope_parameters.rope_theta = {inner!r}, got {config[key]!r}")
    return {} if inner is None else {"rope_theta": inner}


def _nested(sizes: Sizes) -> Sizes:
    """Fields with a dot in tables: ``{"moe.top_k": 2}`` to ``{"moe": {"top_k": 2}}``."""
    nested: Sizes = {}
    for name, value in sizes.items():
        table, _, inner = name.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[inner] = value
    return nested


def _in_their_words(message: str, keys: Mapping[str, str]) -> str:
    """A refusal of the shape with the config's keys in the place of its fields."""
    words = {name.removeprefix("mla."): key for name, key in keys.items()} | dict(keys)
    return re.sub(r"\b(?:moe\.|mla\.)?[a-z_]+\b", lambda match: words.get(match[0], match[0]), message)


# ---- fields that take more than one key


def _nothing(config: Config) -> Sizes:
    return {}


def _gpt2(config: Config) -> Sizes:
    """GPT-2 names three rates of dropout, each 0.1 where it is left out; a shape has one."""
    rate = config.get("resid_pdrop", 0.1)
    for key in ("embd_pdrop", "attn_pdrop"):
        if config.get(key, 0.1) != rate:
            raise ShapeError(f"{key} must be resid_pdrop = {rate!r}, got {config.get(key, 0.1)!r}")
    return {"dropout": rate}


def _neox(config: Config) -> Sizes:
    """Most of GPT-NeoX has attention and MLP side by side, and turns a quarter of each head: both unless it says not."""
    table = config.get("rope_parameters") or {}  # the share in its table or on its own
    share = config.get("rotary_pct", table.get("partial_rotary_factor", 0.25))
    side_by_side = "attention and MLP are side by side" if config.get("use_parallel_residual", True) else ""
    turned = PARTLY if share != 1 else ""
    return {"differs": ", ".join(filter(None, (side_by_side, turned)))}


#: Every how many blocks one sees all tokens where nothing says it: transformers' defaults.
EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4, "exaone4": 4, "olmo3": 4}


def _windows(config: Config) -> Sizes:
    """Windows of the blocks that slide, of all of them where no list says which; layers of another kind are refused."""
    size, known = config.get("sliding_window"), EVERY.get(config["model_type"], 0)
    every = config.get("sliding_window_pattern", known)
    if isinstance(every, str):  # LLLG
        every = len(every)
    some = ["sliding_attention"] * (every - 1) + ["full_attention"] if every else ["sliding_attention"]
    kinds = config.get("layer_types") or some
    if not isinstance(kinds, list) or any(k not in ("full_attention", "sliding_attention") for k in kinds):
        raise _must("layer_types", "a list of full_attention and sliding_attention", config)
    if not size or config.get("use_sliding_window") is False:
        return {}
    size = check_int("sliding_window", size, ShapeError)
    each = [size * (kind == "sliding_attention") for kind in kinds]
    period = next(n for n in range(1, len(each) + 1) if all(w == each[i % n] for i, w in enumerate(each)))
    return {"windows": each[:period]}


def _balance(config: Config) -> Sizes:
    """transformers adds the load-balancing loss where a model gives its routers' logits, which by default it does not."""
    return {} if config.get("output_router_logits") else {"moe.balance_loss": 0.0}


def _qwen_moe(config: Config) -> Sizes:
    """Blocks without experts, and an expert for all tokens as so many of the others' width."""
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise _must("mlp_only_layers", "the first blocks, as in [0, 1],", config)
    one = check_int("moe_intermediate_size", config["moe_intermediate_size"], ShapeError)
    key = "shared_expert_intermediate_size"
    shared = check_int(key, config.get(key) or 0, ShapeError, least=0)
    if shared % one:
        raise _must(key, f"a multiple of moe_intermediate_size = {one}", config)
    return {"moe.dense_layers": len(dense), "moe.shared_experts": shared // one, **_balance(config)}


def _post_norms(config: Config) -> Sizes:
    return {"norms": "both"} if config.get("use_post_norm") else {}


def _deepseek(config: Config) -> Sizes:
    """Keys and values of every head out of one latent, and groups of experts where the choice is limited to some."""
    heads, keys = config["num_attention_heads"], config.get("num_key_value_heads")
    if keys not in (None, heads):
        raise _must("num_key_value_heads", f"num_attention_heads = {heads}", config)
    methods = {name: name for name in ("greedy", "group_limited_greedy", "noaux_tc")}
    method = _choice("topk_method", methods, config) if config.get("topk_method") is not None else ""
    groups = {"moe.groups": 1, "moe.top_groups": 1} if method == "greedy" else {}
    return {"mla.q_rank": config["q_lora_rank"], **groups}


# ---- architectures

_BLOCK = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "ffn": "intermediate_size", "vocab": "vocab_size", "max_seq": "max_position_embeddings",
}  # fmt: skip
_ANY = {"activation": "hidden_act", "tied": "tie_word_embeddings"}
_NONE: Sizes = {}
_KV, _HEAD = {"kv_heads": "num_key_value_heads"}, {"head_dim": "head_dim"}


def _llama(
    causal_lm: str,
    needed: Mapping[str, str],
    optional: Mapping[str, str] = _NONE,
    more: Callable[[Config], Sizes] = _nothing,
    sizes: Sizes = _NONE,
) -> Architecture:
    """An architecture of Llama's block, with what else it needs, may have and is."""
    style = {"gated": True, "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False}
    musts = {"attention_bias": False, "mlp_bias": False, "attention_dropout": 0, "partial_rotary_factor": 1}
    musts |= {"moe_layer_freq": 1, "router_jitter_noise": 0}
    return Architecture(
        causal_lm,
        {**style, "tied": False, "norm_eps": 1e-6, **sizes},
        {**_BLOCK, **needed},
        {**_ANY, "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta", **optional},
        musts,
        more,
    )


def _planned(
    causal_lm: str,
    differs: str,
    optional: Mapping[str, str] = _NONE,
    sizes: Sizes = _NONE,
    musts: Mapping[str, Any] = _NONE,
    needed: Mapping[str, str] = _NONE,
    more: Callable[[Config], Sizes] = _nothing,
) -> Architecture:
    """One that is read to be planned: a Llama but for ``sizes``, ``musts``, and in what it ``differs``."""
    both = lambda config: _windows(config) | more(config)  # noqa: E731
    llama = _llama(causal_lm, needed, {**_KV, **_HEAD, **optional}, both, sizes)
    free = {"partial_rotary_factor", "attention_dropout", *optional.values(), *musts}
    kept = {key: valid for key, valid in llama.musts.items() if key not in free}
    return replace(llama, musts={**kept, **musts}, differs=differs)


_CHOICE = {"moe.top_k": "num_experts_per_tok", "moe.ffn": "moe_intermediate_size"}
_LOSS = {"moe.balance_loss": "router_aux_loss_coef"}
_QWEN = {**_KV, **_CHOICE, "moe.experts": "num_experts"}
_QWEN_ROUTER = {**_LOSS, "moe.every": "decoder_sparse_step", "moe.normalized": "norm_topk_prob"}
_QWEN_SHARED = {"moe.shared_experts": "shared_expert_intermediate_size"}
_DEEPSEEK = {
    **_CHOICE,
    "moe.experts": "n_routed_experts",
    "moe.shared_experts": "n_shared_experts",
    "moe.dense_layers": "first_k_dense_replace",
    "moe.scale": "routed_scaling_factor",
    "mla.q_rank": "q_lora_rank",
    "mla.kv_rank": "kv_lora_rank",
    "mla.nope_dim": "qk_nope_head_dim",
    "mla.rope_dim": "qk_rope_head_dim",
    "mla.value_dim": "v_head_dim",
}
_DEEPSEEK_ROUTER = {
    "moe.groups": "n_group", "moe.top_groups": "topk_group", "moe.scores": "scoring_func",
    "moe.normalized": "norm_topk_prob",
}  # fmt: skip
_GPT2 = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size", "max_seq": "n_positions",
}  # fmt: skip
_GPT2_OPTIONAL = {"ffn": "n_inner", "tied": "tie_word_embeddings", "norm_eps": "layer_norm_epsilon"}
_NEOX_OPTIONAL = {**_ANY, "norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base"}

_ALL_EXPERTS = {"moe.experts": "num_experts", "moe.top_k": "num_experts_per_tok"}
_ALL_EXPERTS["moe.ffn"] = "intermediate_size"
_ROUTED = {key: _DEEPSEEK[key] for key in ("moe.experts", "moe.top_k", "moe.ffn", "moe.shared_experts")}
_PAIRS = "rotary positions turn pairs of neighbours, not of halves"
_OLMO = "norms come after attention and MLP, those of queries and keys are over all heads"
_GRANITE = "embeddings, attention, residuals and logits are multiplied by factors of its own"

#: Every ``model_type`` that is read.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": _llama("LlamaForCausalLM", _NONE, _KV | _HEAD),
    "mistral": _llama("MistralForCausalLM", _KV, _HEAD),
    "mixtral": _llama(
        "MixtralForCausalLM",
        {**_KV, "moe.experts": "num_local_experts", **_CHOICE, "moe.ffn": "intermediate_size"},
        _HEAD | _LOSS,
        _balance,
        {"norm_eps": 1e-5, "rope_theta": 1e6},
    ),
    "qwen2": _llama("Qwen2ForCausalLM", _KV, sizes={"qkv_bias": True}),
    "qwen3": _llama("Qwen3ForCausalLM", _KV | _HEAD, sizes={"qk_norm": True}),
    "qwen2_moe": _llama(
        "Qwen2MoeForCausalLM",
        _QWEN | _QWEN_SHARED,
        _QWEN_ROUTER | {"qkv_bias": "qkv_bias"},
        _qwen_moe,
        {"qkv_bias": True, "moe.normalized": False},
    ),
    "qwen3_moe": _llama(
        "Qwen3MoeForCausalLM",
        _QWEN | _HEAD,
        _QWEN_ROUTER,
        _qwen_moe,
        {"qk_norm": True, "moe.normalized": False},
    ),
    "deepseek_v2": _llama(
        "DeepseekV2ForCausalLM", _DEEPSEEK, _DEEPSEEK_ROUTER, _deepseek, {"moe.normalized": False}
    ),
    "deepseek_v3": _llama(
        "DeepseekV3ForCausalLM", _DEEPSEEK, _DEEPSEEK_ROUTER, _deepseek, {"moe.scores": "sigmoid"}
    ),
    # Kimi K2's sizes, in DeepSeek-V3's model.
    "kimi_k2": _llama(
        "DeepseekV3ForCausalLM", _DEEPSEEK, _DEEPSEEK_ROUTER, _deepseek, {"moe.scores": "sigmoid"}
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        {"positions": "learned", "activation": "gelu"},
        _GPT2,
        {**_GPT2_OPTIONAL, "activation": "activation_function"},
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        _gpt2,
    ),
    "gpt_neox": Architecture(
        "GPTNeoXForCausalLM",
        {"positions": "rotary", "activation": "gelu", "tied": False},
        _BLOCK,
        _NEOX_OPTIONAL,
        {"attention_bias": True, "attention_dropout": 0, "hidden_dropout": 0},
        _neox,
    ),
    # Read to be planned.
    "arcee": _planned("ArceeForCausalLM", "its activation is the square of a ReLU", sizes={"gated": False}),
    "cwm": _planned("CwmForCausalLM", "most of its blocks see a window of tokens"),
    "ernie4_5": _planned(
        "Ernie4_5ForCausalLM", _PAIRS, sizes={"tied": True, "norm_eps": 1e-5}, musts={"use_bias": False}
    ),
    "exaone4": _planned(
        "Exaone4ForCausalLM", "its norms come after attention and MLP", sizes={"qk_norm": True}
    ),
    "gemma": _planned("GemmaForCausalLM", GEMMA, sizes={"tied": True, "activation": "gelu"}),
    "glm": _planned("GlmForCausalLM", PARTLY, {"qkv_bias": "attention_bias"}),
    "granite": _planned("GraniteForCausalLM", _GRANITE),
    "jais2": _planned(
        "Jais2ForCausalLM",
        "its activation is the square of a ReLU",
        {"norm_eps": "layer_norm_eps"},
        {"gated": False, "norm": "layernorm", "bias": True, "qkv_bias": True},
        {"attention_bias": True, "mlp_bias": True},
    ),
    "ministral3": _planned("Ministral3ForCausalLM", "queries grow with their position"),
    "phi3": _planned("Phi3ForCausalLM", "queries, keys and values are one matrix, gate and up another"),
    "seed_oss": _planned(
        "SeedOssForCausalLM",
        "dropout has rates of its own",
        {"qkv_bias": "attention_bias"},
        {"qkv_bias": True},
        {"attention_out_bias": False},
    ),
    "smollm3": _planned("SmolLM3ForCausalLM", "every fourth block knows no positions", sizes={"tied": True}),
    "starcoder2": _planned(
        "Starcoder2ForCausalLM",
        "dropout has rates of its own",
        {"norm_eps": "norm_epsilon"},
        {
            "gated": False,
            "norm": "layernorm",
            "bias": True,
            "qkv_bias": True,
            "tied": True,
            "activation": "gelu",
        },
        {"use_bias": True},
    ),
    "vaultgemma": _planned(
        "VaultGemmaForCausalLM",
        GEMMA,
        {"activation": "hidden_activation"},
        {"tied": True, "activation": "gelu"},
    ),
    "cohere": _planned(
        "CohereForCausalLM",
        "attention and MLP are side by side, logits are multiplied by a factor",
        {"norm_eps": "layer_norm_eps"},
        {"norm": "layernorm", "norms": "parallel", "tied": True},
        {"use_qk_norm": False},
    ),
    "cohere2": _planned(
        "Cohere2ForCausalLM",
        "attention and MLP are side by side, full attention knows no positions",
        {"norm_eps": "layer_norm_eps"},
        {"norm": "layernorm", "norms": "parallel", "tied": True},
    ),
    "gemma2": _planned(
        "Gemma2ForCausalLM",
        GEMMA2,
        {"activation": "hidden_activation"},
        {"tied": True, "activation": "gelu", "norms": "both"},
    ),
    "gemma3_text": _planned(
        "Gemma3ForCausalLM",
        GEMMA,
        {"activation": "hidden_activation"},
        {"tied": True, "activation": "gelu", "norms": "both", "qk_norm": True},
    ),
    "glm4": _planned("Glm4ForCausalLM", PARTLY, {"qkv_bias": "attention_bias"}, {"norms": "both"}),
    "glm4_moe": _planned(
        "Glm4MoeForCausalLM",
        PARTLY,
        {"qk_norm": "use_qk_norm", "qkv_bias": "attention_bias", "moe.scale": "routed_scaling_factor",
         "moe.groups": "n_group", "moe.top_groups": "topk_group", "moe.normalized": "norm_topk_prob"},
        {"moe.scores": "sigmoid"},
        needed={**_ROUTED, "moe.dense_layers": "first_k_dense_replace"},
    ),
    "gpt_bigcode": Architecture(
        "GPTBigCodeForCausalLM",
        {"positions": "learned", "activation": "gelu"},
        _GPT2,
        {**_GPT2_OPTIONAL, "activation": "activation_function"},
        {"scale_attn_weights": True, "add_cross_attention": False},
        lambda config: _gpt2(config) | ({"kv_heads": 1} if config.get("multi_query", True) else {}),
        "queries, keys and values are one matrix",
    ),
    "gpt_oss": _planned(
        "GptOssForCausalLM",
        SINKS,
        sizes={"bias": True, "qkv_bias": True},
        musts={"attention_bias": True},
        needed={**_ALL_EXPERTS, "moe.experts": "num_local_experts"},
        more=_balance,
    ),
    "granitemoe": _planned(
        "GraniteMoeForCausalLM", _GRANITE, needed={**_ALL_EXPERTS, "moe.experts": "num_local_experts"}, more=_balance
    ),
    "hyperclovax": _planned("HyperCLOVAXForCausalLM", _GRANITE, more=_post_norms),
    "olmo2": _planned(
        "Olmo2ForCausalLM", _OLMO, sizes={"norms": "after", "qk_norm": True, "qk_norm_over": "heads"}
    ),
    "olmo3": _planned(
        "Olmo3ForCausalLM", _OLMO, sizes={"norms": "after", "qk_norm": True, "qk_norm_over": "heads"}
    ),
    "olmoe": _planned(
        "OlmoeForCausalLM",
        "norms of queries and keys are over all heads",
        {"moe.normalized": "norm_topk_prob"},
        {"qk_norm": True, "qk_norm_over": "heads", "moe.normalized": False},
        needed=_ALL_EXPERTS,
        more=_balance,
    ),
    "solar_open": _planned(
        "SolarOpenForCausalLM",
        "a part of each head may turn with the position",
        {"moe.scale": "routed_scaling_factor", "moe.groups": "n_group", "moe.top_groups": "topk_group",
         "moe.normalized": "norm_topk_prob"},
        {"moe.scores": "sigmoid"},
        needed={**_ROUTED, "ffn": "moe_intermediate_size"},
    ),
    "stablelm": _planned(
        "StableLmForCausalLM",
        "a quarter of each head turns with the position",
        {"norm_eps": "layer_norm_eps", "qkv_bias": "use_qkv_bias"},
        {"norm": "layernorm", "norm_bias": True},
        {"use_parallel_residual": False, "qk_layernorm": False},
    ),
}  # fmt: skip
