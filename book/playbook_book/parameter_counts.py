"""Parameter counts that others give: the textbook's formulas, and what the authors of models publish.

A test compares every preset with :data:`PUBLISHED`, to the last parameter where the exact number is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbook.shapes import ModelShape


def classical_parameters(shape: ModelShape) -> int:
    """The textbook count of a GPT: N = h·v + L·(12h² + 13h) + 2h, with h hidden, v vocabulary, L layers.

    It equals the breakdown for full multi-head attention, an MLP of width 4h, biases everywhere, LayerNorm,
    a tied head and no learned positions. Per block: 4h² + 4h attention, 8h² + 5h MLP, 4h for two
    LayerNorms.
    """
    h = shape.hidden
    return h * shape.vocab + shape.layers * (12 * h**2 + 13 * h) + 2 * h


def llama_parameters(shape: ModelShape) -> int:
    """The Llama counterpart: N = 2·h·v + L·(2·h·(h + h_kv) + 3·h·f + 2h) + h.

    A tied head counts h·v once. h_kv = kv_heads · head_dim is the width of grouped keys and values, f the
    MLP's: gated, so three matrices. RMSNorm has h weights and nothing has a bias. With h_kv = h and f =
    8h/3 a block is 12h² + 2h again.
    """
    h, grouped = shape.hidden, shape.n_kv_heads * shape.qk_dim
    block = 2 * h * (h + grouped) + 3 * h * shape.ffn_dim + 2 * h
    return (1 if shape.tied else 2) * h * shape.vocab + shape.layers * block + h


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


def _second_token(repository: str, rounded: int, layer: int) -> Published:
    note = "Excluded: a layer that predicts a second token, with an embedding and a head of its own."
    source = _SAFETENSORS.format(repository)
    return Published(rounded, source, tolerance=600_000_000, excluded=layer, note=note)


def _sinks(repository: str, parameters: int, uncounted: int) -> Published:
    note = "Excluded: a sink for each head, and the routers' biases."
    return Published(parameters, _SAFETENSORS.format(repository), excluded=uncounted, note=note)


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
    "kimi-k2": Published(
        1_000_000_000_000,
        "its model card: 1T in all, 32B active",
        tolerance=30_000_000_000,
        active=32_000_000_000,
        active_tolerance=1_000_000_000,
    ),
    "glm-4.5": _second_token("zai-org/GLM-4.5", 358_000_000_000, 5_450_000_000),
    "glm-4.5-air": _second_token("zai-org/GLM-4.5-Air", 110_000_000_000, 3_620_000_000),
    "qwen3-next-80b-a3b": Published(
        80_000_000_000,
        "its model card, huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct",
        tolerance=500_000_000,
    ),
    "qwen3.5-35b-a3b": Published(
        35_000_000_000, "its model card, huggingface.co/Qwen/Qwen3.5-35B-A3B", tolerance=500_000_000
    ),
    "kimi-linear-48b-a3b": Published(
        48_000_000_000,
        "Kimi Linear, arXiv 2510.26692",
        tolerance=1_200_000_000,
        note="its weights, of the sizes in its config.json, are 49.1 billion",
    ),
    "gpt-oss-20b": _sinks("openai/gpt-oss-20b", 20_914_757_184, 24 * (64 + 32)),
    "gpt-oss-120b": _sinks("openai/gpt-oss-120b", 116_829_156_672, 36 * (64 + 128)),
    "gemma2-2b": _tensors("google/gemma-2-2b", 2_614_341_888),
    "gemma2-9b": _tensors("google/gemma-2-9b", 9_241_705_984),
    "gemma2-27b": _tensors("google/gemma-2-27b", 27_227_128_320),
    "gemma3-1b": _tensors("google/gemma-3-1b-pt", 999_885_952),
    **{
        f"gemma3-{size}b": Published(
            millions * 10**6,
            "Gemma 3 Technical Report, arXiv 2503.19786, table 1",
            tolerance=8_000_000,
            note="The language model alone.",
        )
        for size, millions in {4: 675 + 3209, 12: 1012 + 10_759, 27: 1416 + 25_600}.items()
    },
    "mistral-7b": _tensors("mistralai/Mistral-7B-v0.3", 7_248_023_552),
    "mistral-nemo": _tensors("mistralai/Mistral-Nemo-Base-2407", 12_247_782_400),
    "mistral-small-24b": _tensors("mistralai/Mistral-Small-24B-Base-2501", 23_572_403_200),
    "smollm-135m": _tensors("HuggingFaceTB/SmolLM-135M", 134_515_008),
    "smollm-360m": _tensors("HuggingFaceTB/SmolLM-360M", 361_821_120),
    "smollm-1.7b": _tensors("HuggingFaceTB/SmolLM-1.7B", 1_711_376_384),
    "smollm2-135m": _tensors("HuggingFaceTB/SmolLM2-135M", 134_515_008),
    "smollm2-360m": _tensors("HuggingFaceTB/SmolLM2-360M", 361_821_120),
    "smollm2-1.7b": _tensors("HuggingFaceTB/SmolLM2-1.7B", 1_711_376_384),
    "smollm3-3b": _tensors("HuggingFaceTB/SmolLM3-3B", 3_075_098_624),
    "qwen2.5-0.5b": _tensors("Qwen/Qwen2.5-0.5B", 494_032_768),
    "qwen2.5-1.5b": _tensors("Qwen/Qwen2.5-1.5B", 1_543_714_304),
    "qwen2.5-3b": _tensors("Qwen/Qwen2.5-3B", 3_085_938_688),
    "qwen2.5-7b": _tensors("Qwen/Qwen2.5-7B", 7_615_616_512),
    "qwen2.5-14b": _tensors("Qwen/Qwen2.5-14B", 14_770_033_664),
    "qwen2.5-32b": _tensors("Qwen/Qwen2.5-32B", 32_763_876_352),
    "qwen2.5-72b": _tensors("Qwen/Qwen2.5-72B", 72_706_203_648),
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
