"""Measured times as a few numbers: an overhead, a rate, and the sizes below which the rate is not reached.

The half sizes are Hockney's n₁⸝₂ (Hockney and Jesshope 1988, "Parallel Computers 2", section 1.3): the length of a vector
at which a pipelined processor reaches half of its rate.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from playbook.errors import ConfigError

Rows = list[dict[str, Any]]
#: Bytes per parameter that AdamW moves in fp32: weight, gradient and two moments are read, all but the gradient written.
ADAMW_BYTES = 7 * 4


@dataclass(frozen=True)
class Timing:
    """``work`` (FLOPs, bytes, elements) that took ``seconds``, in tensors of these ``sizes``."""

    work: float
    seconds: float
    sizes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rate:
    """seconds = ``overhead_s`` + work / ``per_s`` · (1 + Σ half / size): at a size of its half, half the rate is reached.

    ``errors`` are (predicted − measured) / measured of the times that it was fitted to.
    """

    overhead_s: float
    per_s: float
    halves: dict[str, float]
    errors: tuple[float, ...] = ()

    def seconds(self, work: float, **sizes: float) -> float:
        """Seconds of so much work. Raises KeyError for a size that is missing."""
        slower = 1 + sum(half / sizes[name] for name, half in self.halves.items())
        return self.overhead_s + work / self.per_s * slower

    @property
    def median_error(self) -> float:
        """Of the absolute errors."""
        return statistics.median(map(abs, self.errors)) if self.errors else 0.0

    @property
    def worst_error(self) -> float:
        return max(map(abs, self.errors), default=0.0)


def fit_rate(timings: Sequence[Timing]) -> Rate:
    """The :class:`Rate` that comes nearest to the times in proportion; all timings have the same sizes by name.

    Raises :class:`ConfigError` for fewer timings than unknowns.
    """
    names = list(timings[0].sizes) if timings else []
    if len(timings) < len(names) + 2:
        raise ConfigError(f"a fit of {len(names) + 2} numbers needs as many timings, got {len(timings)}")
    rows = [[1.0, t.work, *(t.work / t.sizes[name] for name in names)] for t in timings]
    overhead, inverse, *slopes = nonnegative(rows, [t.seconds for t in timings], needed=1)
    halves = {name: slope / inverse for name, slope in zip(names, slopes, strict=True)}
    rate = Rate(overhead, 1 / inverse, halves)
    errors = tuple(rate.seconds(t.work, **t.sizes) / t.seconds - 1 for t in timings)
    return Rate(overhead, 1 / inverse, halves, errors)


def nonnegative(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], needed: int | None = None
) -> list[float]:
    """Coefficients of at least 0 for the columns of ``rows`` (n, c): least squares of (predicted − measured)/measured.

    Where the best coefficient would be negative, it is 0 and the others are fitted without it: all subsets of columns
    are tried, for there are few. Column ``needed`` is in each of them. No number
    in ``rows`` may be negative: then every column alone fits.
    """
    a = np.array(rows, dtype=float) / np.array(seconds, dtype=float)[:, None]  # (n, c)
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    best: dict[int, float] = {}
    least = math.inf
    for count in range(1, a.shape[1] + 1):
        for columns in map(list, itertools.combinations(range(a.shape[1]), count)):
            if needed is not None and needed not in columns:
                continue
            some = a[:, columns] / scale[columns]
            found = np.linalg.lstsq(some, np.ones(len(a)), rcond=None)[0]
            squares = float(np.sum((some @ found - 1) ** 2))
            positive = bool(np.all(found >= 0)) and (needed is None or found[columns.index(needed)] > 0)
            if positive and squares < least * (1 - 1e-9):
                best, least = dict(zip(columns, found / scale[columns], strict=True)), squares
    return [float(best.get(column, 0.0)) for column in range(a.shape[1])]


# ---- rows of measurements to numbers


def product_rates(rows: Rows) -> dict[str, Rate]:
    """By dtype, what 2mnk FLOPs take."""
    return {
        dtype: fit_rate(
            [
                Timing(
                    2.0 * r["m"] * r["n"] * r["k"], r["seconds"], {name: r[name] for name in ("m", "n", "k")}
                )
                for r in rows
                if r["dtype"] == dtype
            ]
        )
        for dtype in dict.fromkeys(r["dtype"] for r in rows)
    }


def best_flops(rows: Rows) -> dict[str, float]:
    """By dtype, the most FLOP/s that any product reached."""
    best: dict[str, float] = {}
    for r in rows:
        reached = 2.0 * r["m"] * r["n"] * r["k"] / r["seconds"]
        best[r["dtype"]] = max(best.get(r["dtype"], 0.0), reached)
    return best


def backward_ratio(rows: Rows) -> float:
    """Backward of linear layers over two products of forward each, of all sizes together: the largest count most."""
    both = [r for r in rows if "backward_s" in r]
    return sum(r["backward_s"] for r in both) / sum(2 * r["seconds"] for r in both)


def attention_rates(rows: Rows) -> dict[str, Rate]:
    """What 4·b·heads·s²·d FLOPs of forward take, and twice as many of backward: a causal mask halves no count."""
    found = {}
    for direction, factor in (("forward", 4.0), ("backward", 8.0)):
        found[direction] = fit_rate(
            [
                Timing(
                    factor * r["batch"] * r["heads"] * r["seq"] ** 2 * r["head"],
                    r[f"{direction}_s"],
                    {"seq": r["seq"], "head": r["head"]},
                )
                for r in rows
            ]
        )
    return found


def pass_rates(rows: Rows) -> dict[str, Rate]:
    """By pass, and by ``PASS_backward``, what so many elements take."""
    found = {}
    for name in dict.fromkeys(r["name"] for r in rows):
        mine = [r for r in rows if r["name"] == name]
        found[name] = fit_rate([Timing(r["elements"], r["forward_s"]) for r in mine])
        if "backward_s" in mine[0]:
            found[f"{name}_backward"] = fit_rate([Timing(r["elements"], r["backward_s"]) for r in mine])
    return found


def optimizer_numbers(rows: Rows) -> dict[str, float]:
    """seconds of a step = ``overhead_s`` + tensors · ``per_tensor_s`` + parameters / ``parameters_per_s``."""
    terms = [[1.0, r["tensors"], r["parameters"]] for r in rows]
    overhead, tensor, parameter = nonnegative(terms, [r["seconds"] for r in rows], needed=2)
    return {
        "overhead_s": overhead,
        "per_tensor_s": tensor,
        "parameters_per_s": 1 / parameter,
        "bytes_per_s": ADAMW_BYTES / parameter,
    }


def between(rows: Rows, alone: Sequence[float]) -> dict[str, float]:
    """Training passes of probes with one number of ranks as ``slower`` times what their operations take ``alone``, one by
    one in a cache that has their inputs, plus ``between_s`` for each block: what Python and autograd do meanwhile. And
    ``experts_s`` more for each block whose tokens are sorted by experts."""
    terms = [
        [seconds, row["layers"], row["layers"] * bool(row["experts"])]
        for row, seconds in zip(rows, alone, strict=True)
    ]
    found = nonnegative(terms, [row["seconds"] for row in rows], needed=0)
    errors = [
        abs(float(np.dot(found, term)) / row["seconds"] - 1) for term, row in zip(terms, rows, strict=True)
    ]
    return {
        **dict(zip(("slower", "between_s", "experts_s"), found, strict=True)),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
    }
