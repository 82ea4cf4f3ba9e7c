"""Fit the simulator's calibrations to published step times, and report how good they are, in and out of sample.

    python benchmarks/fit_calibrations.py            print the report
    python benchmarks/fit_calibrations.py --write    fit, and write src/playbook/planning/calibration/*.toml
    … --record FILE    write the report as JSON, too
    … --sweep FILE     the same with the Ultra-Scale Playbook's sweep of nanotron on H100 (a CSV of its benchmark page)
    … --sweep FILE --squares FILE    fit nothing; of each model and number of nodes of the sweep, write the layout that
                     was fastest, and the one that its calibration calls fastest, and speeds over dp, tp and pp, as JSON

A fit is least squares of log(predicted / measured), every table with the same weight, and of each parameter's distance
to where physics or a datasheet put it, in units of how well that is known: what a table cannot say stays where it was.
Runs of the sweep that stalled lie far off whatever describes the others, so that its residuals count as in a Cauchy
distribution. Beside each error stands that of the best constant utilisation: the one number per table that would do
without a simulator.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from scipy.optimize import least_squares, minimize_scalar
from scipy.stats import spearmanr

from playbook.bench import provenance
from playbook.block import DENSE
from playbook.errors import PlaybookError
from playbook.hardware import NETWORK_LATENCY
from playbook.planning.calibration import HERE, Calibration
from playbook.planning.jobs import run_of
from playbook_book.published import TABLES, Measured, seconds_of

#: How well a parameter is known beforehand: the standard deviation of its logarithm.
KNOWN = {
    "matmul.bf16": 0.05, "matmul.fp8": 0.15, "bandwidth": 0.25, "attention": 0.3, "attention_backward": 0.3,
    "launch": 1.0, "intra": 0.25, "inter": 0.4, "congestion": 0.5, "collective": 1.0, "accumulate": 0.7, "jitter": 0.7,
    "unfused": 0.5,
    "products_again": 0.5, "quantise": 0.5, "hidden_tp": 0.7, "hidden_dp": 0.5, "host": 0.5, "floor": 1.0,
    "floor_pipeline": 1.0, "step": 1.0,
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
#: Seconds a micro-batch by which runs that stalled were late.
STALLED = 0.15
#: Where the best of the sweep come from, for whoever meets them in this repository.
SQUARES = (
    "Tazi et al. 2025, The Ultra-Scale Playbook, https://huggingface.co/spaces/nanotron/ultrascale-playbook, its page of "
    "benchmarks: some of its 1,643 runs are quoted, as facts; no licence is named for them"
)
#: Seconds of a message between nodes over EFA, which connected those of the sweep (fit_collectives.py: 3.7 times NCCL's).
EFA = 3.7 * NETWORK_LATENCY
#: Rows of the sweep that a fit sees: more do not change it.
SAMPLE = 400


@dataclass(frozen=True)
class Fit:
    """A calibration: ``keys`` are fitted to ``tables``, all else is ``given``."""

    tables: tuple[str, ...]
    keys: tuple[str, ...]
    given: Mapping[str, Any]
    source: str
    #: To which it is fitted where one of its own tables is left out.
    others: tuple[str, ...] = ()
    #: The noise of a measured step time, whose tails are those of a Cauchy distribution where they are ``heavy``.
    noise: float = 0.03
    heavy: bool = False


A100 = {
    "accelerator": "a100-80",
    "processors": 108,
    "matmul": {"bf16": 0.87},
    "bandwidth": 0.75,
    "launch": 3e-6,
}
MEGATRON = {
    **A100,
    "jitter": 0.004,
    "accumulate": 0.0,
    "hidden_dp": 0.5,
    # Small blocks on one node take 3.4 ms and more, whatever is in them: the host launches 32 operations, about three
    # kernels each, from Python (VIA-Research/vTrain, data/ground_truth_single.csv).
    "host": 1e-4,
    "attention": 0.68,
    "attention_backward": 0.55,
}
H100 = {
    "accelerator": "h100", "processors": 132, "matmul": {"bf16": 0.72, "fp8": 0.63}, "bandwidth": 0.8, "launch": 4e-6,
    "attention": 0.4, "attention_backward": 0.33, "hidden_dp": 0.85, "jitter": 0.004, "accumulate": 4.0,
}  # fmt: skip
FOUNDRY = {"kernels": ["cross-entropy"], "keeps": ["logits"]}
FITS = {
    "megatron-a100": Fit(
        ("korthikanti block", "qi", "korthikanti"),
        # In backward an all-reduce travels while the gradient of a weight is computed.
        ("matmul.bf16", "bandwidth", "launch", "hidden_tp", "jitter"),
        {**MEGATRON, "hidden_tp": 0.2},
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
        # Products reach what they do on nanotron's H100, with FP8 as much slower than on paper as ml-engineering's table
        # has it; FlashAttention-2 reaches 340 TFLOP/s forward and 290 backward (Shah et al. 2024, arXiv 2407.08608,
        # figures 5 and 6). All that at 700 W: clocks at 500 W are taken as the square root of the power, between the
        # cube root of ideal voltage scaling and none of it.
        {
            **H100, "matmul": {"bf16": 0.58, "fp8": 0.51}, "attention": 0.29, "attention_backward": 0.245,
            "products_again": 0.5, "hidden_tp": 0.3, "quantise": 3.0, "jitter": 0.01,
            "keeps": ["eager-loss", "every-second-product", "whole-gradients"],
        },
        "torchtitan on H100 of 500 W, fitted to Liang et al. 2024, tables 1 to 6",
    ),
    # Kernels of FlashAttention in Triton, of before FlashAttention-2 (Dao 2023, arXiv 2307.08691, figures 4 to 6).
    "fsdp-a100": Fit(
        ("fsdp a100",),
        ("matmul.bf16", "bandwidth", "attention", "attention_backward", "unfused", "accumulate", "jitter"),
        {**A100, **FOUNDRY, "attention": 0.35, "attention_backward": 0.3, "jitter": 0.01, "accumulate": 4.0},
        "PyTorch's FSDP on A100, fitted to MosaicML's LLM Foundry, scripts/train/benchmarking (2023)",
        ("korthikanti block", "qi", "korthikanti"),
    ),
    "fsdp-h100": Fit(
        ("fsdp h100",),
        (
            "matmul.bf16", "matmul.fp8", "bandwidth", "attention", "attention_backward", "quantise", "accumulate",
            "jitter",
        ),
        {**H100, **FOUNDRY, "attention": 0.22, "attention_backward": 0.18, "jitter": 0.01, "quantise": 3.0},
        "PyTorch's FSDP on H100, fitted to MosaicML's LLM Foundry, scripts/train/benchmarking (2023)",
    ),
    # cuDNN's attention (Shah et al. 2024, figures 5 and 6), casts to FP8 in the kernels that come before.
    "megatron-h100": Fit(
        ("nemo",),
        ("matmul.fp8", "bandwidth", "attention", "attention_backward", "quantise", "hidden_tp", "jitter"),
        {
            **H100, "attention": 0.55, "attention_backward": 0.45, "hidden_tp": 0.5, "hidden_dp": 0.9, "quantise": 1.0,
            "jitter": 0.01, "keeps": ["remainders"],
        },
        "Megatron-Core on H100 in FP8, fitted to NVIDIA's summary of NeMo 24.07",
    ),
    # Products reach what SimuMax measured of them there (configs/system/b200_bf16_ceperm.json). All its runs have eight
    # GPUs, so that jitter cannot be told from slower kernels.
    "megatron-b200": Fit(
        ("simumax",),
        ("matmul.bf16", "bandwidth", "attention", "attention_backward", "launch", "accumulate", "step"),
        {
            "accelerator": "b200", "processors": 148, "matmul": {"bf16": 0.50}, "bandwidth": 0.74,
            "attention": 0.45, "attention_backward": 0.4, "launch": 5e-6, "hidden_dp": 0.9, "jitter": 0.01,
            "accumulate": 4.0, "step": 0.01, "kernels": ["attention", "cross-entropy", "norms", "swiglu"],
            "keeps": ["dummy-gradients", "gathered-input"],
        },
        "Megatron-LM of 2026 on B200 in bf16, fitted to SimuMax's release 1.2, docs/b200: 31 runs of 8 GPUs without "
        "overlap; hidden_dp is carried over from b200, jitter is assumed, the network is as on paper",
    ),
    # Stages are cut by their cost. With ZeRO there is no DDP (trainer.py, make_ddp), so that gradients are reduced after
    # backward. Each run of the sweep is its third step alone (trainer.py, NANOTRON_BENCHMARK), stalled or not.
    "nanotron-h100": Fit(
        ("sweep 8B", "sweep 1B"),
        (
            "matmul.bf16", "bandwidth", "launch", "intra", "hidden_tp", "inter", "congestion", "collective", "host",
            "floor", "floor_pipeline", "unfused", "hidden_dp", "accumulate", "step", "jitter",
        ),
        {
            **H100, "matmul": {"bf16": 0.71}, "launch": 5e-6, "hidden_tp": 0.2, "inter": 0.7, "congestion": 0.2,
            "host": 1e-5, "floor": 5e-4, "floor_pipeline": 4e-3, "fused": False, "unfused": 0.5, "hidden_pp": 0.0,
            "hidden_zero": False, "balanced": True, "accumulate": 10.0, "step": 0.05, "reserved": 1.3,
            "stall": 1.05, "stall_nodes": 32, "stall_nodes_plain": 4,
        },
        "nanotron on H100 with a congested network, fitted to the Ultra-Scale Playbook's sweep of 1B and 8B models; "
        "floors and stalls are what its slowest runs have in common, not what explains them",
        noise=0.05,
        heavy=True,
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
    if len(rows) > SAMPLE:
        rows = random.Random(0).sample(rows, SAMPLE)
    counts = {table: sum(row.table == table for row in rows) for table in {row.table for row in rows}}

    def residuals(values: Sequence[float]) -> list[float]:
        calibration = Calibration("fit", **with_values(fit, values))
        found = [math.log(predicted(row, calibration) / row.seconds) / fit.noise for row in rows]
        if fit.heavy:
            found = [math.copysign(math.sqrt(2 * math.log1p(x * x / 2)), x) for x in found]
        else:
            found = [x * math.sqrt(10 / counts[row.table]) for x, row in zip(found, rows, strict=True)]
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
    passes = times.operations(DENSE)
    again = times.again(DENSE, passes)
    parts = {
        "block forward": passes.forward, "block backward": (*passes.inputs, *passes.weights, *again),
        "stage F": passes.forward, "stage B": passes.inputs, "stage W": passes.weights,
    }  # fmt: skip
    blocks = run.layout.stage_layers[1] if run.layout.stage_layers else 1
    return blocks * sum(operation.work for operation in parts[row.of]) / peak


def sweep_job(model: str, layout: str, micro_batch: int, gpus: int, batch: int, seq: int) -> dict[str, Any]:
    """What a run of the sweep trains: ``model`` is "1B" or "8B", ``layout`` has no micro-batch."""
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
    return {
        "model": {**llama, **shapes[model], "max_seq": seq}, "cluster": {"base": "h100-8", "inter_latency": EFA},
        "gpus": gpus, "layout": layout,
        "micro_batch": micro_batch, "global_batch": batch, "seq": seq, "precision": "bf16-mixed-fp32-grads",
    }  # fmt: skip


def sweep(path: Path) -> Iterator[Measured]:
    """Rows of the sweep with what was measured; 0 seconds where a run did not end well."""
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            layout = f"dp={row['dp']},tp={row['tp']},pp={row['pp']},zero={row['zero']}" + ",sp" * (
                row["tp"] != "1"
            )
            sizes = [int(row[name]) for name in ("mbs", "gpus", "gbs", "seq")]
            job = sweep_job(row["model"], layout, *sizes)
            tokens = job["global_batch"] * job["seq"]
            seconds = tokens / float(row["tok_s_gpu"]) / job["gpus"] if row["status"] == "ok" else 0.0
            yield Measured(f"sweep {row['model']}", f"{layout},micro_batch={row['mbs']}", job, seconds)


def sweep_report(rows: Sequence[Measured], calibration: Calibration) -> dict[str, float]:
    """Of one model's rows: how many are rightly said to fit or not, and of those that ran and are said to, how well
    seconds and order are predicted, and what the predicted best of each number of nodes loses to the measured best.

    Order is that of steps on any number of GPUs, and that of GPU seconds: of what a layout makes of its GPUs. Rows that
    took much longer for each micro-batch than without the calibration's stalls are said to have stalled: a choice by
    what came out, which shows what else is wrong."""
    right, both, calm = 0, [], []
    for row in rows:
        try:
            step = run_of({**row.job, "calibration": calibration}).step(limit=False)
        except PlaybookError:
            right += not row.seconds
            continue
        right += step.fits == bool(row.seconds)
        if row.seconds and step.fits:
            both.append((row.seconds, step.seconds, step.gpus))
            run = run_of({**row.job, "calibration": replace(calibration, stall=0.0)})
            turns = run.layout.grad_acc + run.layout.pp - 1
            if row.seconds - run.seconds < STALLED * turns:
                calm.append((row.seconds, run.seconds, step.gpus))
    regrets = []
    for gpus in {g for *_, g in both}:
        here = [(p, m) for m, p, g in both if g == gpus]
        regrets.append(min(here)[1] / min(m for _, m in here) - 1)
    return {
        "rows": len(rows), "timed": len(both), "right about memory": right / len(rows),
        "order of steps": spearmanr([m for m, *_ in both], [p for _, p, _ in both]).statistic,
        **order_and_error("", both),
        "regret, median": median(regrets), "regret, worst": max(regrets),
        "stalled": 1 - len(calm) / len(both), **order_and_error(" of others", calm),
    }  # fmt: skip


def squares(rows: Sequence[Measured], calibration: Calibration | str) -> list[dict[str, Any]]:
    """For each table and number of GPUs in ``rows`` the layout that was measured as the fastest and the one that is
    predicted to be: among those that ran, and of these among those that are said to fit. ``seconds`` are measured.

    And the one whose twin was the fastest, which has the other ZeRO stage and else the same: what a choice is worth that
    rests on a measurement of a neighbour, so on nothing but how the runs scatter."""
    found = []
    for table, gpus in sorted({(row.table, row.job["gpus"]) for row in rows}):
        ran = [row for row in rows if (row.table, row.job["gpus"]) == (table, gpus) and row.seconds]
        steps = [(run_of({**row.job, "calibration": calibration}).step(limit=False), row) for row in ran]
        fitting = [(step.seconds, row) for step, row in steps if step.fits]
        first = min(ran, key=lambda row: row.seconds)
        seconds, said = min(fitting, key=lambda pair: pair[0])
        square: dict[str, Any] = {"table": table, "nodes": gpus // 8, "ran": len(ran)}
        square["tokens"] = first.job["global_batch"] * first.job["seq"]
        square["measured best"] = {"layout": first.name, "seconds": first.seconds}
        square["predicted best"] = {"layout": said.name, "seconds": said.seconds, "predicted": seconds}
        twins = {row.name: row for row in ran}
        pairs = [(twin.seconds, row) for row in ran if (twin := twins.get(twin_of(row.name), row)) is not row]
        if pairs:
            seconds, said = min(pairs, key=lambda pair: pair[0])
            square["twin's best"] = {"layout": said.name, "seconds": said.seconds, "twin": seconds}
        found.append(square)
    return found


def twin_of(layout: str) -> str:
    """The same layout without ZeRO, or with its first stage."""
    return re.sub(r"zero=[01]", lambda zero: "zero=1" if zero[0] == "zero=0" else "zero=0", layout)


#: Curves of the sweep: an axis, the model, and its number of nodes, or None where the axis adds nodes.
CURVES = (("dp", "sweep 1B", None), ("tp", "sweep 8B", 4), ("pp", "sweep 8B", 4))


def scaling(rows: Sequence[Measured], calibration: Calibration | str) -> list[dict[str, Any]]:
    """For each of ``CURVES`` and degree of its axis the fastest run that uses no other axis but dp, in tokens per second
    and GPU, with what is predicted of it."""
    found = []
    for axis, table, nodes in CURVES:
        best: dict[int, Measured] = {}
        for row in rows:
            degrees = {name: int(re.search(rf"\b{name}=(\d+)", row.name)[1]) for name in ("dp", "tp", "pp")}
            others = max(degrees[name] for name in ("tp", "pp") if name != axis)
            if (
                not row.seconds
                or row.table != table
                or others > 1
                or nodes not in (None, row.job["gpus"] // 8)
            ):
                continue
            degree = degrees[axis]
            if degree not in best or row.seconds < best[degree].seconds:
                best[degree] = row
        for degree, row in sorted(best.items()):
            step = run_of({**row.job, "calibration": calibration}).step(limit=False)
            tokens = row.job["global_batch"] * row.job["seq"] / row.job["gpus"]
            rates = {"measured": tokens / row.seconds, "predicted": tokens / step.seconds}
            found.append({"axis": axis, "table": table, "degree": degree, "layout": row.name, **rates})
    return found


def order_and_error(whose: str, both: Sequence[tuple[float, float, int]]) -> dict[str, float]:
    """Of measured and predicted seconds on so many GPUs."""
    logs = [abs(math.log(p / m)) for m, p, _ in both]
    order = spearmanr([m * g for m, _, g in both], [p * g for _, p, g in both]).statistic
    return {f"order of GPU seconds{whose}": order, f"median error{whose}": median(logs)}


def toml(name: str, fit: Fit, calibration: Calibration) -> str:
    """The calibration's file."""
    device = ("accelerator", "processors", "matmul", "bandwidth", "attention", "attention_backward", "launch")
    network = ("intra", "inter", "congestion", "collective", "stall", "stall_nodes", "stall_nodes_plain")
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
    if isinstance(value, bool | str | frozenset):
        return json.dumps(sorted(value) if isinstance(value, frozenset) else value)
    if isinstance(value, tuple):
        return "[" + ", ".join(f"{number:.3f}" for number in value) + "]"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def report(
    name: str, fit: Fit, tables: Mapping[str, Sequence[Measured]]
) -> tuple[Calibration, dict[str, Any], dict[str, list[float]]]:
    """Fit a calibration; print and return how good it is of each of its tables, and how good where that is left out; and
    measured over predicted of the rows that were."""

    def of(some: Iterable[str]) -> Calibration:
        return fitted(fit, [row for table in some for row in tables.get(table, ()) if row.seconds])

    calibration, found = of(fit.tables), dict[str, Any]()
    ratios: dict[str, list[float]] = {}
    print(name, {key: _value(default(Fit((), (), vars(calibration), ""), key)) for key in fit.keys})
    for table in fit.tables:
        rows, without = tables[table], of(t for t in (*fit.tables, *fit.others) if t != table)
        if table.startswith("sweep"):
            found[table] = {
                "fitted": sweep_report(rows, calibration),
                "left out": sweep_report(rows, without),
            }
        else:
            told = {"fitted": errors(rows, calibration), "left out": errors(rows, without)}
            found[table] = {label: vars(one) for label, one in (told | {"constant": constant(rows)}).items()}
        ratios[table] = [
            round(row.seconds / predicted(row, without), 4)
            for row in rows
            if row.seconds and fits(row, without)
        ]
        for label, numbers in found[table].items():
            shown = ", ".join(f"{key} {value:.3g}" for key, value in numbers.items())
            print(f"  {table:18} {label:8} {shown}", flush=True)
    least, *_, most = quantiles([ratio for some in ratios.values() for ratio in some], n=10)
    print(f"  four of five left out took {least:.3f} to {most:.3f} of what was predicted", flush=True)
    return replace(calibration, interval=(least, most)), found, ratios


