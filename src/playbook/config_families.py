"""Families of models on Hugging Face: what their ``config.json`` calls a shape's fields, and what else they are.

`huggingface` reads a config by them, `config_hybrids` adds those with a state in place of attention in most blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from playbook._checks import check_int
from playbook.errors import ShapeError
from playbook.planned_presets import GEMMA, GEMMA2, PARTLY, SINKS

Config = Mapping[str, Any]
#: Fields of a shape, those of its experts and of latent attention with a dot: ``moe.top_k``, ``mla.kv_rank``.
Sizes = dict[str, Any]


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


def must(key: str, valid: str, config: Config) -> ShapeError:
    return ShapeError(f"{key} must be {valid} for a model of the book, got {json.dumps(config.get(key))}")


def choice(key: str, choices: Mapping[str, str], config: Config) -> str:
    value = config[key]
    if not isinstance(value, str) or value not in choices:
        raise must(key, f"one of {', '.join(choices)}", config)
    return choices[value]


# ---- fields that take more than one key


def nothing(config: Config) -> Sizes:
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
        raise must("layer_types", "a list of full_attention and sliding_attention", config)
    if not size or config.get("use_sliding_window") is False:
        return {}
    size = check_int("sliding_window", size, ShapeError)
    return {"windows": period_of([size * (kind == "sliding_attention") for kind in kinds])}


def period_of(each: list[int]) -> list[int]:
    """The beginning of a list that it repeats to its end."""
    period = next(n for n in range(1, len(each) + 1) if all(w == each[i % n] for i, w in enumerate(each)))
    return each[:period]


def balance(config: Config) -> Sizes:
    """transformers adds the load-balancing loss where a model gives its routers' logits, which by default it does not."""
    return {} if config.get("output_router_logits") else {"moe.balance_loss": 0.0}


def qwen_moe(config: Config) -> Sizes:
    """Blocks without experts, and an expert for all tokens as so many of the others' width."""
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise must("mlp_only_layers", "the first blocks, as in [0, 1],", config)
    one = check_int("moe_intermediate_size", config["moe_intermediate_size"], ShapeError)
    key = "shared_expert_intermediate_size"
    shared = check_int(key, config.get(key) or 0, ShapeError, least=0)
    if shared % one:
        raise must(key, f"a multiple of moe_intermediate_size = {one}", config)
    return {"moe.dense_layers": len(dense), "moe.shared_experts": shared // one, **balance(config)}


def _post_norms(config: Config) -> Sizes:
    return {"norms": "both"} if config.get("use_post_norm") else {}


def deepseek(config: Config) -> Sizes:
    """Keys and values of every head out of one latent, and groups of experts where the choice is limited to some."""
    heads, keys = config["num_attention_heads"], config.get("num_key_value_heads")
    if keys not in (None, heads):
        raise must("num_key_value_heads", f"num_attention_heads = {heads}", config)
    methods = {name: name for name in ("greedy", "group_limited_greedy", "noaux_tc")}
    method = choice("topk_method", methods, config) if config.get("topk_method") is not None else ""
    groups = {"moe.groups": 1, "moe.top_groups": 1} if method == "greedy" else {}
    return {"mla.q_rank": config["q_lora_rank"], **groups}


# ---- architectures

BLOCK = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "ffn": "intermediate_size", "vocab": "vocab_size", "max_seq": "max_position_embeddings",
}  # fmt: skip
_ANY = {"activation": "hidden_act", "tied": "tie_word_embeddings"}
NONE: Sizes = {}
_KV, _HEAD = {"kv_heads": "num_key_value_heads"}, {"head_dim": "head_dim"}


