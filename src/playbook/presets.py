"""Sizes of published models, and the parameter counts that their authors publish.

Plain data: :mod:`playbook.shapes` turns :data:`SIZES` into ``PRESETS``, and a test compares every one with
:data:`PUBLISHED`, to the last parameter where the exact number is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """A published parameter count.

    ``tolerance`` is what the published figure's rounding leaves open: 0 for an exact count. ``excluded`` are
    parameters that the publication counts and a :class:`~playbook.shapes.ModelShape` does not.
    """

    parameters: int
    source: str
    tolerance: int = 0
    excluded: int = 0
    active: int | None = None
    active_tolerance: int = 0
    note: str = ""


def _gpt(layers: int, hidden: int, heads: int, max_seq: int) -> dict[str, Any]:
    """GPT-2 and GPT-3: LayerNorm, learned positions, GELU, biases, tied head, dropout 0.1."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": 50257, "max_seq": max_seq}
    return {**sizes, "dropout": 0.1}


_LLAMA_STYLE: dict[str, Any] = {
    "gated": True,
    "activation": "silu",
    "norm": "rmsnorm",
    "positions": "rotary",
    "bias": False,
    "tied": False,
}


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """The Llama family: RMSNorm, rotary positions, SwiGLU, no bias."""
    sizes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "ffn": ffn,
        "vocab": vocab,
    }
    return {**_LLAMA_STYLE, **sizes, **more}


def _llama1(layers: int, hidden: int, heads: int, ffn: int, norm_eps: float = 1e-6) -> dict[str, Any]:
    return _llama(layers, hidden, heads, heads, ffn, 32000, max_seq=2048, norm_eps=norm_eps)


