"""Checks shared by the frozen dataclasses that describe a model, a layout and a machine, and the memory of this one.

A field says what it accepts beside its declaration: ``told(1, "what it is", least=0, most=100)``, ``choices=(...)``. What
it says of itself is what its flag on the command line says (``commands/flags.py``).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.errors import PlaybookError

#: What a check raises.
Error = type[PlaybookError]
#: No size of a tensor is larger, and no product of such sizes is too large for a float.
MOST = 2**63 - 1


def told(default: Any, help: str = "", **metadata: Any) -> Any:
    """A field of a dataclass with a default, what it is in words, and its limits: ``least``, ``most``, ``below``,
    ``choices``. What else a flag needs to know of it is ``metavar`` and ``unit``."""
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


def check_fields(instance: Any, error: Error, prefix: str = "", only: Iterable[str] | None = None) -> None:
    """Check every int, float, bool and str field of a dataclass instance, or ``only`` some, against its declaration.

    Integers must be at least ``metadata["least"]`` (1 by default) and at most ``metadata["most"]``; a bool is
    never an int; an int becomes a float where a float is declared, which may have to be ``below`` a number. Raises
    ``error`` naming the first wrong field, its value and what would be valid.
    """
    declared = _declared(instance.__class__)
    for name in declared if only is None else only:
        kind, optional, metadata = declared[name]
        value, label = getattr(instance, name), prefix + name
        if value is None and optional:
            continue
        if kind == "int":
            check_int(label, value, error, least=metadata.get("least", 1), most=metadata.get("most", MOST))
        elif kind == "float":
            object.__setattr__(instance, name, _float(label, value, metadata, error))
        elif kind == "bool" and not isinstance(value, bool):
            raise error(f"{label} must be true or false, got {value!r}")
        elif kind == "str":
            _check_string(label, value, metadata.get("choices"), error)


@cache
def _declared(kind: type) -> dict[str, tuple[str, bool, Mapping[str, Any]]]:
    """Of each field what it is, whether it may be None, and its limits."""
    fields = {field.name: (str(field.type), field.metadata) for field in dataclasses.fields(kind)}
    ends = " | None"
    return {name: (t.removesuffix(ends), t.endswith(ends), limits) for name, (t, limits) in fields.items()}


def check_int(label: str, value: object, error: Error, *, least: int = 1, most: int = MOST) -> int:
    """``value`` itself if it is an int (no bool) from ``least`` to ``most``; raises ``error`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{label} must be an integer, got {value!r}")
    if value < least:
        raise error(f"{label} must be at least {least}, got {value}")
    if value > most:
        raise error(f"{label} must be at most {most}, got {value}")
    return value


def typed_int(label: str, value: object, error: Error, *, least: int = 1, most: int = MOST) -> int:
    """:func:`check_int` of an int or of its text, as a reader types it."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,15}\s*", value):
        value = int(value)
    return check_int(label, value, error, least=least, most=most)


def check_positive(label: str, value: object, error: Error) -> float:
    """``value`` as a float if it is a finite number above zero; raises ``error`` otherwise."""
    number = _as_float(value)
    if number is None or not 0 < number < float("inf"):
        raise error(f"{label} must be a number above 0, got {value!r}")
    return number


def divisors(whole: int) -> list[int]:
    """Divisors of ``whole``, the smallest first; of a number above 10 billion, those that are quick to find."""
    small = [d for d in range(1, min(math.isqrt(whole), 100_000) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})


def check_divides(label: str, value: int, what: str, whole: int, error: Error) -> None:
    """Raise ``error`` unless ``value`` divides ``whole``, with the numbers that would."""
    if whole % value:
        known = divisors(whole)
        valid = ", ".join(map(str, known[:8])) + (", …" if known[8:] else "")
        raise error(f"{label} must divide {what} = {whole} ({valid}), got {value}")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist: the near names if there are any, else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=4, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"


def _float(label: str, value: object, limits: Mapping[str, Any], error: Error) -> float:
    number = _as_float(value)
    if number is None:
        raise error(f"{label} must be a number, got {value!r}")
    if not abs(number) < float("inf"):  # true for NaN as well
        raise error(f"{label} must be finite, got {value}")
    least, below = limits.get("least"), limits.get("below")
    if least is not None and number < least:
        raise error(f"{label} must be at least {least}, got {value}")
    if below is not None and number >= below:
        raise error(f"{label} must be below {below}, got {value}")
    return number


def _as_float(value: object) -> float | None:
    """An int or float (no bool) as a float, infinite where an int is too large for one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _check_string(label: str, value: object, choices: tuple[str, ...] | None, error: Error) -> None:
    if not isinstance(value, str):
        raise error(f"{label} must be text, got {value!r}")
    if choices and value not in choices:
        raise error(f"{label} must be one of {', '.join(choices)}, got {value!r}")


def system_memory_bytes() -> int | None:
    """Bytes of main memory, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
