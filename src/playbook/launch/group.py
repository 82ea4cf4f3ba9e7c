"""The process group of a script: from torchrun's environment, always with a time-out, on the right device and backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from playbook.errors import LaunchError

if TYPE_CHECKING:
    import torch

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA, NVIDIA under WSL, AMD
_launched_backend: str | None = None
_said: set[int] = set()  # numbers of GPUs that were too few; each is told once
_default_timeout = 60.0
_on_cpu = False


@dataclass(frozen=True)
class World:
    """Where this rank stands among all, and what it computes on."""

    rank: int
    size: int
    local_rank: int
    backend: str
    device: torch.device


def launched(backend: str, timeout: float) -> None:
    """Noted in a rank by its launcher, which has chosen the backend for all and allows them so many seconds."""
    global _launched_backend, _default_timeout
    _launched_backend, _default_timeout = backend, timeout


def gpus() -> int:
    """Number of GPUs of this machine. torch is imported only where a driver is present."""
    if sys.platform == "linux" and not any(map(os.path.exists, _DRIVERS)):
        return 0
    import torch

    return torch.cuda.device_count()


def backend(ranks: int) -> str:
    """``nccl`` when each of ``ranks`` here has a GPU of its own, else ``gloo``; too few are told on stderr, once. After
    ``settle`` said so, ``gloo`` for any number."""
    if _on_cpu:
        return "gloo"
    found = gpus()
    if 0 < found < ranks and found not in _said:
        _said.add(found)
        print(
            f"{ranks} ranks, but {found} GPU{'s' if found > 1 else ''}: running on CPU with gloo",
            file=sys.stderr,
        )
    return "nccl" if 0 < ranks <= found else "gloo"


def settle(ranks: int) -> str:
    """From here on this process launches on GPUs if there is one for each of ``ranks``, the most there will be; else on
    CPU, however few. Returns the device, ``cuda`` or ``cpu``.

    For runs that are compared: with two GPUs, those of one and two ranks would compute on them, and that of four on CPU.
    """
    global _on_cpu
    _on_cpu = False
    _on_cpu = backend(ranks) == "gloo"
    return "cpu" if _on_cpu else "cuda"


def init(timeout: float | None = None) -> World:
    """Initialise the default process group: of torchrun's ranks, or of this process alone where there are none.

    A collective that some rank does not join ends this rank after ``timeout`` seconds: under gloo by ``RuntimeError``;
    under NCCL, where the host does not wait for it, a watchdog aborts the process. The default is a little more than the
    launch allows, or 60 under plain torchrun.
    """
    import torch
    import torch.distributed as dist

    alone = "RANK" not in os.environ
    rank, size, local_rank = (0 if alone else _number(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    size = max(size, 1)
    chosen = _launched_backend or _backend_of_node(local_rank)
    device = torch.device("cuda", local_rank) if chosen == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    patience = timedelta(seconds=_default_timeout if timeout is None else timeout)
    # Groups that are made of it later have it, too: PyTorch would give them half an hour.
    dist.distributed_c10d.default_pg_timeout = dist.distributed_c10d.default_pg_nccl_timeout = patience
    dist.init_process_group(
        chosen,
        timeout=patience,
        device_id=device if device.type == "cuda" else None,
        **({"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {}),  # type: ignore[arg-type]
    )
    return World(rank, size, local_rank, chosen, device)


def _number(name: str) -> int:
    """A variable of torchrun's."""
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise LaunchError(
            f"{name} is {text!r}, but must be a whole number where RANK is set: torchrun sets both"
        )
    return int(text)


def _backend_of_node(local_rank: int) -> str:
    """The backend for the ranks of this node; its first rank speaks for all."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if local_rank == 0 or _on_cpu:
        return backend(ranks)
    return "nccl" if ranks <= gpus() else "gloo"


@contextmanager
def process_group(timeout: float | None = None) -> Iterator[World]:
    """``with process_group() as world:`` initialises the process group, as ``init``, and ends it when all are done."""
    import torch.distributed as dist

    world = init(timeout)
    try:
        yield world
    except BaseException:
        # Peers may be waiting, and would then wait for the end of this group, too. Alone there are none.
        if world.size == 1:
            dist.destroy_process_group()
        raise
    dist.barrier()  # nobody hangs up on a rank that is still talking, or still connecting
    dist.destroy_process_group()
