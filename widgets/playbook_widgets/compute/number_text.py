"""Numbers as a reader types them, 2^-25 or 1/3, and as a page shows them, 2⁻²⁵. Standard library only."""

from __future__ import annotations

import ast
import math
import operator
import re
from fractions import Fraction

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS, Format

_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
#: How much text there may be, and how large the numbers of a power.
LONGEST, HIGHEST = 64, 1100
#: Numbers that are not 0 are from 2^−FARTHEST to 2^FARTHEST: a double holds them when they are scaled, too.
FARTHEST = 990
#: Powers of two are shown as such from here on: 1/512 is 0.001953125, 1/1024 is 2⁻¹⁰.
FAR = 10
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def read_number(text: str) -> tuple[float, tuple[Format, int] | None]:
    """The number that ``text`` says and, where it says it as the code of a format, ``e4m3:0x7f``, that code.

    Raises ConfigError for what is neither, and for what a double does not hold, scaled or not.
    """
    plain = re.sub(r"[⁻⁰¹²³⁴-⁹]+", lambda found: f"^{found[0].translate(_LOWERED)}", text.strip())
    plain = plain.replace("−", "-").replace("×", "*").replace("·", "*").replace("∞", "inf")
    if found := re.fullmatch(r"(\w+)\s*:\s*(\w+)", plain):
        return _read_code(found[1].lower(), found[2])
    sign, bare = (-1.0, plain[1:].strip()) if plain.startswith("-") else (1.0, plain)
    if bare.lower() in ("inf", "infinity", "nan"):
        return math.copysign(float(bare), sign), None
    try:
        number = float(_evaluate(ast.parse(plain.replace("^", "**")[:LONGEST], mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        number = math.nan
    if math.isnan(number) or len(plain) > LONGEST:
        raise ConfigError(
            f"number must be a number such as 0.1, 1/3, 2^-25, 1 + 2^-9, -0, inf or nan, or a code such as e4m3:0x7f, "
            f"got {text[:LONGEST]!r}"
        )
    if number and not -FARTHEST <= math.log2(abs(number)) <= FARTHEST:
        raise ConfigError(
            f"number must be 0 or from 2^-{FARTHEST} to 2^{FARTHEST} in magnitude, got {text!r}"
        )
    return number or math.copysign(0.0, sign), None


def _evaluate(node: ast.AST) -> Fraction:
    """Sums, products and powers of numbers, exactly; raises ValueError for anything else."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Pow) and right.denominator == 1 and max(abs(right), abs(left)) <= HIGHEST:
            return Fraction(left ** int(right))
        if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](left, right)
    raise ValueError("no number")


def _read_code(name: str, digits: str) -> tuple[float, tuple[Format, int]]:
    if name not in FORMATS:
        raise ConfigError(f"number is a code, but of an {unknown('format', name, FORMATS)}")
    form = FORMATS[name]
    try:
        code = int(digits, 0)
    except ValueError:
        code = -1
    if not 0 <= code < 1 << form.bits:
        raise ConfigError(
            f"number must be a code of {name}, from 0 to {(1 << form.bits) - 1:#x}, got {digits!r}"
        )
    return form.decode(code), (form, code)


def typed(number: float) -> str:
    """The shortest text that `read_number` makes the same number of; of NaN the sign is lost."""
    if (power := _power(number)) is not None:
        return f"{'-' * (number < 0)}2^{power}"
    return repr(number).removesuffix(".0")


def shown(number: float, digits: int = 12) -> str:
    """A number as the page has it, with at most ``digits`` significant ones."""
    if math.isnan(number):
        return "NaN"
    sign = "−" if math.copysign(1.0, number) < 0 else ""
    if math.isinf(number):
        return f"{sign}∞"
    if (power := _power(number)) is not None:
        return f"{sign}2{raised(power)}"
    return sign + decimal(abs(number), digits)


def decimal(number: float, digits: int = 3) -> str:
    """A finite number in as many significant digits, a power of two as well."""
    mantissa, _, power_of_ten = f"{number:.{digits}g}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return mantissa + (f" × 10{raised(int(power_of_ten))}" if power_of_ten else "")


def signed(number: float) -> str:
    """An error in three digits or, where it is large, as a whole number, with its sign."""
    text = shown(number, 7 if 1e3 <= abs(number) < 1e7 else 3)
    return text if number <= 0 else f"+{text}"


def raised(number: int | str) -> str:
    """An exponent: −24 is "⁻²⁴"."""
    return str(number).translate(_RAISED)


def _power(number: float) -> int | None:
    """k where a number is 2^k or −2^k and too long otherwise; else None."""
    if not number or not math.isfinite(number):
        return None
    fraction, power = math.frexp(abs(number))
    return power - 1 if fraction == 0.5 and abs(power - 1) >= FAR else None
