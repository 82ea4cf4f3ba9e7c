"""What a rank keeps: F saves a stage's activations, B frees a part of them, W (or BW) the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from playbook.schedules.actions import Action, Schedule

#: What an action does to the micro-batches of which a stage keeps all that F saves, and what W needs once B is over.
CHANGES = {"F": (1, 0), "B": (-1, 1), "W": (0, -1), "BW": (-1, 0)}


class InFlight(NamedTuple):
    """Micro-batches that a rank keeps something of, one number for each of its stages.

    Of ``full`` it keeps all that F saved, of ``rest`` what W needs once B is over.
    """

    full: tuple[int, ...]
    rest: tuple[int, ...]


def in_flight(schedule: Schedule, rank: int, stages: Sequence[int]) -> Iterator[InFlight]:
    """The micro-batches that ``rank``, which has these ``stages``, keeps after each of its actions, in order."""
    place = {stage: i for i, stage in enumerate(stages)}
    full, rest = [0] * len(stages), [0] * len(stages)
    for op, stage, _ in schedule.ranks[rank]:
        whole, part = CHANGES[op]
        full[place[stage]] += whole
        rest[place[stage]] += part
        yield InFlight(tuple(full), tuple(rest))


def change(action: Action, full: Sequence[float], rest: Sequence[float]) -> float:
    """What an action adds to what its rank keeps, in the unit of ``full`` and ``rest``; see `kept`."""
    whole, part = CHANGES[action.op]
    return whole * full[action.stage] + part * rest[action.stage]


def kept(schedule: Schedule, rank: int, full: Sequence[float], rest: Sequence[float]) -> Iterator[float]:
    """What ``rank`` keeps after each of its actions, in order, in the unit of ``full`` and ``rest``.

    ``full[s]`` is what a forward pass through stage s saves for one micro-batch, ``rest[s]`` what its weight gradients
    still need once the gradient of its input has gone back. Time does not matter: a rank's actions come in one order.
    """
    return accumulate(change(action, full, rest) for action in schedule.ranks[rank])
