"""In what order to attack a slow step on one GPU: when to act, what to do, and what it brought where it was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playbook.bench import RESULTS, records
from playbook.figures.units import format_seconds
from playbook.hardware import ACCELERATORS
from playbook_book.recorded import KernelRun, kernels

HEADER = ["", "if", "then", "measured, H200", "chapter"]
RIDGE = ACCELERATORS["h200"].peak("bf16") / ACCELERATORS["h200"].memory_bandwidth
#: The first row that applies is the one to act on: those further down gain little, or nothing, before it is dealt with.
ASKED = (
    (
        "less than 90% of the step is in kernels",
        "larger micro-batch, torch.compile, CUDA graphs; no .item()",
        "Profiling",
    ),
    ("products are in fp32", "BF16, by autocast or in the weights", "Mixed precision"),
    (
        "attention is three kernels, a softmax between two products",
        "SDPA or FlexAttention, with a mask that they take",
        "FlashAttention",
    ),
    (
        "over a tenth of the kernels' time is neither products nor attention",
        "torch.compile, or fused kernels; the loss in chunks",
        "Fused kernels",
    ),
    ("memory is left", "recompute less, or a larger micro-batch", "Recomputation"),
    (
        "products reach less than two thirds of the peak",
        f"aligned sizes, whole waves, none below {RIDGE:.0f} FLOPs per byte",
        "GPU primer",
    ),
    ("products are over half of the step, and 4,096 wide or more", "FP8", "FP8"),
    ("a kernel moves twice the bytes that you count", "a kernel of your own", "Writing kernels"),
)


def rows(folder: Path = RESULTS) -> list[list[str]]:
    """Under `HEADER`, in order. Where nothing is recorded in ``folder``, a dash stands for what was measured."""
    run = kernels(folder)
    known = _measured(run, folder) if run.date else len(ASKED) * ["–"]
    return [
        [str(i), *asked, gain, chapter]
        for i, ((*asked, chapter), gain) in enumerate(zip(ASKED, known, strict=True), 1)
    ]


def _measured(run: KernelRun, folder: Path) -> list[str]:
    def mfu(**how: Any) -> str:
        (one,) = _runs(
            "trainer", folder, **{"kernels": "fused", "recompute": "selective", "compile": False, **how}
        )
        return f"{one['mfu']:.0%}"

    ladder = [f"{row.tflops:,.0f}" for row in run.of("ladder") if row.contender == "cuBLAS"]
    reached = [row.roofline for row in run.of("matmul") if row.contender == "cuBLAS" and row.roofline]
    wide = [one["ratio"] for one in _runs("steps-fp8", folder) if "ratio" in one]
    small = _runs("profile", folder, model="llama3.2-1b")
    narrow = [one["seconds"] / small[0]["seconds"] for one in small[1:]]
    least = min(small, key=lambda one: one["kernel_seconds"] / one["seconds"])
    heads = "4 × 4,096, 32 heads of 64"
    return [
        f"1B model: {_busy(small[0])} in bf16, {_busy(least)} in FP8",
        f"2,048³, fp32 → fp16: {' → '.join(ladder)} TFLOP/s",
        f"16,384 tokens: {_times(run, 'attention', heads, 'both', 'eager', 'SDPA cuDNN')}",
        f"MFU {mfu(kernels='torch')}; compiled {mfu(kernels='torch', compile=True)}; fused {mfu()}",
        f"MFU {mfu(recompute='full')} full, {mfu()} selective, {mfu(recompute='none')} none",
        f"cuBLAS: {min(reached):.0%} to {max(reached):.0%} of the peak",
        f"step × {min(wide):.2f}–{max(wide):.2f} (7B layers), × {min(narrow):.2f}–{max(narrow):.2f} (1B)",
        f"cross-entropy: {_times(run, 'cross_entropy', '8,192 × 128,256', 'forward', 'compiled', 'ours')}",
    ]


def _busy(step: dict[str, Any]) -> str:
    return f"{step['kernel_seconds'] / step['seconds']:.0%}"


def _times(run: KernelRun, kernel: str, size: str, direction: str, *contenders: str) -> str:
    took = {row.contender: row.seconds for row in run.of(kernel, direction, size)}
    return " → ".join(format_seconds(took[name]) for name in contenders)


def _runs(kind: str, folder: Path, **want: Any) -> list[dict[str, Any]]:
    """What was recorded on a GPU with these settings."""
    found = [record for record in records(kind, folder) if record["provenance"]["gpu"]]
    every = [one for record in found for one in record.get("runs", record.get("steps", ()))]
    return [one for one in every if want.items() <= one.items()]
