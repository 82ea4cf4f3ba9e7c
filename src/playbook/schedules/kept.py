"""What a rank keeps: F saves a stage's activations, B frees a part of them, W (or BW) the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from playbook.schedules.actions import Schedule


def kept(schedule: Schedule, rank: int, full: Sequence[float], rest: Sequence[float]) -> Iterator[float]:
    """What ``rank`` keeps after each of its actions, in order, in the unit of ``full`` and ``rest``.

    ``full[s]`` is what a forward pass through stage s saves for one micro-batch, ``rest[s]`` what its weight gradients
    still need once the gradient of its input has gone back. Time does not matter: a rank's actions come in one order.
    """
    amount = 0.0
    for op, stage, _ in schedule.ranks[rank]:
        if op == "F":
            amount += full[stage]
        elif op == "B":
            amount -= full[stage] - rest[stage]
        else:
            amount -= rest[stage] if op == "W" else full[stage]
        yield amount


def peak_kept(schedule: Schedule, rank: int, full: Sequence[float], rest: Sequence[float]) -> float:
    """The most that ``rank`` ever keeps; see `kept`."""
    return max(kept(schedule, rank, full, rest), default=0.0)
