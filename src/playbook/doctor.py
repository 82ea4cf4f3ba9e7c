"""What this machine has, and which tiers of the book it can run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from typing import Any

from playbook._checks import system_memory_bytes

#: What brings all that trains to one who has installed what plans.
TORCH = "pip install 'training-playbook[torch]'"
# What each tier needs, beside torch, is decided by the number of GPUs; everything in the book has a CPU form.
TIERS = (
    ("CPU", 0, "every chapter, with gloo ranks where a chapter needs several"),
    ("1 GPU", 1, "kernels, mixed precision and profiling on a real device"),
    ("N GPUs", 2, "parallel chapters with NCCL"),
)
PACKAGES = ("torch", "triton", "numpy", "matplotlib", "anywidget", "jupyter-book", "playwright")


def examine() -> dict[str, Any]:
    """Versions, processors, memory, GPUs, tools and tiers as plain data."""
    gpus = _gpus()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": system_memory_bytes(),
        "gpus": gpus,
        "packages": {name: version(name) for name in PACKAGES},
        "tools": {name: _found(name) for name in ("node", "chromium", "nvcc", "ncu", "make")},
        "tiers": {name: version("torch") is not None and len(gpus) >= need for name, need, _ in TIERS},
    }


def _found(tool: str) -> str | None:
    """Where a tool is. Chromium does as its headless shell, too."""
    return shutil.which(tool) or (shutil.which("chromium-headless-shell") if tool == "chromium" else None)


def report(found: dict[str, Any]) -> str:
    """The same for people."""
    memory = f"{found['memory_bytes'] / 2**30:.0f} GiB" if found["memory_bytes"] else "unknown memory"
    lines = [f"Python {found['python']} on {found['platform']}, {found['cores']} cores, {memory}"]
    lines += [
        f"GPU {i}: {g['name']}, {g['memory_bytes'] / 2**30:.0f} GiB" for i, g in enumerate(found["gpus"])
    ]
    lines += [] if found["gpus"] else ["No CUDA device"]
    lines += ["", "Packages"] + [
        f"  {name:14} {version or '—'}" for name, version in found["packages"].items()
    ]
    lines += ["", "Tools"] + [f"  {name:14} {path or '—'}" for name, path in found["tools"].items()]
    lines += ["", *notes] if (notes := missing(found)) else []
    lines += ["", "Tiers of the book"]
    lines += [f"  {'yes' if found['tiers'][name] else 'no ':4} {name:7} {what}" for name, _, what in TIERS]
    return "\n".join(lines)


def missing(found: dict[str, Any]) -> list[str]:
    """What training lacks here, or chapters on kernels alone, a sentence each."""
    notes = []
    if not found["packages"]["torch"]:
        notes.append(f"PyTorch is not installed: you can plan, and train after {TORCH}")
    elif not found["packages"]["triton"]:
        notes.append("Triton is not installed: chapters on kernels, and --kernels fused, need it.")
    if not found["tools"]["nvcc"]:
        notes.append("nvcc is not on the path: chapters show CUDA C++, but do not compile it.")
    for i, gpu in enumerate(found["gpus"]):
        major, minor = gpu["capability"]
        if major < 8:
            notes.append(
                f"GPU {i} has compute capability {major}.{minor}: the book's kernels need 8.0 (A100) or later."
            )
    return notes


def version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[dict[str, Any]]:
    if version("torch") is None:
        return []
    import torch

    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [
        {"name": d.name, "memory_bytes": d.total_memory, "capability": (d.major, d.minor)} for d in devices
    ]
