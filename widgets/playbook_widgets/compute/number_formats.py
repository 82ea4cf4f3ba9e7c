"""The widget of number formats: one pure function from a number to its bits, value and error in every format.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS, Format
from playbook_widgets.compute.number_setting import DEFAULTS, NumberSetting, read
from playbook_widgets.compute.number_text import shown, signed, typed
from playbook_widgets.compute.number_words import answer, formula, no_code, python, word
from playbook_widgets.compute.refusals import answered


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