def fits(row: Measured, calibration: Calibration) -> bool:
    """Whether a row of a sweep is said to fit, so that its time counts; that of other tables always does."""
    return (
        not row.table.startswith("sweep")
        or run_of({**row.job, "calibration": calibration}).step(limit=False).fits
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the calibrations")
    parser.add_argument("--sweep", type=Path, metavar="FILE", help="the sweep's CSV")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the report as JSON, too")
    parser.add_argument("--squares", type=Path, metavar="FILE", help="write the sweep's best layouts as JSON")
    args = parser.parse_args()
    if args.squares:
        command = "python benchmarks/fit_calibrations.py --sweep playbook_sweep.csv --squares FILE"
        rows = list(sweep(args.sweep))
        record = {"provenance": provenance("cpu") | {"command": command}, "source": SQUARES}
        record["squares"] = squares(rows, "nanotron-h100")
        record["scaling"] = scaling(rows, "nanotron-h100")
        args.squares.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return 0
    tables = {name: list(table()) for name, table in TABLES.items()}
    for row in sweep(args.sweep) if args.sweep else ():
        tables.setdefault(row.table, []).append(row)
    found, ratios = {}, {}
    for name, fit in FITS.items():
        if not tables.keys() & set(fit.tables):
            continue
        calibration, found[name], ratios[name] = report(name, fit, tables)
        if args.write:
            (HERE / f"{name}.toml").write_text(toml(name, fit, calibration), encoding="utf-8")
    if args.record:
        command = "python benchmarks/fit_calibrations.py" + " --sweep playbook_sweep.csv" * bool(args.sweep)
        record = {"provenance": provenance("cpu") | {"command": command}, "calibrations": found}
        record["left out"] = ratios
        args.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
