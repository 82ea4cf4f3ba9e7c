"""Side-by-side benchmarks: ours against the best public peer, in turns within one run, as a ratio of medians."""

from __future__ import annotations

import datetime
import platform
import sys
from typing import Any

import torch


def provenance(device: str) -> dict[str, Any]:
    """Where, when and with what a benchmark ran: what a recorded number is worth nothing without."""
    accelerator = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["playbook", *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": accelerator,
    }