def _llama(
    causal_lm: str,
    needed: Mapping[str, str],
    optional: Mapping[str, str] = NONE,
    more: Callable[[Config], Sizes] = nothing,
    sizes: Sizes = NONE,
) -> Architecture:
    """An architecture of Llama's block, with what else it needs, may have and is."""
    style = {"gated": True, "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False}
    musts = {"attention_bias": False, "mlp_bias": False, "attention_dropout": 0, "partial_rotary_factor": 1}
    musts |= {"moe_layer_freq": 1, "router_jitter_noise": 0}
    return Architecture(
        causal_lm,
        {**style, "tied": False, "norm_eps": 1e-6, **sizes},
        {**BLOCK, **needed},
        {**_ANY, "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta", **optional},
        musts,
        more,
    )


def planned(
    causal_lm: str,
    differs: str,
    optional: Mapping[str, str] = NONE,
    sizes: Sizes = NONE,
    musts: Mapping[str, Any] = NONE,
    needed: Mapping[str, str] = NONE,
    more: Callable[[Config], Sizes] = nothing,
    kinds: Callable[[Config], Sizes] | None = None,
) -> Architecture:
    """One that is read to be planned: a Llama but for ``sizes``, ``musts``, and in what it ``differs``. ``kinds`` says
    how its blocks differ from each other: by their windows."""
    both = lambda config: (kinds or _windows)(config) | more(config)  # noqa: E731
    llama = _llama(causal_lm, needed, {**_KV, **_HEAD, **optional}, both, sizes)
    free = {"partial_rotary_factor", "attention_dropout", *optional.values(), *musts}
    kept = {key: valid for key, valid in llama.musts.items() if key not in free}
    return replace(llama, musts={**kept, **musts}, differs=differs)


CHOICE = {"moe.top_k": "num_experts_per_tok", "moe.ffn": "moe_intermediate_size"}
LOSS = {"moe.balance_loss": "router_aux_loss_coef"}
_QWEN = {**_KV, **CHOICE, "moe.experts": "num_experts"}
QWEN_ROUTER = {**LOSS, "moe.every": "decoder_sparse_step", "moe.normalized": "norm_topk_prob"}
QWEN_SHARED = {"moe.shared_experts": "shared_expert_intermediate_size"}
DEEPSEEK = {
    **CHOICE, "moe.experts": "n_routed_experts", "moe.shared_experts": "n_shared_experts",
    "moe.dense_layers": "first_k_dense_replace", "moe.scale": "routed_scaling_factor", "mla.q_rank": "q_lora_rank",
    "mla.kv_rank": "kv_lora_rank", "mla.nope_dim": "qk_nope_head_dim", "mla.rope_dim": "qk_rope_head_dim",
    "mla.value_dim": "v_head_dim",
}  # fmt: skip
_GROUPS = {"moe.groups": "n_group", "moe.top_groups": "topk_group", "moe.normalized": "norm_topk_prob"}
DEEPSEEK_ROUTER = {**_GROUPS, "moe.scores": "scoring_func"}
_ROUTER = {**_GROUPS, "moe.scale": "routed_scaling_factor"}
_SIGMOID: Sizes = {"moe.scores": "sigmoid"}
_GPT2 = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size", "max_seq": "n_positions",
}  # fmt: skip
_GPT2_OPTIONAL = {"ffn": "n_inner", "tied": "tie_word_embeddings", "norm_eps": "layer_norm_epsilon"}
_GPT2_OPTIONAL |= {"activation": "activation_function"}
_NEOX_OPTIONAL = {**_ANY, "norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base"}
_QKV_BIAS, _HIDDEN = {"qkv_bias": "attention_bias"}, {"activation": "hidden_activation"}
_GELU: Sizes = {"tied": True, "activation": "gelu"}
_COHERE: Sizes = {"norm": "layernorm", "norms": "parallel", "tied": True}
_NORMED: Sizes = {"qk_norm": True}
_ALL_HEADS: Sizes = {**_NORMED, "qk_norm_over": "heads"}

