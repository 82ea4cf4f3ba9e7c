"""What the widget of number formats says of a number in one format: a word, sentences, a formula, the same in Python.

Standard library only.
"""

from __future__ import annotations

import math
from fractions import Fraction

from playbook.precision.formats import Format, towards_zero
from playbook_widgets.compute.number_setting import NumberSetting
from playbook_widgets.compute.number_text import raised, shown, typed


def title(form: Format) -> str:
    """What a format is called in a sentence."""
    return form.title.partition(",")[0] or form.name.upper()


def no_code(setting: NumberSetting, form: Format) -> dict[str, str]:
    """A word and a sentence on a number that a format has no code for."""
    if math.isnan(setting.number):
        return {"word": "no NaN", "answer": f"{title(form)} has no code for NaN."}
    return {"word": "no sign", "answer": f"{title(form)} has no sign: scales are positive."}


def overflows(setting: NumberSetting, form: Format) -> bool:
    """Whether a finite number, rounded as if exponents had no end, is beyond the largest one."""
    number = abs(setting.scaled)
    if not math.isfinite(number):
        return False
    unit = form.ulp(number)
    return setting.rule(number / unit) * unit > form.max


def is_subnormal(form: Format, number: float) -> bool:
    """Whether ``number``, one of the format, has fewer bits of mantissa than others."""
    return 0 < abs(number) < form.min_normal


def word(setting: NumberSetting, form: Format, stored: float) -> str:
    """What has become of the number, in a word or three."""
    number = setting.scaled
    if math.isnan(setting.number):
        return "not a number"
    if math.isinf(setting.number) or overflows(setting, form):
        kind = "infinity" if math.isinf(setting.number) else "overflow"
        became = "NaN" if math.isnan(stored) else "saturated" if math.isfinite(stored) else "infinity"
        return became if became == kind else f"{kind}: {became}"
    if not number:
        return "zero" if form.has_zero else "no zero"
    if not stored or (abs(number) < form.min_positive and not form.has_zero):
        return f"underflow: {shown(stored)}"
    how = "exact" if stored == number else "rounded"
    return f"subnormal, {how}" if is_subnormal(form, stored) else how


# --- Sentences


def answer(setting: NumberSetting, form: Format, code: int) -> str:
    """What rounding had to choose from, what it took, and why."""
    number, stored = setting.scaled, form.decode(code)
    scaled = ""
    if setting.scale and number and math.isfinite(number):
        scaled = f"With the scale, {shown(setting.number)} × 2{raised(setting.scale)} = {shown(number)} is stored. "
    if math.isnan(setting.number):
        said = _nan(form)
    elif math.isinf(setting.number) or overflows(setting, form):
        said = _beyond(setting, form, stored)
    elif not number:
        said = _zero(form, number)
    elif stored == number:
        said = f"{shown(number)} is representable in {title(form)}: nothing is rounded."
    else:
        said = _rounded(setting, form, stored)
    return scaled + said + _subnormal(form, stored)


def _nan(form: Format) -> str:
    if form.specials == "ieee":
        return "All bits of the exponent are 1, and the mantissa is not 0: this is NaN, not a number."
    return f"All bits{'' if form.unsigned else ' but the sign'} are 1: this is NaN, not a number."


def _beyond(setting: NumberSetting, form: Format, stored: float) -> str:
    """Too large a number, or infinity itself."""
    name, infinite = title(form), math.isinf(setting.number)
    number = f"{_magnitude(setting)}{shown(abs(setting.scaled))}"
    beyond = f"{number} is beyond {shown(form.max)}, the largest number of {name}: it overflows"
    if math.isinf(stored):
        meaning = "All bits of the exponent are 1, and the mantissa is 0: this is infinity."
        return meaning if infinite else f"{beyond}, and becomes infinity."
    if math.isnan(stored):
        return f"{'' if infinite else f'{beyond}. '}{name} has no infinity, so it becomes NaN."
    why = "With saturation," if form.specials != "none" else f"{name} has neither infinity nor NaN:"
    return (f"{why} infinity becomes" if infinite else f"{beyond}. {why} it becomes") + " the largest number."


def _zero(form: Format, number: float) -> str:
    if not form.has_zero:
        least = shown(form.min_positive)
        return f"{title(form)} has no zero: its codes are powers of two. The smallest, {least}, is taken."
    if math.copysign(1.0, number) < 0:
        return "The sign alone is set: −0. It is equal to 0 in comparisons, but 1/−0 is −∞."
    return "All bits are 0."


