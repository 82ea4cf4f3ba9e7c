"""The widget of number formats: one pure function from a number to its bits, value and error in every format.

Inputs are a flat mapping that holds only what differs from ``DEFAULTS``, so that it fits into a link. ``compute`` runs in
a kernel and, as the same file, in the reader's browser. Standard library only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ConfigError
from playbook.precision.formats import (
    FORMATS,
    Format,
    Rounding,
    half_up,
    load_format,
    stochastic,
    to_even,
    towards_zero,
)
from playbook_widgets.compute.number_text import read_number, shown, signed, typed
from playbook_widgets.compute.number_words import answer, formula, no_code, python, word
from playbook_widgets.compute.refusals import answered

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


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


def describe(setting: NumberSetting) -> dict[str, Any]:
    """All that the page shows: the number, what has been drawn, and a row for every format."""
    values = {name: getattr(setting, name) for name in DEFAULTS}
    return {
        "values": {**values, "number": typed(setting.number), "format": setting.format.name},
        "number": shown(setting.number),
        "u": setting.u,
        "rows": [_row(setting, form) for form in FORMATS.values()],
    }


def _row(setting: NumberSetting, form: Format) -> dict[str, Any]:
    """One format: ``bits`` as a text of 0 and 1, and for each what the number would be with the other one there."""
    try:
        code = setting.code(form)
    except ConfigError:
        nothing: dict[str, Any] = {"bits": "", "flips": [], "errors": [], "formula": "", "python": ""}
        return {"name": form.name, "value": "none", **nothing, **no_code(setting, form)}
    stored = form.decode(code)
    return {
        "name": form.name,
        "bits": f"{code:0{form.bits}b}",
        "flips": [setting.text(form, code ^ 1 << at) for at in reversed(range(form.bits))],
        "value": shown(stored / setting.factor),
        "errors": _errors(setting, form, stored),
        "formula": formula(setting, form, code),
        "word": word(setting, form, stored),
        "answer": answer(setting, form, code),
        "python": python(setting, form, code),
    }


def _errors(setting: NumberSetting, form: Format, stored: float) -> list[str]:
    """What rounding has added, relative to the number, and in units of the last place; nothing where it is not finite."""
    if not (math.isfinite(stored) and math.isfinite(setting.scaled)):
        return []
    error = (Fraction(stored) - Fraction(setting.scaled)) / Fraction(setting.factor)
    relative = (
        float(error / abs(Fraction(setting.number))) if setting.number else math.copysign(math.inf, error)
    )
    percent = 1e-4 <= abs(relative) < 100
    unit = Fraction(form.ulp(min(abs(setting.scaled), form.max))) / Fraction(setting.factor)
    share = f"{signed(100 * relative)}\u202f%" if percent else signed(relative)
    return [signed(float(error)), share if error else "0", f"{signed(float(error / unit))} ulp"]
