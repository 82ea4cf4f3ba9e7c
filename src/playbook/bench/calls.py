"""Calls that ranks of one machine make together: how long they take, and what they cost around a ring on paper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from playbook import launch
from playbook.collectives.closed_forms import Cost, closed_form
from playbook.collectives.links import AlphaBeta, Network, Sample
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


def ring_samples(
    collective: str, n: int, rows: Sequence[dict[str, Any]], seconds: str = "seconds"
) -> tuple[Cost, list[Sample]]:
    """What a collective of n ranks costs around a ring, and ``rows`` as what each of its messages carries and takes."""
    cost = ring(collective, n)
    return cost, [Sample(float(cost.volume) * row["bytes"], row[seconds], cost.messages) for row in rows]


def ring(collective: str, n: int) -> Cost:
    """Messages one after the other, and the part of K that they carry, as `planning.communication` counts a ring."""
    if collective == "send":
        return Cost(1, Fraction(1))
    cost = closed_form(collective, None, n, Network.uniform(AlphaBeta(0, 0)))
    assert cost is not None, collective
    return cost
