"""``playbook calibrate``: what this machine does in how much time, as a TOML file that plans can be made with.

The file, all times in seconds, sizes in bytes or elements, rates per second:

    [provenance]            date, command, python, torch, platform, processor, threads (of each process), commit, gpu …
    seconds                 how long the measurement took

    [device]
    name, kind              the processor or GPU; "cpu" or "cuda"
    memory_bytes            of the machine, or of one GPU
    peak_flops              {fp32 = …, bf16 = …}: the best that any product reached
    gemm_overhead_s         launch and dispatch of one product, by dtype
    gemm_flops              fitted rate of endless products, by dtype
    gemm_half               {fp32 = {m = …, n = …, k = …}}: seconds of (m, k)·(k, n) are
                            gemm_overhead_s + 2mnk / gemm_flops · (1 + m_half / m + n_half / n + k_half / k)
    gemm_error              {fp32 = {median = …, worst = …}}: of that formula, over the measured grid, in proportion
    gemm_backward_ratio     backward of a linear layer over two products of forward
    memory_bandwidth        of large copies, bytes read and written together
    cache_bandwidth         of the fastest copy
    op_overhead_s           an elementwise operation on one number

    [device.attention.forward]   and backward: seconds are overhead_s + F / flops · (1 + seq_half / s + head_half / d),
                            F = 4·b·heads·s²·d FLOPs forward and 8·b·heads·s²·d backward (a causal mask halves no count);
                            efficiency = flops / peak_flops of dtype, above 1 where the half that
                            the mask throws away is skipped; median_error, worst_error

    [device.passes.NAME]    add, gelu, silu, layer_norm, rms_norm, rotary, cross_entropy (elements of the logits),
                            square_sum, and NAME_backward: seconds are overhead_s + elements / elements_per_s;
                            bytes_per_element as counted from the operations; median_error, worst_error

    [device.optimizer]      a step of AdamW: seconds are overhead_s + tensors · per_tensor_s + parameters /
                            parameters_per_s; bytes_per_s counts 28 bytes of each parameter

    [[device.blocks]]       for 1 and each number of ranks: ranks, slower, between_s, experts_s, median_error,
                            worst_error. Forward and backward of small models that all ranks train at once take slower ·
                            (their operations by the formulas above) + between_s · blocks + experts_s · blocks with
                            experts: caches and cores are shared, and Python works

    [network]               not there on a machine with one GPU
    backend                 "gloo" or "nccl"
    ranks                   numbers of ranks that were measured
    collectives             a table for each collective, number of ranks and size of the groups that these are cut
                            into, all talking at once: collective, ranks, group, alpha_s, beta_s_per_byte, messages,
                            volume, worst_error. Seconds of a vector of K bytes, counted as nccl-tests does,
                            are messages · alpha_s + volume · K · beta_s_per_byte,
                            beside the work that comes before it: ranks that computed have to meet first

    [raw]                   every measured median: products, attention, passes, copies, optimizer, probes, collectives
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from playbook.bench import backend_of, provenance
from playbook.bench import calibrate_device as on_device
from playbook.bench import calibrate_fits as fits
from playbook.bench import calibrate_ranks as on_ranks
from playbook.errors import ConfigError
from playbook.estimates.measured import Machine, measured_run
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.recipes import load_recipe
from playbook.training.checks import memory_bytes

Raw = dict[str, list[dict[str, Any]]]


def effort(device: str, quick: bool) -> tuple[on_device.Grid, on_ranks.Together]:
    """What is measured, on one device and on ranks: all sizes, for a minute or so; ``quick`` is a rehearsal with tensors
    too small to tell anything."""
    if quick:
        return on_device.QUICK, on_ranks.QUICK
    return (on_device.CPU, on_ranks.Together()) if device == "cpu" else (on_device.GPU, on_ranks.GPU)


def calibrate(
    device: str,
    ranks: Sequence[int] = (2, 4, 8),
    threads: int = 1,
    quick: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure this machine and return the tables of the file.

    ``threads`` is how many each process computes with on a CPU: a rank has one. ``ranks`` are the numbers of ranks that
    are measured together; of GPUs no more than there are. Raises :class:`ConfigError` for what cannot be measured.
    """
    ranks = _check(device, ranks, threads)
    start, before = time.perf_counter(), torch.get_num_threads()
    grid, sizes = effort(device, quick)
    torch.set_num_threads(threads)
    try:
        raw, call = _measure_device(grid, device, say)
        where = {**provenance(device), "threads": threads}
    finally:
        torch.set_num_threads(before)
    together = {}
    for n in dict.fromkeys([1, *ranks]):
        say(f"{n} ranks at once" if n > 1 else "one rank alone")
        together[n] = on_ranks.on_ranks(n, sizes, threads, device)
    raw["collectives"] = [row for n in ranks for row in on_ranks.collective_rows(n, together[n])]
    raw["probes"] = [row for n, ranks in together.items() for row in on_ranks.probe_rows(n, ranks)]
    where["seconds"] = round(time.perf_counter() - start, 1)
    tables = {"provenance": where, "device": _device(device, raw, call)}
    if ranks:
        tables["network"] = {
            "backend": backend_of(device),
            "ranks": list(ranks),
            "collectives": on_ranks.links(raw["collectives"]),
        }
    return {**tables, "raw": raw}


