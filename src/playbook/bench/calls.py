"""Calls that ranks of one machine make together, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from playbook import launch
from playbook.instruments.measure import synchronize


def seconds_of_call(function: Callable[[], Any], world: launch.World) -> float:
    """Seconds of one call in this rank, all ranks beginning together."""
    dist.barrier()
    synchronize(world.device)
    start = time.perf_counter()
    function()
    synchronize(world.device)
    return time.perf_counter() - start


def slowest(ranks: Iterable[Sequence[float]]) -> list[float]:
    """Of each step, the most that a rank took."""
    return [max(step) for step in zip(*ranks, strict=True)]


def there_and_back(x: torch.Tensor, rank: int, other: int) -> None:
    """A message from the lower of two ranks to the other one, and one back; ``rank`` is this one."""
    steps = (dist.send, dist.recv) if rank < other else (dist.recv, dist.send)
    for step in steps:
        step(x, other)