ALL_EXPERTS = {
    "moe.experts": "num_experts",
    "moe.top_k": "num_experts_per_tok",
    "moe.ffn": "intermediate_size",
}
_ROUTED = {key: DEEPSEEK[key] for key in ("moe.experts", "moe.top_k", "moe.ffn", "moe.shared_experts")}
_BESIDE = "attention and MLP are side by side"
_DROPOUT = "dropout has rates of its own"
_OLMO = "norms come after attention and MLP, those of queries and keys are over all heads"
_SQUARE = "its activation is the square of a ReLU"
GRANITE = "embeddings, attention, residuals and logits are multiplied by factors of its own"

#: By ``model_type``. First those that the book trains.
FAMILIES: dict[str, Architecture] = {
    "llama": _llama("LlamaForCausalLM", NONE, _KV | _HEAD),
    "mistral": _llama("MistralForCausalLM", _KV, _HEAD),
    "mixtral": _llama(
        "MixtralForCausalLM", {**_KV, "moe.experts": "num_local_experts", **CHOICE, "moe.ffn": "intermediate_size"},
        _HEAD | LOSS, balance, {"norm_eps": 1e-5, "rope_theta": 1e6},
    ),
    "qwen2": _llama("Qwen2ForCausalLM", _KV, sizes={"qkv_bias": True}),
    "qwen3": _llama("Qwen3ForCausalLM", _KV | _HEAD, sizes=_NORMED),
    "qwen2_moe": _llama(
        "Qwen2MoeForCausalLM", _QWEN | QWEN_SHARED, QWEN_ROUTER | {"qkv_bias": "qkv_bias"}, qwen_moe,
        {"qkv_bias": True, "moe.normalized": False},
    ),
    "qwen3_moe": _llama(
        "Qwen3MoeForCausalLM", _QWEN | _HEAD, QWEN_ROUTER, qwen_moe, _NORMED | {"moe.normalized": False}
    ),
    "deepseek_v2": _llama("DeepseekV2ForCausalLM", DEEPSEEK, DEEPSEEK_ROUTER, deepseek, {"moe.normalized": False}),
    "deepseek_v3": _llama("DeepseekV3ForCausalLM", DEEPSEEK, DEEPSEEK_ROUTER, deepseek, _SIGMOID),
    # Kimi K2's sizes, in DeepSeek-V3's model.
    "kimi_k2": _llama("DeepseekV3ForCausalLM", DEEPSEEK, DEEPSEEK_ROUTER, deepseek, _SIGMOID),
    "gpt2": Architecture(
        "GPT2LMHeadModel", {"positions": "learned", "activation": "gelu"}, _GPT2, _GPT2_OPTIONAL,
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}, _gpt2,
    ),
    "gpt_neox": Architecture(
        "GPTNeoXForCausalLM", {"positions": "rotary", "activation": "gelu", "tied": False}, BLOCK, _NEOX_OPTIONAL,
        {"attention_bias": True, "attention_dropout": 0, "hidden_dropout": 0}, _neox,
    ),
    # Read to be planned.
    "arcee": planned("ArceeForCausalLM", _SQUARE, sizes={"gated": False}),
    "cohere": planned(
        "CohereForCausalLM", f"{_BESIDE}, logits are multiplied by a factor", {"norm_eps": "layer_norm_eps"}, _COHERE,
        {"use_qk_norm": False},
    ),
    "cohere2": planned(
        "Cohere2ForCausalLM", f"{_BESIDE}, full attention knows no positions", {"norm_eps": "layer_norm_eps"}, _COHERE
    ),
    "cwm": planned("CwmForCausalLM", "most of its blocks see a window of tokens"),
    "ernie4_5": planned(
        "Ernie4_5ForCausalLM", "rotary positions turn pairs of neighbours, not of halves", NONE,
        {"tied": True, "norm_eps": 1e-5}, {"use_bias": False},
    ),
    "exaone4": planned("Exaone4ForCausalLM", "its norms come after attention and MLP", sizes=_NORMED),
    "gemma": planned("GemmaForCausalLM", GEMMA, sizes=_GELU),
    "gemma2": planned("Gemma2ForCausalLM", GEMMA2, _HIDDEN, {**_GELU, "norms": "both"}),
    "gemma3_text": planned("Gemma3ForCausalLM", GEMMA, _HIDDEN, {**_GELU, **_NORMED, "norms": "both"}),
    "glm": planned("GlmForCausalLM", PARTLY, _QKV_BIAS),
    "glm4": planned("Glm4ForCausalLM", PARTLY, _QKV_BIAS, {"norms": "both"}),
    "glm4_moe": planned(
        "Glm4MoeForCausalLM", PARTLY, {**_QKV_BIAS, **_ROUTER, "qk_norm": "use_qk_norm"}, _SIGMOID,
        needed={**_ROUTED, "moe.dense_layers": "first_k_dense_replace"},
    ),
    "gpt_bigcode": Architecture(
        "GPTBigCodeForCausalLM", {"positions": "learned", "activation": "gelu"}, _GPT2, _GPT2_OPTIONAL,
        {"scale_attn_weights": True, "add_cross_attention": False},
        lambda config: _gpt2(config) | ({"kv_heads": 1} if config.get("multi_query", True) else {}),
        "queries, keys and values are one matrix",
    ),
    "gpt_oss": planned(
        "GptOssForCausalLM", SINKS, NONE, {"bias": True, "qkv_bias": True}, {"attention_bias": True},
        {**ALL_EXPERTS, "moe.experts": "num_local_experts"}, balance,
    ),
    "granite": planned("GraniteForCausalLM", GRANITE),
    "granitemoe": planned(
        "GraniteMoeForCausalLM", GRANITE, needed={**ALL_EXPERTS, "moe.experts": "num_local_experts"}, more=balance
    ),
    "hyperclovax": planned("HyperCLOVAXForCausalLM", GRANITE, more=_post_norms),
    "jais2": planned(
        "Jais2ForCausalLM", _SQUARE, {"norm_eps": "layer_norm_eps"},
        {"gated": False, "norm": "layernorm", "bias": True, "qkv_bias": True}, {"attention_bias": True, "mlp_bias": True},
    ),
    "ministral3": planned("Ministral3ForCausalLM", "queries grow with their position"),
    "olmo2": planned("Olmo2ForCausalLM", _OLMO, sizes={**_ALL_HEADS, "norms": "after"}),
    "olmo3": planned("Olmo3ForCausalLM", _OLMO, sizes={**_ALL_HEADS, "norms": "after"}),
    "olmoe": planned(
        "OlmoeForCausalLM", "norms of queries and keys are over all heads", {"moe.normalized": "norm_topk_prob"},
        {**_ALL_HEADS, "moe.normalized": False}, needed=ALL_EXPERTS, more=balance,
    ),
    "phi3": planned("Phi3ForCausalLM", "queries, keys and values are one matrix, gate and up another"),
    "seed_oss": planned("SeedOssForCausalLM", _DROPOUT, _QKV_BIAS, {"qkv_bias": True}, {"attention_out_bias": False}),
    "smollm3": planned("SmolLM3ForCausalLM", "every fourth block knows no positions", sizes={"tied": True}),
    "solar_open": planned(
        "SolarOpenForCausalLM", "a part of each head may turn with the position", _ROUTER, _SIGMOID,
        needed={**_ROUTED, "ffn": "moe_intermediate_size"},
    ),
    "stablelm": planned(
        "StableLmForCausalLM", "a quarter of each head turns with the position",
        {"norm_eps": "layer_norm_eps", "qkv_bias": "use_qkv_bias"}, {"norm": "layernorm", "norm_bias": True},
        {"use_parallel_residual": False, "qk_layernorm": False},
    ),
    "starcoder2": planned(
        "Starcoder2ForCausalLM", _DROPOUT, {"norm_eps": "norm_epsilon"},
        {"gated": False, "norm": "layernorm", "bias": True, "qkv_bias": True, **_GELU}, {"use_bias": True},
    ),
    "vaultgemma": planned("VaultGemmaForCausalLM", GEMMA, _HIDDEN, _GELU),
}  # fmt: skip