def _check(device: str, ranks: Sequence[int], threads: int) -> list[int]:
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}, but must be cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', but PyTorch finds no CUDA device here: leave it out, or say cpu")
    if threads < 1:
        raise ConfigError(f"threads is {threads}, but must be at least 1")
    for n in ranks:
        if n < 2:
            raise ConfigError(f"ranks must be at least 2, got {n}: one alone is measured anyway")
    most = torch.cuda.device_count() if device == "cuda" else max(ranks, default=0)
    return sorted({n for n in ranks if n <= most})


def _measure_device(grid: on_device.Grid, device: str, say: Callable[[str], None]) -> tuple[Raw, float]:
    raw: Raw = {}
    for name in ("products", "attention", "passes", "copies", "optimizer"):
        say(name)
        raw[name] = list(getattr(on_device, name)(grid, device))
    return raw, on_device.call(grid, device)


def _device(device: str, raw: Raw, call: float) -> dict[str, Any]:
    """The table ``[device]``."""
    rates, peaks = fits.product_rates(raw["products"]), fits.best_flops(raw["products"])
    copied = [row["bytes_per_s"] for row in raw["copies"]]
    found = {
        "name": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "kind": device,
        "memory_bytes": memory_bytes(device),
        "peak_flops": peaks,
        "gemm_overhead_s": {dtype: rate.overhead_s for dtype, rate in rates.items()},
        "gemm_flops": {dtype: rate.per_s for dtype, rate in rates.items()},
        "gemm_half": {dtype: rate.halves for dtype, rate in rates.items()},
        "gemm_error": {
            dtype: {"median": rate.median_error, "worst": rate.worst_error} for dtype, rate in rates.items()
        },
        "gemm_backward_ratio": fits.backward_ratio(raw["products"]),
        "memory_bandwidth": copied[-1],
        "cache_bandwidth": max(copied),
        "op_overhead_s": call,
        "attention": _attention(raw["attention"], peaks),
        "passes": _passes(raw["passes"]),
        "optimizer": fits.optimizer_numbers(raw["optimizer"]),
    }
    return {**found, "blocks": _blocks(found, raw["probes"])}


