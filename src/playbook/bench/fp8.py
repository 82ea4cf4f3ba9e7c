"""``playbook bench fp8``: FP8 products and quantisation beside PyTorch's and DeepGEMM's, and whole steps of training.

Products and what quantises are measured as `playbook bench kernels` measures: the same numbers for all, results held to
fp32, times in turns. ``emulated`` are products whose numbers were quantised and dequantised, which is how FP8 is trained
on a CPU, beside products in fp32. ``steps`` are steps of the trainer beside those of the same run without FP8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from playbook._checks import unknown
from playbook.bench.fp8_cases import RECIPES, fp8_cases
from playbook.bench.fp8_steps import step_rows
from playbook.bench.kernels import measure_cases, new_record, report_kernels
from playbook.errors import ConfigError
from playbook.instruments.measure import compare_times
from playbook.precision.products import product_torch
from playbook.precision.recipes import load_fp8
from playbook.precision.scaling import quantize_torch

#: What is measured, in this order: products by recipe, kernels that quantise, emulated products, whole steps.
FP8 = (
    *RECIPES, "quantize", "quantize_delayed", "quantize_swiglu", "quantize_rms_norm", "emulated", "steps",
)  # fmt: skip
#: Tokens, inputs and outputs of emulated products.
EMULATED = (512, 512, 1024)


def bench_fp8(
    device: str, only: Sequence[str] = FP8, large: bool | None = None, repeats: int = 50
) -> Iterator[dict[str, Any]]:
    """The record so far, again whenever something has been measured.

    ``only`` chooses among `FP8`; sizes are ``large`` on a GPU unless told; ``repeats`` is how many turns there are at
    most. Raises ConfigError for what is not there to be measured, at once.
    """
    for name in only:
        if name not in FP8:
            raise ConfigError(unknown("case", name, FP8))
    return _bench(device, only, large, repeats)


def _bench(device: str, only: Sequence[str], large: bool | None, repeats: int) -> Iterator[dict[str, Any]]:
    cuda = torch.device(device).type == "cuda"
    large = cuda if large is None else large
    result = new_record(device) | {"emulated": [], "steps": []}
    cases = sorted((c for c in fp8_cases(large, cuda) if c.kernel in only), key=lambda c: FP8.index(c.kernel))
    yield from measure_cases(result, cases, device, repeats)
    if "emulated" in only:
        result["emulated"] = emulated(device, repeats)
        yield result
    if "steps" in only:
        for row in step_rows(device):
            result["steps"].append(row)
            yield result


def emulated(device: str, repeats: int) -> list[dict[str, Any]]:
    """y = x·Wᵀ in fp32 of numbers that were quantised and dequantised, both by PyTorch's operators, and in fp32 alone, in
    turns. So it is on a GPU, too, which would take its FP8 tensor cores otherwise."""
    tokens, inputs, outputs = EMULATED
    generator = torch.Generator(device).manual_seed(0)
    x, w = (torch.randn(rows, inputs, generator=generator, device=device) for rows in (tokens, outputs))

    def quantised(recipe: str) -> torch.Tensor:
        asked = load_fp8(recipe)
        return product_torch(
            quantize_torch(x, asked.forward, asked.groups),
            quantize_torch(w, asked.forward, asked.weights),
            x.dtype,
        )

    runs = {name: lambda name=name: quantised(name) for name in RECIPES}
    times = compare_times({"fp32": lambda: x @ w.t(), **runs}, repeats=repeats, device=device)
    exact = x @ w.t()
    return [
        {
            "recipe": name,
            "size": f"{tokens:,} × {inputs:,} × {outputs:,}",
            "seconds": times[name],
            "fp32_seconds": times["fp32"],
            "ratio": times[name] / times["fp32"],
            "error": float((quantised(name) - exact).norm() / exact.norm()),
        }
        for name in RECIPES
    ]


def report_fp8(result: dict[str, Any]) -> str:
    """The result of ``bench_fp8`` as tables for people."""
    lines = [report_kernels(result)]
    if result["emulated"]:
        lines += ["", f"quantised and dequantised, then multiplied in fp32, {result['emulated'][0]['size']}"]
    lines += [
        f"  {row['recipe']:12} {row['seconds'] * 1e3:8.2f} ms, {row['ratio']:6.2f} of fp32, error {row['error']:.1e}"
        for row in result["emulated"]
    ]
    if result["steps"]:
        lines += ["", "whole steps; ratios to the same run without FP8"]
    lines += [_step(row) for row in result["steps"]]
    return "\n".join(lines)


def _step(row: dict[str, Any]) -> str:
    name = f"  {row['trainer']:9} {row['recipe']:12}"
    if "missing" in row:
        return f"{name} left out: {row['missing'].splitlines()[0][:80]}"
    return (
        f"{name} {row['seconds'] * 1e3:9.1f} ms beside {row['base_seconds'] * 1e3:9.1f} ms, ratio {row['ratio']:.3f}, "
        f"loss {row['last_loss']:.4f} beside {row['base_last_loss']:.4f}"
    )
