"""Fit the simulator's calibrations to published step times, and report how good they are, in and out of sample.

    python benchmarks/fit_calibrations.py            print the report
    python benchmarks/fit_calibrations.py --write    fit, and write src/playbook/planning/calibration/*.toml
    … --sweep FILE     with the Ultra-Scale Playbook's sweep of nanotron on H100 (a CSV of its benchmark page)

A fit is least squares of log(predicted / measured), every table with the same weight, and of each parameter's distance
to where physics or a datasheet put it, in units of how well that is known: what a table cannot say stays where it was.
Beside each error stands that of the best constant utilisation: the one number per table that would do without a
simulator.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import mean, median
from typing import Any

from scipy.optimize import least_squares, minimize_scalar

from playbook.errors import PlaybookError
from playbook.planning.calibration import HERE, Calibration
from playbook.planning.jobs import run_of
from playbook.planning.published import TABLES, Measured, seconds_of

#: How well a parameter is known beforehand: the standard deviation of its logarithm.
KNOWN = {
    "matmul.bf16": 0.05, "matmul.fp8": 0.15, "bandwidth": 0.25, "attention": 0.3, "attention_backward": 0.3,
    "launch": 1.0, "intra": 0.25, "inter": 0.4, "congestion": 0.5, "collective": 1.0, "accumulate": 0.7, "jitter": 0.7,
    "unfused": 0.5,
    "products_again": 0.5, "quantise": 0.5, "hidden_tp": 0.7, "hidden_dp": 0.5, "host": 0.5, "floor": 1.0,
    "floor_pipeline": 1.0, "stall": 0.5, "reserved": 0.2,
}  # fmt: skip
#: Shares, which end at 1.
SHARES = {
    "bandwidth",
    "attention",
    "attention_backward",
    "products_again",
    "hidden_tp",
    "hidden_dp",
    "matmul.bf16",
    "matmul.fp8",
}
#: The noise of a measured step time.
NOISE = 0.03


@dataclass(frozen=True)
class Fit:
    """A calibration: ``keys`` are fitted to ``tables``, all else is ``given``."""

    tables: tuple[str, ...]
    keys: tuple[str, ...]
    given: Mapping[str, Any]
    source: str
    others: tuple[str, ...] = field(
        default=()
    )  # to which it is fitted where one of its own tables is left out


A100 = {
    "accelerator": "a100-80",
    "processors": 108,
    "matmul": {"bf16": 0.87},
    "bandwidth": 0.75,
    "launch": 3e-6,
    "intra": 0.9,
}
MEGATRON = {
    **A100,
    "jitter": 0.004,
    "accumulate": 0.0,
    "hidden_dp": 0.5,
    "attention": 0.68,
    "attention_backward": 0.55,
}
H100 = {
    "accelerator": "h100", "processors": 132, "matmul": {"bf16": 0.72, "fp8": 0.63}, "bandwidth": 0.8, "launch": 4e-6,
    "attention": 0.4, "attention_backward": 0.33, "hidden_dp": 0.85, "jitter": 0.004, "accumulate": 4.0,
}  # fmt: skip
FITS = {
    "megatron-a100": Fit(
        ("korthikanti block", "qi", "korthikanti"),
        ("matmul.bf16", "bandwidth", "launch", "intra", "jitter"),
        MEGATRON,
        "Megatron-LM of 2022 and 2023 on A100, fitted to Korthikanti et al. 2022, tables 4 and 5, and Qi et al. 2023, "
        "table 9",
        ("narayanan",),
    ),
    "megatron-2021-a100": Fit(
        ("narayanan",),
        ("bandwidth", "intra", "accumulate", "jitter", "collective"),
        {**MEGATRON, "accumulate": 10.0, "hidden_dp": 0.0},
        "Megatron-LM of 2021 on A100, fitted to Narayanan et al. 2021, table 1; matrix products as in megatron-a100",
        ("korthikanti block", "qi", "korthikanti"),
    ),
    "torchtitan-h100": Fit(
        ("torchtitan",),
        (
            "matmul.bf16", "matmul.fp8", "bandwidth", "attention", "attention_backward", "unfused", "products_again",
            "hidden_tp", "quantise", "jitter",
        ),
        # Power goes with the third power of the clock: 500 W instead of 700 W are a ninth less of it.
        {
            **H100, "matmul": {"bf16": 0.64, "fp8": 0.56}, "attention": 0.36, "attention_backward": 0.29,
            "products_again": 0.5, "hidden_tp": 0.3, "quantise": 3.0,
        },
        "torchtitan on H100 of 500 W, fitted to Liang et al. 2024, tables 1 to 6",
    ),
}  # fmt: skip


def with_values(fit: Fit, values: Sequence[float]) -> dict[str, Any]:
    """A calibration's fields with fitted values, which are logarithms."""
    given = {**fit.given, "matmul": dict(fit.given["matmul"])}
    for key, value in zip(fit.keys, values, strict=True):
        number = min(1.0, math.exp(value)) if key in SHARES else math.exp(value)
        table, _, name = key.rpartition(".")
        (given[table] if table else given)[name] = number
    return given


