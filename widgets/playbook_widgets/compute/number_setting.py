"""What a reader of the widget of number formats sets: a number or the bits of one, and how it is scaled and rounded.

Inputs are a flat mapping that holds only what differs from ``DEFAULTS``, so that it fits into a link:
``{"number": "70000", "format": "fp16"}``. Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ConfigError
from playbook.precision.formats import (
    Format,
    Rounding,
    half_up,
    load_format,
    stochastic,
    to_even,
    towards_zero,
)
from playbook_widgets.compute.number_text import read_number, typed

DEFAULTS: dict[str, Any] = {
    "number": "0.1",
    "rounding": "to_even",
    "saturate": False,
    "scale": 0,  # the exponent of a power of two
    "draw": 0,  # which random number stochastic rounding draws
    "format": "bf16",  # the one that is explained
}
ROUNDINGS = {"to_even": to_even, "towards_zero": towards_zero, "half_up": half_up, "stochastic": None}
LIMITS = {"scale": (-24, 24), "draw": (0, 9999)}


@dataclass(frozen=True)
class NumberSetting:
    """A number, and how it is stored: ``scale`` is a power of two that it is multiplied by before, and divided by after.

    ``given`` is the code that stands for it, where a reader has set bits and not a number.
    """

    number: float
    given: tuple[Format, int] | None
    rounding: str
    saturate: bool
    scale: int
    draw: int
    format: Format

    @cached_property
    def u(self) -> float:
        """What stochastic rounding draws: the same for all formats, of few digits, so that it can be copied."""
        return int(1000 * random.Random(self.draw).random()) / 1000

    @property
    def rule(self) -> Rounding:
        """The rounding as `Format.encode` takes it."""
        return ROUNDINGS[self.rounding] or stochastic(lambda: self.u)

    @property
    def factor(self) -> float:
        """What is multiplied by."""
        return 2.0**self.scale

    @property
    def scaled(self) -> float:
        """What is stored."""
        return self.number * self.factor

    def encode(self, form: Format, number: float) -> int:
        """The code of ``number`` after scaling; raises ConfigError where there is none."""
        return form.encode(number * self.factor, self.rule, saturate=self.saturate)

    def code(self, form: Format) -> int:
        """The code of the number in a format; raises ConfigError where there is none."""
        return self.given[1] if self.given and self.given[0] == form else self.encode(form, self.number)

    def text(self, form: Format, code: int) -> str:
        """What a reader would type to get a code: a number, or the code itself where no number gives it."""
        number = form.decode(code) / self.factor
        return typed(number) if self.encode(form, number) == code else f"{form.name}:{code:#x}"


def read(inputs: Mapping[str, Any]) -> NumberSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the widget of number formats")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    if values["rounding"] not in ROUNDINGS:
        raise ConfigError(unknown("rounding", str(values["rounding"]), ROUNDINGS))
    if not isinstance(values["saturate"], bool):
        raise ConfigError(f"saturate must be true or false, got {values['saturate']!r}")
    for name, (least, most) in LIMITS.items():
        values[name] = typed_int(name, values[name], ConfigError, least=least, most=most)
    number, given = read_number(str(values["number"]))
    values["format"] = load_format(str(values["format"]))
    return NumberSetting(
        **{**values, "number": number / 2.0 ** values["scale"] if given else number, "given": given}
    )
