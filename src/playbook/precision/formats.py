"""Floating-point formats as data: how a number becomes bits, and bits a number.

A code is a sign s, E bits of exponent e and M bits of mantissa m. It stands for

    (−1)^s · 2^(e − bias) · (1 + m/2^M)   for e > 0: a normal number
    (−1)^s · 2^(1 − bias) · m/2^M         for e = 0: a subnormal one, or zero

but for the few codes that a format gives to infinity and to what is no number. Sources: IEEE 754-2019, section 3; for 8
bits Micikevicius et al. 2022 (arXiv 2209.05433, table 1); for blocks and for 4 and 6 bits the OCP Microscaling formats
specification 1.0. Python's own numbers hold all of them exactly, so that nothing here rounds but `Format.encode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from playbook._checks import unknown
from playbook.errors import ConfigError

#: How a magnitude, in units of the last place, becomes whole: `to_even`, `towards_zero`, `half_up`, or at random.
Rounding = Callable[[float], int]


def to_even(units: float) -> int:
    """The nearest whole number; of two, the even one."""
    return round(units)


def towards_zero(units: float) -> int:
    """The whole part."""
    return math.floor(units)


def half_up(units: float) -> int:
    """The nearest whole number; of two, the larger one."""
    return math.floor(units + 0.5)


def stochastic(draw: Callable[[], float]) -> Rounding:
    """Up with the probability of the fraction, for ``draw`` that gives numbers from [0, 1): right on average."""

    def rounded(units: float) -> int:
        below = math.floor(units)
        return below + (draw() < units - below)

    return rounded


@dataclass(frozen=True)
class Format:
    """A floating-point format of ``exponent`` and ``mantissa`` bits, and a bit of sign unless it is ``unsigned``.

    ``specials`` says what the codes with the largest exponent are: with "ieee" infinity (m = 0) and NaN; with "nan" the
    one code whose bits are all 1 is NaN, and the others are numbers; with "none" all are numbers. ``title`` is what it is
    called where it is not called ``name``.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    specials: str = "ieee"
    unsigned: bool = False
    title: str = ""

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.exponent + self.mantissa + (not self.unsigned)

    @property
    def has_zero(self) -> bool:
        """Whether there is a code for zero: an unsigned exponent alone has powers of two, and no other number."""
        return not self.unsigned

    @property
    def largest_code(self) -> int:
        """The code of the largest finite number."""
        codes = 1 << (self.exponent + self.mantissa)
        return codes - 1 - {"ieee": 1 << self.mantissa, "nan": 1, "none": 0}[self.specials]

    @property
    def max(self) -> float:
        """The largest finite number."""
        return self.decode(self.largest_code)

    @property
    def min_normal(self) -> float:
        """The smallest positive number with all bits of its mantissa."""
        return math.ldexp(1.0, self.least)

    @property
    def min_positive(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.least - self.mantissa)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number, 2^−M."""
        return math.ldexp(1.0, -self.mantissa)

    @property
    def nan(self) -> int | None:
        """A code of what is no number; None where there is none."""
        if self.specials == "none":
            return None
        return self.largest_code + 1 + (self.specials == "ieee" and 1 << max(self.mantissa - 1, 0))

    @property
    def infinity(self) -> int | None:
        """The code of infinity; None where there is none."""
        return self.largest_code + 1 if self.specials == "ieee" else None

    @property
    def least(self) -> int:
        """The exponent of the smallest normal number."""
        return (0 if self.unsigned else 1) - self.bias

    def decode(self, code: int) -> float:
        """The number that ``code`` stands for. Raises ConfigError for one with more bits than the format."""
        if not 0 <= code < 1 << self.bits:
            raise ConfigError(f"code is {code}, but {self.name} has codes from 0 to {(1 << self.bits) - 1}")
        magnitude = code & ((1 << (self.exponent + self.mantissa)) - 1)
        sign = -1.0 if code > magnitude else 1.0
        if magnitude > self.largest_code:
            return sign * math.inf if magnitude == self.infinity else math.nan
        e, m = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if e or self.unsigned:
            return sign * math.ldexp((1 << self.mantissa) + m, e - self.bias - self.mantissa)
        return sign * math.ldexp(m, self.least - self.mantissa)

    def encode(self, number: float, rounding: Rounding = to_even, *, saturate: bool = False) -> int:
        """The code of ``number``, rounded.

        What is too large becomes infinity, where a format has none NaN, and with ``saturate``, towards zero, or where it
        has neither, the largest number. NaN stays NaN; raises ConfigError where the format has no code for it, or for a
        sign.
        """
        if math.isnan(number):
            if self.nan is None:
                raise ConfigError(f"{self.name} has no code for what is no number")
            return self.nan
        negative = math.copysign(1.0, number) < 0
        if negative and self.unsigned:
            raise ConfigError(f"{number} is negative, but {self.name} has no sign")
        sign = negative << (self.exponent + self.mantissa)
        return sign | self._magnitude(abs(number), rounding, saturate)

    def _magnitude(self, number: float, rounding: Rounding, saturate: bool) -> int:
        beyond = self.largest_code if saturate or self.specials == "none" else self.largest_code + 1
        if math.isinf(number):
            return beyond
        if rounding is towards_zero:
            beyond = self.largest_code
        e = max(math.frexp(number)[1] - 1, self.least) if number else self.least
        units = rounding(math.ldexp(number, self.mantissa - e))  # of the last place
        if not self.has_zero and units == 0:
            return 0  # the smallest power of two there is
        # A mantissa that was rounded up to 2 makes the exponent one larger: codes are in the order of their numbers.
        code = units + ((e - self.least) << self.mantissa)
        code -= 0 if self.has_zero else 1 << self.mantissa
        return code if code <= self.largest_code else beyond

    def round(self, number: float, rounding: Rounding = to_even, *, saturate: bool = False) -> float:
        """``number`` in this format, as `encode` makes it and `decode` reads it."""
        return self.decode(self.encode(number, rounding, saturate=saturate))

    def ulp(self, number: float) -> float:
        """The unit in the last place at ``number``: the distance of neighbouring numbers there."""
        e = max(math.frexp(abs(number))[1] - 1, self.least) if number else self.least
        return math.ldexp(1.0, e - self.mantissa)

    def numbers(self, low: float, high: float) -> Iterator[float]:
        """All numbers of this format from ``low`` to ``high``, both at least 0, in order."""
        code = self.encode(low)
        code += self.decode(code) < low
        while code <= self.largest_code and (number := self.decode(code)) <= high:
            yield number
            code += 1


#: Formats by name, the widest first.
FORMATS = {
    one.name: one
    for one in (
        Format("fp32", 8, 23, 127),
        Format("tf32", 8, 10, 127),
        Format("bf16", 8, 7, 127),
        Format("fp16", 5, 10, 15),
        Format("e5m2", 5, 2, 15, title="FP8 E5M2"),
        Format("e4m3", 4, 3, 7, "nan", title="FP8 E4M3"),
        Format("e8m0", 8, 0, 127, "nan", unsigned=True, title="E8M0, a scale"),
        Format("e3m2", 3, 2, 3, "none", title="FP6 E3M2"),
        Format("e2m3", 2, 3, 1, "none", title="FP6 E2M3"),
        Format("e2m1", 2, 1, 1, "none", title="FP4 E2M1"),
    )
}


def load_format(name: str | Format) -> Format:
    """The format of that name; raises ConfigError for an unknown one."""
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        raise ConfigError(unknown("format", str(name), FORMATS))
    return FORMATS[name]