def _rounded(setting: NumberSetting, form: Format, stored: float) -> str:
    """A finite number between two neighbours, beyond the last one, or before the first one where that is not 0."""
    number, up = abs(setting.scaled), abs(stored) > abs(setting.scaled)
    below = _magnitude(setting)
    if number > form.max:
        return f"{below}{shown(number)} is larger than {shown(form.max)}, the largest number, but is rounded to it."
    if number < form.min_positive and not form.has_zero:
        return f"{shown(number)} is less than {shown(stored)}, the smallest number, and underflows to it."
    code = form.encode(number, towards_zero)
    low, high = form.decode(code), form.decode(code + 1)
    part = (Fraction(number) - Fraction(low)) / (Fraction(high) - Fraction(low))
    between = (
        f"{below}{shown(number)} is between {shown(low)} and {shown(high)}, {_share(part)} of the way up. "
    )
    fate = " It underflows." if not stored else ""
    return between + _chosen(setting, form, part, up, shown(abs(stored))) + fate


def _magnitude(setting: NumberSetting) -> str:
    return "In magnitude, " if setting.scaled < 0 else ""


def _share(part: Fraction) -> str:
    """A fraction in three digits, which for one that is not whole is neither 0 nor 1."""
    text = shown(float(part), 3)
    return "almost all" if text == "1" else text


def _chosen(setting: NumberSetting, form: Format, part: Fraction, up: bool, stored: str) -> str:
    if setting.rounding == "towards_zero":
        return f"Rounding towards zero takes the smaller one, {stored}."
    if setting.rounding == "stochastic":
        compared = "less, so the larger" if up else "not less, so the smaller"
        return f"That is the probability of going up; u = {setting.u} is {compared} one is taken, {stored}."
    if 2 * part != 1:
        return f"The nearer one is {stored}."
    if setting.rounding == "half_up" or not form.mantissa:
        return f"Halfway between them, the larger one is taken, {stored}."
    return f"Halfway between them, rounding to even takes {stored}, whose last bit is 0."


def _subnormal(form: Format, stored: float) -> str:
    if not is_subnormal(form, stored):
        return ""
    return (
        f" It is subnormal: below {shown(form.min_normal)} all numbers are {shown(form.min_positive)} apart, and smaller "
        "ones have larger relative errors."
    )


# --- The value as the bits say it, and the same in Python


def formula(setting: NumberSetting, form: Format, code: int) -> str:
    """The value of a code from its fields, "2¹²³⁻¹²⁷ × (1 + 77/128)"; empty for what is no finite number."""
    if not math.isfinite(form.decode(code)):
        return ""
    fields = code & ((1 << (form.exponent + form.mantissa)) - 1)
    e, m = fields >> form.mantissa, fields & ((1 << form.mantissa) - 1)
    sign = "−" if code != fields else ""
    normal = e or form.unsigned
    part = f"{m}/{1 << form.mantissa}"
    factors = "" if not form.mantissa else f" × (1 + {part})" if normal else f" × {part}"
    scale = f" / 2{raised(setting.scale)}" if setting.scale else ""
    return f"{sign}2{raised(e if normal else 1)}{raised(-form.bias)}{factors}{scale}"


def python(setting: NumberSetting, form: Format, code: int) -> str:
    """What computes code and value."""
    times = f" * 2**{setting.scale}" if setting.scale else ""
    number = _literal(setting.number)
    rule = {"to_even": "", "stochastic": f", stochastic(lambda: {setting.u})"}.get(
        setting.rounding, f", {setting.rounding}"
    )
    needed = "" if setting.rounding == "to_even" else f", {setting.rounding}"
    encoded = f"form.encode({number}{times}{rule}{', saturate=True' if setting.saturate else ''})"
    if setting.given and setting.given[0] == form:
        encoded, needed = f"{code:#x}", ""
    return "\n".join([
        f"from playbook.precision.formats import FORMATS{needed}",
        "",
        f'form = FORMATS["{form.name}"]',
        f"code = {encoded}",
        f'f"{{code:0{form.bits}b}}", form.decode(code){times.replace("*", "/", 1)}',
    ])  # fmt: skip


def _literal(number: float) -> str:
    """A number as Python has it; a −0 of whole numbers would be 0."""
    if not math.isfinite(number):
        return f'float("{number}")'
    return typed(number).replace("^", "**") if number else repr(number)
