"""Rotary angles for texts longer than a model was trained on: its frequencies, stretched. Standard library only.

A shape says it in a text, such as ``yarn:factor=4,original=32768``; what is left out is as the papers have it.

- ``linear:factor=`` turns everything so many times more slowly (Chen et al. 2023, arXiv 2306.15595).
- ``yarn:factor=,original=`` stretches what does not turn once within ``original`` positions, leaves what turns 32 times
  and more, and goes from one to the other between; attention gets sharper by ``attention`` (Peng et al. 2023, arXiv
  2309.00071, sections 3.2 to 3.4). Options: ``fast=32,slow=1,attention=``.
- ``llama3:factor=,original=`` does so by wavelengths, between ``original`` / ``high`` and ``original`` / ``low``
  positions (Llama 3.1's release). Options: ``low=1,high=4``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from playbook._checks import unknown
from playbook.errors import ShapeError

#: Options by kind, with what they are if they are left out; those without a default must be given.
OPTIONS: dict[str, dict[str, float | None]] = {
    "linear": {"factor": None},
    "yarn": {"factor": None, "original": None, "fast": 32.0, "slow": 1.0, "attention": 0.0},
    "llama3": {"factor": None, "original": None, "low": 1.0, "high": 4.0},
}

#: How transformers calls the original length, and all options.
LENGTH = "original_max_position_embeddings"
THEIRS = {
    "factor": "factor", "original": LENGTH, "fast": "beta_fast", "slow": "beta_slow",
    "attention": "attention_factor", "low": "low_freq_factor", "high": "high_freq_factor",
}  # fmt: skip


def parse(text: str) -> tuple[str, dict[str, float]]:
    """A kind and its options. Raises ShapeError for a text that says no such thing."""
    kind, _, rest = text.partition(":")
    if kind not in OPTIONS:
        raise ShapeError(unknown("rope_scaling", kind, tuple(OPTIONS)))
    values = dict(OPTIONS[kind])
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in values:
            raise ShapeError(unknown(f"option of rope_scaling={kind}", key, tuple(values)))
        try:
            values[key] = float(value)
        except ValueError:
            raise ShapeError(f"{key} of rope_scaling={kind} must be a number, got {value!r}") from None
    found = {key: value for key, value in values.items() if value is not None}
    for key in values:
        least = 1.0 if key == "factor" else 0.0 if key == "attention" else 1e-6
        if not least <= found.get(key, -1.0) < math.inf:
            raise ShapeError(f"{key} of rope_scaling={kind} must be a number from {least:g} on, got {text!r}")
    return kind, found


def to_config(text: str) -> dict[str, Any]:
    """As transformers has it among ``rope_parameters``."""
    if not text:
        return {"rope_type": "default"}
    kind, options = parse(text)
    said = {THEIRS[key]: value for key, value in options.items() if key != "attention" or value}
    return {"rope_type": kind, **{key: int(v) if key == LENGTH else v for key, v in said.items()}}


def of_config(config: Mapping[str, Any]) -> str:
    """The scaling of a config.json, "" for none. Raises ShapeError for one that would not be the same here."""
    table: Any = config.get("rope_parameters") or config.get("rope_scaling")
    kind = table.get("rope_type", table.get("type")) if isinstance(table, Mapping) else None
    if kind in (None, "default"):
        return ""
    if kind not in OPTIONS:
        known = ", ".join(("default", *OPTIONS))
        raise ShapeError(f"rope_type must be one of {known} for the same logits, got {kind!r}")
    for key in ("mscale", "mscale_all_dim"):
        if table.get(key):
            raise ShapeError(f"{key} must be left out for the same logits, got {table[key]!r}")
    if table.get("truncate", True) is not True:
        raise ShapeError(f"truncate must be true for the same logits, got {table['truncate']!r}")
    given, said = {LENGTH: config.get("max_position_embeddings"), **table}, []
    for key, usual in OPTIONS[kind].items():
        value = given.get(THEIRS[key])
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ShapeError(f"{THEIRS[key]} must be a number, got {value!r}")
        if value not in (None, usual):
            said.append(f"{key}={value:g}")
    parse(text := f"{kind}:{','.join(said)}")
    return text


def check(text: str) -> None:
    """Raise ShapeError for a text that says no scaling."""
    parse(text)


def frequencies(text: str, head_dim: int, theta: float) -> tuple[list[float], float]:
    """Radians by position of each pair of a head's dims, θ^(−2i/d) before they are stretched, and what cosines and sines
    are multiplied with."""
    kind, values = parse(text)
    return KINDS[kind]([theta ** (-i / head_dim) for i in range(0, head_dim, 2)], theta, **values)


def _linear(plain: list[float], theta: float, factor: float) -> tuple[list[float], float]:
    return [each / factor for each in plain], 1.0


def _yarn(
    plain: list[float],
    theta: float,
    factor: float,
    original: float,
    fast: float,
    slow: float,
    attention: float,
) -> tuple[list[float], float]:
    def pair(turns: float) -> float:
        """Which pair turns so often within the original length."""
        return len(plain) * math.log(original / (turns * 2 * math.pi)) / math.log(theta)

    first, last = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), 2 * len(plain) - 1)
    width = last - first or 0.001
    slower = [min(1.0, max(0.0, (i - first) / width)) for i in range(len(plain))]
    found = [each * (1 - part + part / factor) for each, part in zip(plain, slower, strict=True)]
    return found, attention or 0.1 * math.log(factor) + 1.0


def _llama3(
    plain: list[float], theta: float, factor: float, original: float, low: float, high: float
) -> tuple[list[float], float]:
    def scaled(each: float) -> float:
        turns = original * each / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low))) if high != low else float(turns > low)
        return each * (kept + (1 - kept) / factor)

    return [scaled(each) for each in plain], 1.0


KINDS: dict[str, Callable[..., tuple[list[float], float]]] = {
    "linear": _linear, "yarn": _yarn, "llama3": _llama3,
}  # fmt: skip