def _llama2(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> dict[str, Any]:
    return _llama(layers, hidden, heads, kv_heads, ffn, 32000, max_seq=4096)


def _llama3(
    layers: int, hidden: int, heads: int, ffn: int, max_seq: int = 8192, **more: Any
) -> dict[str, Any]:
    return _llama(layers, hidden, heads, 8, ffn, 128256, max_seq=max_seq, rope_theta=500000.0, **more)


def _mixtral(layers: int, hidden: int, heads: int, ffn: int, max_seq: int) -> dict[str, Any]:
    moe = {"experts": 8, "top_k": 2, "ffn": ffn}
    return _llama(layers, hidden, heads, 8, ffn, 32000, max_seq=max_seq, rope_theta=1e6, moe=moe)


def _smollm(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    return _llama(layers, hidden, heads, kv_heads, ffn, 49152, tied=True, **{"max_seq": 2048, **more})


def _qwen3(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """Qwen 3: heads of 128 whatever the hidden size, RMSNorm on each head's query and key."""
    common = {"head_dim": 128, "qk_norm": True, "max_seq": 40960, "norm_eps": 1e-6, "rope_theta": 1e6}
    return _llama(layers, hidden, heads, kv_heads, ffn, 151936, **common, **more)


def _qwen3_experts(width: int) -> dict[str, Any]:
    """Loads are balanced over global batches (Qwen3 Technical Report, arXiv 2505.09388, section 2)."""
    balance = {"balance_loss": 0.001, "balance_over": "global_batch"}
    return {"experts": 128, "top_k": 8, "ffn": width, **balance}


def _llama4(experts: int, every: int, max_seq: int) -> dict[str, Any]:
    """Llama 4's language model. Every fourth layer leaves out the rotation, and a router's score weighs what goes into an
    expert and not what comes out: no parameter more or less."""
    moe: dict[str, Any] = {"experts": experts, "top_k": 1, "ffn": 8192, "shared_experts": 1, "every": every}
    moe |= {"scores": "sigmoid", "normalized": False}
    return _llama(48, 5120, 40, 8, 16384, 202048, max_seq=max_seq, rope_theta=5e5, moe=moe)


#: DeepSeek-V3's (arXiv 2412.19437, sections 2.1.2 and 4.2): biases balance the load, a small loss that of each sample.
_DEEPSEEK_ROUTER: dict[str, Any] = {
    "shared_experts": 1,
    "scores": "sigmoid",
    "scale": 2.5,
    "bias_rate": 0.001,
    "balance_loss": 0.0001,
    "balance_over": "sample",
}

_QWEN25: dict[str, Any] = {"qkv_bias": True, "norm_eps": 1e-6, "rope_theta": 1e6}

SIZES: dict[str, dict[str, Any]] = {
    # The book's own: small enough to train on a laptop, over bytes.
    "tiny": _llama(4, 256, 8, 4, 688, 256, max_seq=1024),
    "tiny-gpt2": {**_gpt(4, 256, 8, 1024), "vocab": 256},
    # Half of a token's two experts is as wide as the MLP of "tiny": a token meets as many parameters, of more.
    "tiny-moe": _llama(
        4, 256, 8, 4, 688, 256, max_seq=1024, moe={"experts": 8, "top_k": 2, "ffn": 344, "balance_loss": 0.01}
    ),
    # All that DeepSeek-V3 does, small.
    "tiny-deepseek": {
        **_LLAMA_STYLE,
        "layers": 4,
        "hidden": 256,
        "heads": 8,
        "ffn": 688,
        "vocab": 256,
        "max_seq": 1024,
        "norm_eps": 1e-6,
        "moe": {
            **_DEEPSEEK_ROUTER,
            "experts": 16,
            "top_k": 4,
            "ffn": 172,
            "dense_layers": 1,
            "groups": 4,
            "top_groups": 2,
        },
        "mla": {"q_rank": 96, "kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 32},
    },
    # First preset of the Ultra-Scale Playbook's memory widget, as it stands there: one block with a GELU
    # MLP and BERT's vocabulary, no Llama. The widget counts no positions.
    "llama3-tiny": {
        "layers": 1,
        "hidden": 1024,
        "heads": 16,
        "ffn": 4096,
        "vocab": 30522,
        "positions": "none",
    },
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
    "llama2-7b": _llama2(32, 4096, 32, 32, 11008),
    "llama2-13b": _llama2(40, 5120, 40, 40, 13824),
    "llama2-70b": _llama2(80, 8192, 64, 8, 28672),
    "llama3-8b": _llama3(32, 4096, 32, 14336),
    "llama3-70b": _llama3(80, 8192, 64, 28672),
    "llama3.1-8b": _llama3(32, 4096, 32, 14336, 131072),
    "llama3.1-70b": _llama3(80, 8192, 64, 28672, 131072),
    "llama3.1-405b": _llama3(126, 16384, 128, 53248, 131072),
    "llama3.2-1b": _llama3(16, 2048, 32, 8192, 131072, tied=True),
    "llama3.2-3b": _llama3(28, 3072, 24, 8192, 131072, tied=True),
    "mixtral-8x7b": _mixtral(32, 4096, 32, 14336, 32768),
    "mixtral-8x22b": _mixtral(56, 6144, 48, 16384, 65536),
    "llama4-scout": _llama4(experts=16, every=1, max_seq=262144),
    "llama4-maverick": _llama4(experts=128, every=2, max_seq=262144),
    # Without the multi-token-prediction module, which is dropped after training.
    "deepseek-v3": {
        **_LLAMA_STYLE,
        "layers": 61,
        "hidden": 7168,
        "heads": 128,
        "ffn": 18432,
        "vocab": 129280,
        "max_seq": 131072,
        "norm_eps": 1e-6,
        "moe": {
            **_DEEPSEEK_ROUTER,
            "experts": 256,
            "top_k": 8,
            "ffn": 2048,
            "dense_layers": 3,
            "groups": 8,
            "top_groups": 4,
        },
        "mla": {"q_rank": 1536, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128},
    },
    "smollm-135m": _smollm(30, 576, 9, 3, 1536),
    "smollm-360m": _smollm(32, 960, 15, 5, 2560),
    "smollm-1.7b": _smollm(24, 2048, 32, 32, 8192),
    "smollm2-135m": _smollm(30, 576, 9, 3, 1536, max_seq=8192, rope_theta=1e5),
    "smollm2-360m": _smollm(32, 960, 15, 5, 2560, max_seq=8192, rope_theta=1e5),
    "smollm2-1.7b": _smollm(24, 2048, 32, 32, 8192, max_seq=8192, rope_theta=1.3e5),
    # Every fourth layer of SmolLM3 leaves out the rotation: no parameter more or less.
    "smollm3-3b": _llama(
        36, 2048, 16, 4, 11008, 128256, tied=True, max_seq=65536, norm_eps=1e-6, rope_theta=5e6
    ),
    "qwen2.5-0.5b": _llama(24, 896, 14, 2, 4864, 151936, tied=True, max_seq=32768, **_QWEN25),
    "qwen2.5-7b": _llama(28, 3584, 28, 4, 18944, 152064, max_seq=131072, **_QWEN25),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 8, 3072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 8, 6144, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 8, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 8, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 8, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 8, 25600),
    "qwen3-30b-a3b": _qwen3(48, 2048, 32, 4, 6144, moe=_qwen3_experts(768)),
    "qwen3-235b-a22b": _qwen3(94, 4096, 64, 4, 12288, moe=_qwen3_experts(1536)),
}

_GPT2 = "number of elements in the checkpoint's tensors, huggingface.co/openai-community/{}"
_GPT3 = "Brown et al. 2020, arXiv 2005.14165, Table 2.1"
_LLAMA1 = "Touvron et al. 2023, arXiv 2302.13971, Table 2"
_LLAMA4 = "model card of Llama 4, github.com/meta-llama/llama-models"
_SAFETENSORS = "safetensors metadata (elements of all tensors), huggingface.co/{}"
_QWEN3_TIED = (
    "elements of all tensors, huggingface.co/{}, the tied head counted once (the files hold it twice)"
)


def _tensors(repository: str, parameters: int) -> Published:
    return Published(parameters, _SAFETENSORS.format(repository))


def _experts(repository: str, parameters: int, active: int, rounding: int, source: str) -> Published:
    """An exact total, and the active parameters as the authors round them."""
    return Published(
        parameters,
        f"{_SAFETENSORS.format(repository)}; active: {source}",
        active=active,
        active_tolerance=rounding,
    )


PUBLISHED: dict[str, Published] = {
    "gpt2": Published(124_439_808, _GPT2.format("gpt2")),
    "gpt2-medium": Published(354_823_168, _GPT2.format("gpt2-medium")),
    "gpt2-large": Published(774_030_080, _GPT2.format("gpt2-large")),
    "gpt2-xl": Published(1_557_611_200, _GPT2.format("gpt2-xl")),
    "gpt3-small": Published(125_000_000, _GPT3, tolerance=500_000),
    "gpt3-medium": Published(
        350_000_000, _GPT3, tolerance=6_000_000, note="The table rounds 355.9M down to 350M."
    ),
    "gpt3-large": Published(760_000_000, _GPT3, tolerance=5_000_000),
    "gpt3-xl": Published(
        1_300_000_000, _GPT3, tolerance=50_000_000, note="With 16 heads, not the table's 24."
    ),
    "gpt3-2.7b": Published(2_700_000_000, _GPT3, tolerance=50_000_000),
    "gpt3-6.7b": Published(6_700_000_000, _GPT3, tolerance=50_000_000),
    "gpt3-13b": Published(
        13_000_000_000, _GPT3, tolerance=500_000_000, note="hidden 5120, not the table's 5140."
    ),
    "gpt3-175b": Published(175_000_000_000, _GPT3, tolerance=500_000_000),
    "llama1-7b": Published(6_700_000_000, _LLAMA1, tolerance=50_000_000),
    "llama1-13b": Published(13_000_000_000, _LLAMA1, tolerance=50_000_000),
    "llama1-33b": Published(32_500_000_000, _LLAMA1, tolerance=50_000_000),
    "llama1-65b": Published(
        65_200_000_000, _LLAMA1, tolerance=100_000_000, note="65.29B, cut and not rounded to 65.2B."
    ),
    "llama2-7b": _tensors("meta-llama/Llama-2-7b-hf", 6_738_415_616),
    "llama2-13b": _tensors("meta-llama/Llama-2-13b-hf", 13_015_864_320),
    "llama2-70b": _tensors("meta-llama/Llama-2-70b-hf", 68_976_648_192),
    "llama3-8b": _tensors("meta-llama/Meta-Llama-3-8B", 8_030_261_248),
    "llama3-70b": _tensors("meta-llama/Meta-Llama-3-70B", 70_553_706_496),
    "llama3.1-8b": _tensors("meta-llama/Llama-3.1-8B", 8_030_261_248),
    "llama3.1-70b": _tensors("meta-llama/Llama-3.1-70B", 70_553_706_496),
    "llama3.1-405b": _tensors("meta-llama/Llama-3.1-405B", 405_853_388_800),
    "llama3.2-1b": _tensors("meta-llama/Llama-3.2-1B", 1_235_814_400),
    "llama3.2-3b": _tensors("meta-llama/Llama-3.2-3B", 3_212_749_824),
    "mixtral-8x7b": _experts(
        "mistralai/Mixtral-8x7B-v0.1",
        46_702_792_704,
        12_900_000_000,
        50_000_000,
        "mistral.ai/news/mixtral-of-experts",
    ),
    "mixtral-8x22b": _experts(
        "mistral-community/Mixtral-8x22B-v0.1",
        140_620_634_112,
        39_000_000_000,
        500_000_000,
        "mistral.ai/news/mixtral-8x22b",
    ),
    "llama4-scout": Published(
        109_000_000_000,
        _LLAMA4,
        tolerance=500_000_000,
        excluded=850_000_000,
        active=17_000_000_000,
        active_tolerance=300_000_000,
        note="Excluded: the vision encoder and its projection, about 0.85B by their sizes.",
    ),
    "llama4-maverick": Published(
        400_000_000_000,
        _LLAMA4,
        tolerance=2_000_000_000,
        excluded=850_000_000,
        active=17_000_000_000,
        active_tolerance=300_000_000,
    ),
    "deepseek-v3": Published(
        671_026_419_200,
        _SAFETENSORS.format("deepseek-ai/DeepSeek-V3")
        + "; 671B and 37B active: arXiv 2412.19437, section 4.2",
        excluded=58 * 256,
        active=37_000_000_000,
        active_tolerance=600_000_000,
        note="Main model alone. Excluded: the routers' 58 × 256 balancing biases, which no gradient trains. "
        "37.55B active is cut to 37B; without the input embedding it is 36.6B.",
    ),
    "smollm-135m": _tensors("HuggingFaceTB/SmolLM-135M", 134_515_008),
    "smollm-360m": _tensors("HuggingFaceTB/SmolLM-360M", 361_821_120),
    "smollm-1.7b": _tensors("HuggingFaceTB/SmolLM-1.7B", 1_711_376_384),
    "smollm2-135m": _tensors("HuggingFaceTB/SmolLM2-135M", 134_515_008),
    "smollm2-360m": _tensors("HuggingFaceTB/SmolLM2-360M", 361_821_120),
    "smollm2-1.7b": _tensors("HuggingFaceTB/SmolLM2-1.7B", 1_711_376_384),
    "smollm3-3b": _tensors("HuggingFaceTB/SmolLM3-3B", 3_075_098_624),
    "qwen2.5-0.5b": _tensors("Qwen/Qwen2.5-0.5B", 494_032_768),
    "qwen2.5-7b": _tensors("Qwen/Qwen2.5-7B", 7_615_616_512),
    "qwen3-0.6b": Published(596_049_920, _QWEN3_TIED.format("Qwen/Qwen3-0.6B")),
    "qwen3-1.7b": Published(1_720_574_976, _QWEN3_TIED.format("Qwen/Qwen3-1.7B")),
    "qwen3-4b": _tensors("Qwen/Qwen3-4B", 4_022_468_096),
    "qwen3-8b": _tensors("Qwen/Qwen3-8B", 8_190_735_360),
    "qwen3-14b": _tensors("Qwen/Qwen3-14B", 14_768_307_200),
    "qwen3-32b": _tensors("Qwen/Qwen3-32B", 32_762_123_264),
    "qwen3-30b-a3b": _experts(
        "Qwen/Qwen3-30B-A3B", 30_532_122_624, 3_300_000_000, 100_000_000, "its model card (3.3B)"
    ),
    "qwen3-235b-a22b": _experts(
        "Qwen/Qwen3-235B-A22B", 235_093_634_560, 22_000_000_000, 500_000_000, "its model card (22B)"
    ),
}