def default(fit: Fit, key: str) -> float:
    table, _, name = key.rpartition(".")
    if table:
        return fit.given[table][name]
    return fit.given.get(name, next(f.default for f in fields(Calibration) if f.name == name))


def predicted(row: Measured, calibration: Calibration) -> float:
    return seconds_of(row, run_of({**row.job, "calibration": calibration}))


def fitted(fit: Fit, rows: Sequence[Measured]) -> Calibration:
    """The calibration that comes nearest to the rows and to what was known."""
    start = [math.log(default(fit, key)) for key in fit.keys]
    counts = {table: sum(row.table == table for row in rows) for table in {row.table for row in rows}}

    def residuals(values: Sequence[float]) -> list[float]:
        calibration = Calibration("fit", **with_values(fit, values))
        found = [
            math.log(predicted(row, calibration) / row.seconds) / NOISE * math.sqrt(10 / counts[row.table])
            for row in rows
        ]
        return found + [(v - s) / KNOWN[key] for v, s, key in zip(values, start, fit.keys, strict=True)]

    best = least_squares(residuals, start, diff_step=1e-2, max_nfev=30).x if rows else start
    return Calibration("fit", **with_values(fit, best))


@dataclass(frozen=True)
class Errors:
    """Of predictions of a table: mean absolute error, mean error, largest."""

    mean: float
    bias: float
    worst: float

    @classmethod
    def of(cls, found: Iterable[float]) -> Errors:
        errors = list(found)
        return cls(mean(map(abs, errors)), mean(errors), max(map(abs, errors)))

    def __str__(self) -> str:
        return f"{self.mean:6.1%} (bias {self.bias:+.1%}, worst {self.worst:.1%})"


def errors(rows: Sequence[Measured], calibration: Calibration) -> Errors:
    return Errors.of(predicted(row, calibration) / row.seconds - 1 for row in rows)


def constant(rows: Sequence[Measured]) -> Errors:
    """Of the constant share of the peak with the least mean absolute error."""
    ideal = [ideal_seconds(row) for row in rows]

    def off(share: float) -> float:
        return mean(abs(i / share / row.seconds - 1) for i, row in zip(ideal, rows, strict=True))

    share = minimize_scalar(off, bounds=(0.01, 1.0), method="bounded", options={"xatol": 1e-5}).x
    return Errors.of(i / share / row.seconds - 1 for i, row in zip(ideal, rows, strict=True))


def ideal_seconds(row: Measured) -> float:
    """FLOPs of what was measured, recomputation included, over the peak."""
    run = run_of(row.job)
    peak = run.cluster.accelerator.peak("fp8" if run.recipe.fp8 else "bf16")
    if row.of == "step":
        return run.flops.hardware / (run.layout.world_size * peak)
    times = run.times
    passes = times.operations("dense")
    again = times.again(passes)
    parts = {
        "block forward": passes.forward, "block backward": (*passes.inputs, *passes.weights, *again),
        "stage F": passes.forward, "stage B": passes.inputs, "stage W": passes.weights,
    }  # fmt: skip
    blocks = run.options.stage_layers[1] if run.options.stage_layers else 1
    return blocks * sum(operation.work for operation in parts[row.of]) / peak


