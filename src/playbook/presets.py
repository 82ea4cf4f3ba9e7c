"""Sizes of published models. Plain data: :mod:`playbook.shapes` turns :data:`SIZES` into ``PRESETS``."""

from __future__ import annotations

import re
from typing import Any

# fmt: off

#: A model on Hugging Face: its address, or its owner and name.
HUB = re.compile(r"(?:https?://)?(?:huggingface\.co/|hf\.co/)?([\w.-]+)/([\w.-]+)(?:/.*)?")
_VARIANT = re.compile(r"(-(instruct|chat|base|hf|it|pt|fp8|v0\.\d|17b-\d+e|\d{4}))+$")
#: Of another vocabulary than what has their name here.
_OTHERS = re.compile(r"mistral-7b-.*v0\.[12]")


def preset_name(text: str) -> str:
    """What a preset is called here that is ``text``, or a variant of the same sizes, on Hugging Face."""
    found = HUB.fullmatch(text)
    name = (found[2] if found else text).lower().removeprefix("meta-")
    name = re.sub("^(llama|gemma)-", r"\1", name)
    return name if _OTHERS.match(name) else _VARIANT.sub("", name)


def _gpt(layers: int, hidden: int, heads: int, max_seq: int) -> dict[str, Any]:
    """GPT-2 and GPT-3: LayerNorm, learned positions, GELU, biases, tied head, dropout 0.1."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": 50257, "max_seq": max_seq}
    return {**sizes, "dropout": 0.1}


LLAMA_STYLE: dict[str, Any] = {
    "gated": True, "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False,
}


def llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    """The Llama family: RMSNorm, rotary positions, SwiGLU, no bias."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab}
    return {**LLAMA_STYLE, **sizes, **more}


def _llama1(layers: int, hidden: int, heads: int, ffn: int, norm_eps: float = 1e-6) -> dict[str, Any]:
    return llama(layers, hidden, heads, heads, ffn, 32000, max_seq=2048, norm_eps=norm_eps)


def _llama3(layers: int, hidden: int, heads: int, ffn: int, max_seq: int = 8192, **more: Any) -> dict[str, Any]:
    return llama(layers, hidden, heads, 8, ffn, 128256, max_seq=max_seq, rope_theta=500000.0, **more)


def _llama31(layers: int, hidden: int, heads: int, ffn: int, factor: int = 8, **more: Any) -> dict[str, Any]:
    scaling = f"llama3:factor={factor},original=8192"
    return _llama3(layers, hidden, heads, ffn, 131072, rope_scaling=scaling, **more)


