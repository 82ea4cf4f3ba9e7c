"""How long a training run takes and what it costs, and how much of the GPUs it uses.

Time is FLOPs over FLOP/s: t = c·T·P / (n·F·U) for T tokens, P parameters and n GPUs of peak F and utilisation U, where c
and U belong together. With c = 6, what the model needs, U is the MFU. Narayanan et al. 2021 (arXiv 2104.04473, section
5.1) take c = 8, what is computed with full recomputation: then U is the HFU, 8/6 of the MFU. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbook._checks import check_fields, check_int, check_positive
from playbook.errors import ConfigError
from playbook.planning.flops import StepFlops

#: FLOPs per parameter and token: 2 forward (a multiplication and an addition), 4 backward.
FLOPS_PER_PARAMETER = 6


@dataclass(frozen=True)
class Duration:
    """``seconds`` on ``gpus`` GPUs. Raises :class:`ConfigError` unless both are above 0."""

    seconds: float
    gpus: int

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        check_positive("seconds", self.seconds, ConfigError)

    @property
    def days(self) -> float:
        """24 hours each, with no interruption."""
        return self.seconds / 86400

    @property
    def gpu_hours(self) -> float:
        """Hours times GPUs: what is paid for."""
        return self.seconds / 3600 * self.gpus

    def cost(self, price: float) -> float:
        """Of the GPU-hours at ``price`` each, in the currency of the price."""
        return self.gpu_hours * check_positive("price", price, ConfigError)


def training_time(
    parameters: float,
    tokens: float,
    gpus: int,
    peak_flops: float,
    utilisation: float,
    coefficient: float = FLOPS_PER_PARAMETER,
) -> Duration:
    """t = c·T·P / (n·F·U): ``peak_flops`` is F, one GPU's FLOP/s, ``utilisation`` U above 0 and at most 1.

    ``coefficient`` is c: 6 with the MFU, 8 with the HFU of full recomputation, or what an exact count gives. With
    experts, ``parameters`` are those that a token meets. Raises :class:`ConfigError` for numbers that are not above 0.
    """
    if check_positive("utilisation", utilisation, ConfigError) > 1:
        raise ConfigError(f"utilisation must be at most 1, the whole peak, got {utilisation}")
    flops = training_flops(parameters, tokens, coefficient)
    peak = check_positive("peak_flops", peak_flops, ConfigError) * check_int("gpus", gpus, ConfigError)
    return Duration(flops / (peak * utilisation), gpus)


def utilisation(
    parameters: float,
    tokens: float,
    gpu_hours: float,
    peak_flops: float,
    coefficient: float = FLOPS_PER_PARAMETER,
) -> float:
    """U = c·T·P / (n·F·t), :func:`training_time` solved for U; n·t are ``gpu_hours``. Above 1, some number is wrong."""
    seconds = check_positive("gpu_hours", gpu_hours, ConfigError) * 3600
    return training_flops(parameters, tokens, coefficient) / (
        seconds * check_positive("peak_flops", peak_flops, ConfigError)
    )


def training_flops(parameters: float, tokens: float, coefficient: float) -> float:
    run = {"parameters": parameters, "tokens": tokens, "coefficient": coefficient}
    n, d, c = (check_positive(label, value, ConfigError) for label, value in run.items())
    return c * n * d


def mfu(step: StepFlops, seconds: float, peak_flops: float, gpus: int = 1) -> float:
    """Model FLOPs utilisation: the share of the GPUs' peak that went into FLOPs which the model needs.

    ``step`` are the FLOPs of the whole global batch, ``seconds`` the time of that step, ``peak_flops`` one GPU's peak in
    FLOP/s. Introduced by PaLM (arXiv 2204.02311, section 4.1). Raises :class:`ConfigError` unless all are positive.
    """
    return _utilisation(step.model, seconds, peak_flops, gpus)


def hfu(step: StepFlops, seconds: float, peak_flops: float, gpus: int = 1) -> float:
    """Hardware FLOPs utilisation: like :func:`mfu`, but recomputed FLOPs count as well."""
    return _utilisation(step.hardware, seconds, peak_flops, gpus)


def _utilisation(flops: int, seconds: float, peak_flops: float, gpus: int) -> float:
    peak = check_positive("peak_flops", peak_flops, ConfigError) * check_int("gpus", gpus, ConfigError)
    return flops / (check_positive("seconds", seconds, ConfigError) * peak)