def sweep(path: Path) -> Iterator[tuple[dict[str, str], Measured]]:
    """Rows of the sweep with what was measured; 0 seconds where a run did not end well."""
    shapes = {
        "1B": {"layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "tied": True},
        "8B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "tied": False},
    }
    llama = {
        "vocab": 131072,
        "gated": True,
        "activation": "silu",
        "norm": "rmsnorm",
        "positions": "rotary",
        "bias": False,
    }
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            layout = f"dp={row['dp']},tp={row['tp']},pp={row['pp']},zero={row['zero']}" + ",sp" * (
                row["tp"] != "1"
            )
            job = {
                "model": {**llama, **shapes[row["model"]], "max_seq": int(row["seq"])}, "cluster": "h100-8",
                "gpus": int(row["gpus"]), "layout": layout, "micro_batch": int(row["mbs"]),
                "global_batch": int(row["gbs"]), "seq": int(row["seq"]), "precision": "bf16-mixed-fp32-grads",
            }  # fmt: skip
            tokens = int(row["gbs"]) * int(row["seq"])
            seconds = tokens / float(row["tok_s_gpu"]) / int(row["gpus"]) if row["status"] == "ok" else 0.0
            yield row, Measured("sweep", f"{row['model']} {layout} {row['mbs']}", job, seconds)


def ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0] * len(values)
    for place, i in enumerate(order):
        found[i] = place
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    x, y, middle = ranks(a), ranks(b), (len(a) - 1) / 2
    return sum((i - middle) * (j - middle) for i, j in zip(x, y, strict=True)) / sum(
        (i - middle) ** 2 for i in x
    )


def sweep_report(
    rows: Sequence[tuple[dict[str, str], Measured]], calibration: Calibration
) -> dict[str, float]:
    """Of one model's rows: how many are rightly said to fit or not, and of those that ran and are said to, how well
    seconds and order are predicted, and what the predicted best of each number of nodes loses to the measured best."""
    right, both = 0, []
    for row, measured in rows:
        try:
            run = run_of({**measured.job, "calibration": calibration})
            step = run.step(limit=False)
        except PlaybookError:
            right += not measured.seconds
            continue
        right += step.fits == bool(measured.seconds)
        if measured.seconds and step.fits:
            both.append((measured.seconds, step.seconds, int(row["gpus"])))
    logs = [math.log(p / m) for m, p, _ in both]
    regrets = []
    for gpus in {g for *_, g in both}:
        here = [(p, m) for m, p, g in both if g == gpus]
        regrets.append(min(here)[1] / min(m for _, m in here) - 1)
    return {
        "rows": len(rows), "timed": len(both), "right about memory": right / len(rows),
        "spearman": spearman([m * g for m, _, g in both], [p * g for _, p, g in both]),
        "mean absolute error": mean(abs(p / m - 1) for m, p, _ in both),
        "median |log|": median(map(abs, logs)), "bias of logs": mean(logs),
        "regret, median": median(regrets), "regret, worst": max(regrets),
    }  # fmt: skip


def toml(name: str, fit: Fit, calibration: Calibration) -> str:
    """The calibration's file."""
    device = ("accelerator", "processors", "matmul", "bandwidth", "attention", "attention_backward", "launch")
    network = ("intra", "inter", "congestion", "collective", "stall", "stall_nodes")
    known = {f.name: f.default for f in fields(Calibration)}
    lines = [
        "[provenance]",
        f"source = {json.dumps(fit.source, ensure_ascii=False)}",
        f"fitted = {json.dumps(list(fit.keys))}",
    ]
    rest = [n for n in known if n not in (*device, *network, "name", "source")]
    for section, names in (("device", device), ("network", network), ("framework", rest)):
        shown = [n for n in names if n in fit.given or n in fit.keys or getattr(calibration, n) != known[n]]
        shown = list(dict.fromkeys(shown))
        if shown:
            lines += ["", f"[{section}]", *(f"{n} = {_value(getattr(calibration, n))}" for n in shown)]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, bool | str):
        return json.dumps(value)
    return f"{value:.4g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the calibrations")
    parser.add_argument("--sweep", type=Path, metavar="FILE", help="the sweep's CSV")
    args = parser.parse_args()
    tables = {name: list(table()) for name, table in TABLES.items()}
    for name, fit in FITS.items():
        calibration = fitted(fit, [row for table in fit.tables for row in tables[table]])
        if args.write:
            (HERE / f"{name}.toml").write_text(toml(name, fit, calibration), encoding="utf-8")
        print(name, {key: _value(default(Fit((), (), vars(calibration), ""), key)) for key in fit.keys})
        for table in fit.tables:
            without = [row for other in (*fit.tables, *fit.others) if other != table for row in tables[other]]
            print(f"  {table:18} fitted   {errors(tables[table], calibration)}")
            print(f"  {'':18} constant {constant(tables[table])}")
            print(f"  {'':18} left out {errors(tables[table], fitted(fit, without))}", flush=True)
    if args.sweep:
        rows = list(sweep(args.sweep))
        calibration = run_of({**rows[0][1].job, "calibration": "nanotron-h100"}).calibration
        for model in ("8B", "1B"):
            print(
                f"sweep {model}", sweep_report([one for one in rows if one[0]["model"] == model], calibration)
            )
    return 0


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