def _blocks(device: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What passes of training take beyond their operations, by the number of ranks that make them."""
    machine, found = Machine(device, {}, ""), []
    recipe = load_recipe("fp32" if device["kind"] == "cpu" else "bf16-mixed")
    for n in dict.fromkeys(row["ranks"] for row in rows):
        mine = [row for row in rows if row["ranks"] == n]
        alone = []
        for row in mine:
            probe = on_ranks.Probe(**{field.name: row[field.name] for field in fields(on_ranks.Probe)})
            layout = Layout(micro_batch=probe.batch)
            run = measured_run(machine, Job(probe.shape, layout, seq=probe.seq, recipe=recipe))
            alone.append(sum(stage.seconds for stage in run.stages))
        found.append({"ranks": n, **fits.between(mine, alone)})
    return found


def _errors(rate: fits.Rate) -> dict[str, float]:
    return {"median_error": rate.median_error, "worst_error": rate.worst_error}


def _attention(rows: list[dict[str, Any]], peaks: Mapping[str, float]) -> dict[str, Any]:
    dtype = rows[0]["dtype"]
    return {
        direction: {
            "dtype": dtype,
            "overhead_s": rate.overhead_s,
            "flops": rate.per_s,
            "efficiency": rate.per_s / peaks[dtype],
            "seq_half": rate.halves["seq"],
            "head_half": rate.halves["head"],
            **_errors(rate),
        }
        for direction, rate in fits.attention_rates(rows).items()
    }


def _passes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    largest = {row["name"]: row for row in rows}
    tables = {}
    for name, rate in fits.pass_rates(rows).items():
        row = largest[name.removesuffix("_backward")]
        moved = row["backward_bytes" if name.endswith("_backward") else "bytes"]
        table = {"overhead_s": rate.overhead_s, "elements_per_s": rate.per_s}
        tables[name] = {**table, "bytes_per_element": moved / row["elements"], **_errors(rate)}
    return tables


def _processor() -> str:
    """The model of the processor, as Linux names it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]


def report(tables: Mapping[str, Any]) -> str:
    """What the file says, for people."""
    device, lines = tables["device"], []
    lines.append(
        f"{device['name']} ({device['kind']}), {tables['provenance']['threads']} threads per process"
    )
    for dtype, peak in device["peak_flops"].items():
        error = device["gemm_error"][dtype]
        lines.append(
            f"  products in {dtype}: at best {peak / 1e9:,.0f} GFLOP/s; {device['gemm_overhead_s'][dtype] * 1e6:.1f} µs "
            f"each; the formula misses by {error['median']:.0%} (median), {error['worst']:.0%} (worst)"
        )
    for direction, row in device["attention"].items():
        lines.append(f"  attention {direction}: {row['efficiency']:.0%} of that in {row['dtype']}")
    lines.append(f"  memory: {device['memory_bandwidth'] / 1e9:.1f} GB/s copied, read and written")
    lines.append(f"  one operation: {device['op_overhead_s'] * 1e6:.1f} µs")
    lines += [
        f"  training, ranks at once {row['ranks']}: {row['slower']:.2f} times what its operations take, "
        f"and {row['between_s'] * 1e3:.2f} ms a block, {row['experts_s'] * 1e3:.2f} more with experts; "
        f"misses by {row['median_error']:.0%} (median)"
        for row in device["blocks"]
    ]
    lines += [
        f"  {row['collective']} in groups of {row['group']} of {row['ranks']} ranks: "
        f"{row['alpha_s'] * 1e6:.0f} µs per message, "
        f"{1e-9 / row['beta_s_per_byte'] if row['beta_s_per_byte'] else float('inf'):.2f} GB/s"
        for row in tables.get("network", {}).get("collectives", ())
    ]
    return "\n".join(lines)


def write(tables: Mapping[str, Any], path: Path) -> None:
    """The tables as TOML. Raises :class:`ConfigError` where that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(to_toml(tables)).lstrip() + "\n", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"out is {str(path)!r}, which cannot be written ({reason})") from None


def to_toml(table: Mapping[str, Any], name: str = "") -> list[str]:
    """Lines of a table and of those in it: values first, as TOML has it; None is left out."""
    tables = {key: value for key, value in table.items() if _is_table(value)}
    values = {key: value for key, value in table.items() if key not in tables and value is not None}
    lines = ["", f"[{name}]"] if name and (values or not tables) else []
    lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    for key, value in tables.items():
        lines += to_toml(value, f"{name}.{key}" if name else key)
    return lines


def _is_table(value: Any) -> bool:
    """What has a header of its own; tables of numbers alone stand in one line."""
    return isinstance(value, Mapping) and any(
        isinstance(item, Mapping | str | list) for item in value.values()
    )


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        rows = [_value(item) for item in value]
        if value and isinstance(value[0], Mapping):
            return "[\n" + "".join(f"  {row},\n" for row in rows) + "]"
        return f"[{', '.join(rows)}]"
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if set(text) & set(".en") else f"{text}.0"
    return json.dumps(value, ensure_ascii=False)