def _smollm(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    return llama(layers, hidden, heads, kv_heads, ffn, 49152, tied=True, **{"max_seq": 2048, **more})


def _qwen3(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """Qwen 3: heads of 128 whatever the hidden size, RMSNorm on each head's query and key."""
    common = {"head_dim": 128, "qk_norm": True, "max_seq": 40960, "norm_eps": 1e-6, "rope_theta": 1e6}
    return llama(layers, hidden, heads, kv_heads, ffn, 151936, **common, **more)


def _qwen3_experts(width: int) -> dict[str, Any]:
    """Loads are balanced over global batches (Qwen3 Technical Report, arXiv 2505.09388, section 2)."""
    balance = {"balance_loss": 0.001, "balance_over": "global_batch"}
    return {"experts": 128, "top_k": 8, "ffn": width, **balance}


def _llama4(experts: int, every: int, max_seq: int) -> dict[str, Any]:
    """Llama 4's language model. Every fourth layer leaves out the rotation, and a router's score weighs what goes into an
    expert and not what comes out: no parameter more or less."""
    moe: dict[str, Any] = {"experts": experts, "top_k": 1, "ffn": 8192, "shared_experts": 1, "every": every}
    moe |= {"scores": "sigmoid", "normalized": False}
    return llama(48, 5120, 40, 8, 16384, 202048, max_seq=max_seq, rope_theta=5e5, moe=moe)


#: DeepSeek-V3's (arXiv 2412.19437, sections 2.1.2 and 4.2): biases balance the load, a small loss that of each sample.
_DEEPSEEK_ROUTER: dict[str, Any] = {
    "shared_experts": 1, "scores": "sigmoid", "scale": 2.5, "bias_rate": 0.001, "balance_loss": 0.0001,
    "balance_over": "sample",
}

_PAIRS = {"experts": 8, "top_k": 2}
_LATENT = {"q_rank": 1536, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}


def deepseek(
    layers: int, hidden: int, heads: int, ffn: int, vocab: int, max_seq: int, moe: dict[str, Any],
    mla: dict[str, Any] = _LATENT, theta: float = 1e4,
) -> dict[str, Any]:
    """DeepSeek-V3 and those of its kind: latent attention, experts behind the first blocks."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab, "max_seq": max_seq}
    return {**LLAMA_STYLE, **sizes, "norm_eps": 1e-6, "rope_theta": theta, "moe": moe, "mla": mla}


_QWEN25: dict[str, Any] = {"qkv_bias": True, "norm_eps": 1e-6, "rope_theta": 1e6}

SIZES: dict[str, dict[str, Any]] = {
    # The book's own: small enough to train on a laptop, over bytes.
    "tiny": llama(4, 256, 8, 4, 688, 256, max_seq=1024),
    "tiny-gpt2": {**_gpt(4, 256, 8, 1024), "vocab": 256},
    # Half of a token's two experts is as wide as the MLP of "tiny": a token meets as many parameters, of more.
    "tiny-moe": llama(
        4, 256, 8, 4, 688, 256, max_seq=1024, moe={"experts": 8, "top_k": 2, "ffn": 344, "balance_loss": 0.01}
    ),
    # All that DeepSeek-V3 does, small.
    "tiny-deepseek": deepseek(
        4, 256, 8, 688, 256, 1024, {**_DEEPSEEK_ROUTER, "experts": 16, "top_k": 4, "ffn": 172, "dense_layers": 1,
                                    "groups": 4, "top_groups": 2},
        {"q_rank": 96, "kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 32},
    ),
    # First preset of the Ultra-Scale Playbook's memory widget, as it stands there: one block with a GELU
    # MLP and BERT's vocabulary, no Llama. The widget counts no positions.
    "llama3-tiny": {"layers": 1, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 30522, "positions": "none"},
    "gpt2": _gpt(12, 768, 12, 1024),
    "gpt2-medium": _gpt(24, 1024, 16, 1024),
    "gpt2-large": _gpt(36, 1280, 20, 1024),
    "gpt2-xl": _gpt(48, 1600, 25, 1024),
    # GPT-3's Table 2.1 contradicts itself twice. XL: 24 heads of 128 do not make a width of 2048, and only
    # 16 of them give 1.3B. 13B: 40 heads of 128 make 5120, not the 5140 of the table.
    "gpt3-small": _gpt(12, 768, 12, 2048),
    "gpt3-medium": _gpt(24, 1024, 16, 2048),
    "gpt3-large": _gpt(24, 1536, 16, 2048),
    "gpt3-xl": _gpt(24, 2048, 16, 2048),
    "gpt3-2.7b": _gpt(32, 2560, 32, 2048),
    "gpt3-6.7b": _gpt(32, 4096, 32, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 2048),
    "gpt3-175b": _gpt(96, 12288, 96, 2048),
    "llama1-7b": _llama1(32, 4096, 32, 11008),
    "llama1-13b": _llama1(40, 5120, 40, 13824),
    "llama1-33b": _llama1(60, 6656, 52, 17920),
    "llama1-65b": _llama1(80, 8192, 64, 22016, norm_eps=1e-5),  # so its params.json says
    "llama2-7b": llama(32, 4096, 32, 32, 11008, 32000, max_seq=4096),
    "llama2-13b": llama(40, 5120, 40, 40, 13824, 32000, max_seq=4096),
    "llama2-70b": llama(80, 8192, 64, 8, 28672, 32000, max_seq=4096),
    "llama3-8b": _llama3(32, 4096, 32, 14336),
    "llama3-70b": _llama3(80, 8192, 64, 28672),
    "llama3.1-8b": _llama31(32, 4096, 32, 14336),
    "llama3.1-70b": _llama31(80, 8192, 64, 28672),
    "llama3.1-405b": _llama31(126, 16384, 128, 53248),
    "llama3.2-1b": _llama31(16, 2048, 32, 8192, 32, tied=True),
    "llama3.2-3b": _llama31(28, 3072, 24, 8192, 32, tied=True),
    "mixtral-8x7b": llama(32, 4096, 32, 8, 14336, 32000, max_seq=32768, rope_theta=1e6, moe={**_PAIRS, "ffn": 14336}),
    "mixtral-8x22b": llama(56, 6144, 48, 8, 16384, 32000, max_seq=65536, rope_theta=1e6, moe={**_PAIRS, "ffn": 16384}),
    "llama4-scout": _llama4(experts=16, every=1, max_seq=262144),
    "llama4-maverick": _llama4(experts=128, every=2, max_seq=262144),
    # Without the multi-token-prediction module, which is dropped after training.
    "deepseek-v3": deepseek(
        61, 7168, 128, 18432, 129280, 131072, {**_DEEPSEEK_ROUTER, "experts": 256, "top_k": 8, "ffn": 2048,
                                               "dense_layers": 3, "groups": 8, "top_groups": 4},
    ),
    "kimi-k2": deepseek(
        61, 7168, 64, 18432, 163840, 131072, {"experts": 384, "top_k": 8, "ffn": 2048, "shared_experts": 1,
                                              "dense_layers": 1, "scores": "sigmoid", "scale": 2.827}, theta=5e4,
    ),
    "mistral-7b": llama(32, 4096, 32, 8, 14336, 32768, max_seq=32768, rope_theta=1e6),
    "mistral-nemo": llama(40, 5120, 32, 8, 14336, 131072, head_dim=128, max_seq=131072, rope_theta=1e6),
    "mistral-small-24b": llama(40, 5120, 32, 8, 32768, 131072, head_dim=128, max_seq=32768, rope_theta=1e8),
    "smollm-135m": _smollm(30, 576, 9, 3, 1536),
    "smollm-360m": _smollm(32, 960, 15, 5, 2560),
    "smollm-1.7b": _smollm(24, 2048, 32, 32, 8192),
    "smollm2-135m": _smollm(30, 576, 9, 3, 1536, max_seq=8192, rope_theta=1e5),
    "smollm2-360m": _smollm(32, 960, 15, 5, 2560, max_seq=8192, rope_theta=1e5),
    "smollm2-1.7b": _smollm(24, 2048, 32, 32, 8192, max_seq=8192, rope_theta=1.3e5),
    # Every fourth layer of SmolLM3 leaves out the rotation: no parameter more or less.
    "smollm3-3b": llama(36, 2048, 16, 4, 11008, 128256, tied=True, max_seq=65536, norm_eps=1e-6, rope_theta=5e6),
    "qwen2.5-0.5b": llama(24, 896, 14, 2, 4864, 151936, tied=True, max_seq=32768, **_QWEN25),
    "qwen2.5-1.5b": llama(28, 1536, 12, 2, 8960, 151936, tied=True, max_seq=131072, **_QWEN25),
    "qwen2.5-3b": llama(36, 2048, 16, 2, 11008, 151936, tied=True, max_seq=32768, **_QWEN25),
    "qwen2.5-7b": llama(28, 3584, 28, 4, 18944, 152064, max_seq=131072, **_QWEN25),
    "qwen2.5-14b": llama(48, 5120, 40, 8, 13824, 152064, max_seq=131072, **_QWEN25),
    "qwen2.5-32b": llama(64, 5120, 40, 8, 27648, 152064, max_seq=131072, **_QWEN25),
    "qwen2.5-72b": llama(80, 8192, 64, 8, 29568, 152064, max_seq=131072, **_QWEN25),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 8, 3072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 8, 6144, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 8, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 8, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 8, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 8, 25600),
    "qwen3-30b-a3b": _qwen3(48, 2048, 32, 4, 6144, moe=_qwen3_experts(768)),
    "qwen3-235b-a22b": _qwen3(94, 4096, 64, 4, 12288, moe=_qwen3_experts(1536)),
}
