"""Measurements: what they were made with, where recorded ones are, and what a machine is calibrated by."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from playbook import doctor
from playbook.errors import ConfigError

#: Where recorded runs are kept: in the project's own checkout.
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def provenance(device: str) -> dict[str, Any]:
    """Where, when and with what a benchmark ran: what a recorded number is worth nothing without."""
    import torch

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["playbook", *_without_record(sys.argv[1:])]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        **_accelerator(device),
    }


@cache
def commit() -> str | None:
    """Of the checkout: what ``benchmarks/on_gpu.py --commit`` was told, else what git knows."""
    told = os.environ.get("PLAYBOOK_COMMIT")
    return told or (_printed("git", "rev-parse", "HEAD") if (RESULTS.parents[1] / ".git").exists() else None)


def _accelerator(device: str) -> dict[str, Any]:
    """The GPU and what drives it; on a CPU there is none."""
    import torch

    if torch.device(device).type != "cuda":
        return {"gpu": None}
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    return {
        "gpu": torch.cuda.get_device_name(device),
        "gpus": torch.cuda.device_count(),
        "driver": _printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": nccl,
        "triton": doctor.version("triton"),
    }


def _printed(*command: str) -> str | None:
    """What a command prints; None where it cannot be run."""
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _without_record(arguments: list[str]) -> list[str]:
    """Where a result is written is no part of what was measured."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and not argument.startswith("--record"):
            kept.append(argument)
        skip = argument == "--record"
    return kept


def backend_of(device: str, ranks: int = 1) -> str:
    """gloo on CPUs, NCCL with a GPU for each of the ranks. Raises ConfigError for GPUs that are not there."""
    import torch

    if torch.device(device).type != "cuda":
        return "gloo"
    if (found := torch.cuda.device_count()) < ranks:
        raise ConfigError(f"{ranks} ranks on cuda need a GPU each, and this machine has {found}")
    return "nccl"


def records(kind: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Recorded results of one benchmark ("train", "memory", …), the oldest first; empty where none has been recorded."""
    files = folder.glob(f"*-{kind}.json")
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return sorted(found, key=lambda record: record["provenance"]["date"])
