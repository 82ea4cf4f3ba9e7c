"""What a training run is told: one frozen dataclass, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from playbook._checks import divisors
from playbook.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
RECOMPUTE = ("none", "selective", "full")
ATTENTION = ("sdpa", "reference")


@dataclass(frozen=True)
class TrainConfig:
    """Sizes are samples for the batches and tokens for ``seq``; learning rates are per step of AdamW.

    ``dtype`` is what matrix products run in (autocast); parameters stay fp32. A ``micro_batch`` or ``warmup`` of None is
    filled in: the whole global batch at once, and a twentieth of the steps.
    """

    steps: int = 200
    global_batch: int = 16
    micro_batch: int | None = None
    seq: int = 256
    lr: float = 1e-3
    min_lr: float | None = None  # filled in: a tenth of lr
    warmup: int | None = None
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0  # 0 turns clipping off
    dtype: str = "float32"
    recompute: str = "none"
    attention: str = "sdpa"
    seed: int = 0
    device: str | None = None  # filled in: cuda when there is one

    def __post_init__(self) -> None:
        fill(self, "micro_batch", self.global_batch)
        fill(self, "min_lr", self.lr / 10 if isinstance(self.lr, int | float) else 0.0)
        fill(self, "warmup", max(1, self.steps // 20) if isinstance(self.steps, int) else 1)
        for field in ("steps", "global_batch", "micro_batch", "seq"):
            _require(
                self,
                field,
                _is_int(getattr(self, field)) and 1 <= getattr(self, field) < 2**31,
                "a whole number from 1 to 2147483647",
            )
        for field in ("warmup", "seed"):
            ok = _is_int(getattr(self, field)) and 0 <= getattr(self, field) < 2**31
            _require(self, field, ok, "a whole number from 0 to 2147483647")
        for field in ("lr", "min_lr", "weight_decay", "grad_clip"):
            _require(self, field, _is_finite(getattr(self, field)), "a finite number of at least 0")
        for field in ("beta1", "beta2"):
            _require(
                self,
                field,
                _is_finite(getattr(self, field)) and getattr(self, field) < 1,
                "a number from 0 up to, not including, 1",
            )
        for field, choices in (("dtype", DTYPES), ("recompute", RECOMPUTE), ("attention", ATTENTION)):
            _require(self, field, getattr(self, field) in choices, f"one of {', '.join(choices)}")
        if self.global_batch % self.micro:
            valid = divisors(self.global_batch)
            raise ConfigError(
                f"micro_batch is {self.micro_batch}, but must divide global_batch={self.global_batch}: one of "
                f"{', '.join(map(str, valid if len(valid) <= 12 else [*valid[:6], '…', *valid[-5:]]))}"
            )

    @property
    def micro(self) -> int:
        """The micro-batch, filled in."""
        assert self.micro_batch is not None
        return self.micro_batch

    @property
    def grad_acc(self) -> int:
        """Micro-batches per optimizer step on one device: gbs = mbs · grad_acc."""
        return self.global_batch // self.micro


def fill(config: Any, field: str, value: Any) -> None:
    """Set a field that was left at None, past the freeze."""
    if getattr(config, field) is None:
        object.__setattr__(config, field, value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _require(config: Any, field: str, ok: bool, valid: str) -> None:
    if not ok:
        raise ConfigError(f"{field} is {getattr(config, field)!r}, but must be {valid}")
