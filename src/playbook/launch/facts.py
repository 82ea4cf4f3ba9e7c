"""What one rank of a cluster has: versions, memory, links."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import torch

from playbook.launch.group import World


def facts_of(world: World) -> dict[str, Any]:
    """Where a rank is, and what it has."""
    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "node": os.environ.get("GROUP_RANK", "0"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": {
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "backend": world.backend,
        },
        "free_bytes": {"memory": _free_memory()},
        "topology": _tool("nvidia-smi", "topo", "-m") if world.local_rank == 0 else None,
    }
    if world.device.type == "cuda":
        driver = _tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
        found["versions"] |= {
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": (driver or "").strip() or None,
            "GPU": torch.cuda.get_device_name(world.device),
        }
        found["free_bytes"]["GPU memory"] = torch.cuda.mem_get_info(world.device)[0]
    return found


def _free_memory() -> int | None:
    """Bytes that the system could still give away."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _tool(name: str, *arguments: str) -> str | None:
    """What a program says, None where it is not there or fails."""
    if shutil.which(name) is None:
        return None
    done = subprocess.run([name, *arguments], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout if done.returncode == 0 else None


def by_node(facts: list[dict[str, Any]]) -> list[list[int]]:
    """The ranks of each node, as torchrun numbers them."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, fact in enumerate(facts):
        found.setdefault((fact["node"], fact["host"]), []).append(rank)
    return list(found.values())
