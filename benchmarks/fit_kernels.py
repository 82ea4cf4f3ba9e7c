"""Fit what a launch and a FLOP cost (`modelled.Reached`) to published times, and predict each source by the others.

    PYTHONPATH=src:book python benchmarks/fit_kernels.py           --rows: each of them

The times are in published_kernels.csv, where they come from in published_kernels.md. A fit is least squares of
log(predicted / published), every source with the same weight.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import median

from scipy.optimize import least_squares
from scipy.stats import spearmanr

from playbook_book.kernels.modelled import FITTED, GPUS, Gpu, Kernel, Reached, limits, predicted
from playbook_book.kernels.modelled_kernels import Shape, attention, product

#: Where a fit begins: 700 watts and some 750 TFLOP/s, 400 and 285, 16 lanes' worth of the former, a launch.
STARTED = Reached(0.9e-12, 1.4e-12, 8e-12, 4e-6)
FILE = Path(__file__).parent / "published_kernels.csv"


@dataclass(frozen=True)
class Row:
    """A published kernel, and what it reached."""

    said: dict[str, str]

    @property
    def source(self) -> str:
        return self.said["source_id"]

    @property
    def gpu(self) -> Gpu:
        return GPUS[self.said["gpu"]]

    def number(self, name: str) -> int:
        return int(self.said[name])

    @cached_property
    def kernel(self) -> Kernel:
        said, number = self.said, self.number
        if said["kind"] == "product":
            return product(said["kernel"], number("m"), number("n"), number("k"), number("bytes"), self.gpu)
        sizes = (number(name) for name in ("batch", "heads", "kv_heads", "seq", "d"))
        return attention(said["kernel"], said["direction"], Shape(*sizes, bool(number("causal"))), self.gpu)

    @property
    def seconds(self) -> float:
        return self.kernel.flops / float(self.said["tflops"]) / 1e12

    def predicted(self, reached: Reached = FITTED) -> float:
        return predicted(self.kernel, self.gpu, reached)


def rows() -> list[Row]:
    with FILE.open(encoding="utf-8") as file:
        return [Row(row) for row in csv.DictReader(file)]


def fit(table: Sequence[Row]) -> Reached:
    """Least squares, in logarithms."""
    weight = Counter(row.source for row in table)
    start = astuple(STARTED)

    def off(logs: Sequence[float]) -> list[float]:
        reached = Reached(*(value * math.exp(log) for value, log in zip(start, logs, strict=True)))
        errors = [
            math.log(row.predicted(reached) / row.seconds) / math.sqrt(weight[row.source]) for row in table
        ]
        return [*errors, *(log / 10 for log in logs)]  # what no row tells stays where it was

    found = least_squares(off, [0.0] * len(start), loss="soft_l1", f_scale=0.2, diff_step=0.02)
    return Reached(*(value * math.exp(log) for value, log in zip(start, found.x, strict=True)))


@dataclass(frozen=True)
class Verdict:
    """Of predictions beside published times: median of the errors, what nine of ten keep to, Spearman's ρ."""

    rows: int
    error: float
    most: float
    seconds: float
    tflops: float

    def __str__(self) -> str:
        off = f"median error {self.error:5.1%}, nine of ten {self.most:5.1%}"
        return f"{self.rows:4} rows, {off}, ρ {self.seconds:.3f} of times, {self.tflops:.3f} of TFLOP/s"


def verdict(pairs: Sequence[tuple[Row, float]]) -> Verdict:
    told, found = [row.seconds for row, _ in pairs], [seconds for _, seconds in pairs]
    rates = [
        [row.kernel.flops / seconds for (row, _), seconds in zip(pairs, some, strict=True)]
        for some in (told, found)
    ]
    off = sorted(abs(b / a - 1) for a, b in zip(told, found, strict=True))
    ranks = (float(spearmanr(*two).statistic) for two in ((told, found), rates))
    return Verdict(len(pairs), median(off), off[int(0.9 * len(off))], *ranks)


def held_back(table: Sequence[Row]) -> list[tuple[Row, float]]:
    """Every row with what a fit to all other sources predicts."""
    found = []
    for source in dict.fromkeys(row.source for row in table):
        reached = fit([row for row in table if row.source != source])
        found += [(row, row.predicted(reached)) for row in table if row.source == source]
    return found


def main() -> None:
    table = rows()
    reached = fit(table)
    print("fitted: ", ", ".join(f"{f.name}={getattr(reached, f.name):.3g}" for f in fields(reached)))
    print("fitted  ", verdict([(row, row.predicted(reached)) for row in table]))
    apart = held_back(table)
    print("held    ", verdict(apart))
    for source in dict.fromkeys(row.source for row in table):
        print(f"{source:20}", verdict([pair for pair in apart if pair[0].source == source]))
    if "--rows" in sys.argv[1:]:
        for row, seconds in apart:
            by = limits(row.kernel, row.gpu, reached)
            told = " ".join(
                value for name, value in row.said.items() if name not in ("tflops", "bytes") and value
            )
            print(
                f"{told}: {row.said['tflops']}, {row.kernel.flops / seconds / 1e12:.0f} by {max(by, key=by.__getitem__)}"
            )


if __name__ == "__main__":
    main()
