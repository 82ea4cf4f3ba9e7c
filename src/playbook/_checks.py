"""Checks shared by the frozen dataclasses that describe a model, a layout and a machine.

A field says what it accepts beside its declaration: ``field(metadata={"least": 0})`` or ``{"choices":
(...)}``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from playbook.errors import PlaybookError


def check_fields(instance: Any, error: type[PlaybookError], prefix: str = "") -> None:
    """Check every int, float, bool and str field of a dataclass instance against its declaration.

    Integers must be at least ``metadata["least"]`` (1 by default); a bool is never an int; an int becomes a
    float where a float is declared. Raises ``error`` naming the first wrong field, its value and what would
    be valid.
    """
    for field in dataclasses.fields(instance):
        kind = str(field.type)
        value = getattr(instance, field.name)
        if value is None and kind.endswith("| None"):
            continue
        kind, label = kind.split(" ")[0], prefix + field.name
        if kind == "int":
            check_int(label, value, error, least=field.metadata.get("least", 1))
        elif kind == "float":
            object.__setattr__(instance, field.name, _float(label, value, field.metadata.get("least"), error))
        elif kind == "bool" and not isinstance(value, bool):
            raise error(f"{label} must be true or false, got {value!r}")
        elif kind == "str":
            _check_string(label, value, field.metadata.get("choices"), error)


def check_int(label: str, value: object, error: type[PlaybookError], *, least: int = 1) -> int:
    """``value`` itself if it is an int (no bool) of at least ``least``; raises ``error`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{label} must be an integer, got {value!r}")
    if value < least:
        raise error(f"{label} must be at least {least}, got {value}")
    return value


def check_positive(label: str, value: object, error: type[PlaybookError]) -> float:
    """``value`` as a float if it is a finite number above zero; raises ``error`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise error(f"{label} must be a number above 0, got {value!r}")
    return float(value)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist: the near names if there are any, else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=4, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"


def _float(label: str, value: object, least: float | None, error: type[PlaybookError]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"{label} must be a number, got {value!r}")
    if not abs(value) < float("inf"):  # true for NaN as well
        raise error(f"{label} must be finite, got {value}")
    if least is not None and value < least:
        raise error(f"{label} must be at least {least}, got {value}")
    return float(value)


def _check_string(
    label: str, value: object, choices: tuple[str, ...] | None, error: type[PlaybookError]
) -> None:
    if not isinstance(value, str):
        raise error(f"{label} must be text, got {value!r}")
    if choices and value not in choices:
        raise error(f"{label} must be one of {', '.join(choices)}, got {value!r}")
