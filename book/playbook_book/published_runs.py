"""Published runs of pre-training: their sizes, their tokens and, where they are told, their GPU-hours."""

from __future__ import annotations

from dataclasses import dataclass, field

from playbook._checks import check_fields, check_positive, unknown
from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS
from playbook_book.parameter_counts import PUBLISHED
from playbook_book.training_time import FLOPS_PER_PARAMETER, training_flops, utilisation


@dataclass(frozen=True)
class Run:
    """A published run. ``gpu_hours`` are those of ``gpu`` (a name in ``hardware.ACCELERATORS``) where both are known.

    ``parameters`` are those that a token meets. Raises :class:`ConfigError` for sizes that are not above 0.
    """

    name: str
    parameters: float
    tokens: float
    source: str = field(repr=False)
    gpu_hours: float | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        for label in ("parameters", "tokens"):
            check_positive(label, getattr(self, label), ConfigError)
        if self.gpu is not None and self.gpu not in ACCELERATORS:
            raise ConfigError(unknown("gpu", self.gpu, ACCELERATORS))

    @property
    def compute(self) -> float:
        """6·N·D, in FLOPs."""
        return training_flops(self.parameters, self.tokens, FLOPS_PER_PARAMETER)

    @property
    def ratio(self) -> float:
        """Tokens per parameter."""
        return self.tokens / self.parameters

    @property
    def mfu(self) -> float | None:
        """6·N·D over what the GPU-hours could compute at the peak (bf16, dense), interruptions included, if known."""
        if self.gpu_hours is None or self.gpu is None:
            return None
        peak = ACCELERATORS[self.gpu].peak()
        return utilisation(self.parameters, self.tokens, self.gpu_hours, peak)


def _of(
    preset: str, tokens: float, source: str, gpu_hours: float | None = None, gpu: str | None = None
) -> Run:
    published = PUBLISHED[preset]
    return Run(preset, published.active or published.parameters, tokens, source, gpu_hours, gpu)


_GPT3 = "Brown et al. 2020, arXiv 2005.14165, table 2.1: all models, 300 billion tokens"
_HOFFMANN = "Hoffmann et al. 2022, arXiv 2203.15556, table 1"
_LLAMA1 = "Touvron et al. 2023, arXiv 2302.13971, tables 2 and 15"
_LLAMA2 = "Touvron et al. 2023, arXiv 2307.09288, tables 1 and 2"
_LLAMA3 = "model card of Llama 3.1, github.com/meta-llama/llama-models; tokens 'over 15T'"
_GPT3_MODELS = ("small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b")

#: Sizes and tokens of published runs, and GPU-hours where they are published.
RUNS: dict[str, Run] = {
    run.name: run
    for run in (
        *(_of(f"gpt3-{size}", 300e9, _GPT3) for size in _GPT3_MODELS),
        Run("gopher-280b", 280e9, 300e9, _HOFFMANN),
        Run("chinchilla-70b", 70e9, 1.4e12, _HOFFMANN),
        _of("llama1-7b", 1.0e12, _LLAMA1, 82_432, "a100-80"),
        _of("llama1-13b", 1.0e12, _LLAMA1, 135_168, "a100-80"),
        _of("llama1-33b", 1.4e12, _LLAMA1, 530_432, "a100-80"),
        _of("llama1-65b", 1.4e12, _LLAMA1, 1_022_362, "a100-80"),
        _of("llama2-7b", 2.0e12, _LLAMA2, 184_320, "a100-80"),
        _of("llama2-13b", 2.0e12, _LLAMA2, 368_640, "a100-80"),
        _of("llama2-70b", 2.0e12, _LLAMA2, 1_720_320, "a100-80"),
        _of("llama3.1-8b", 15e12, _LLAMA3, 1.46e6, "h100"),
        _of("llama3.1-70b", 15e12, _LLAMA3, 7.0e6, "h100"),
        _of(
            "llama3.1-405b",
            15.6e12,
            "tokens: arXiv 2407.21783, section 1; hours: model card of Llama 3.1",
            30.84e6,
            "h100",
        ),
        # On H800s, whose peak is the H100's. Pre-training alone, of 2.788M hours in all; much of it in FP8.
        _of("deepseek-v3", 14.8e12, "arXiv 2412.19437, table 1", 2.664e6, "h100"),
    )
}
