"""What follows from a rank's list of actions: the messages of its passes, and how long it needs the weights of a stage.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from playbook.schedules.actions import Action, Schedule

#: A message has the name of the action that makes it: F the activations behind a stage, B (or BW) the gradient before it.
Message = Action


def message(action: Action) -> Message:
    """What an action makes, by the name under which it is waited for: BW makes what B makes."""
    return Action("F" if action.op == "F" else "B", action.stage, action.microbatch)


def receiver(schedule: Schedule, action: Action) -> int | None:
    """The rank that needs what ``action`` makes; None where nobody does."""
    after = action.stage + (1 if action.op == "F" else -1)
    if action.op == "W" or not 0 <= after < schedule.depth:
        return None
    return schedule.rank_of(after, action.microbatch)


@dataclass(frozen=True)
class Messages:
    """Messages of a step from rank ``source`` to rank ``target``.

    ``taken`` says of each message how many of the opposite direction its sender had received when it was made.
    """

    messages: tuple[Message, ...]
    taken: dict[Message, int] = field(repr=False)

    @classmethod
    def of(cls, schedule: Schedule, source: int, target: int) -> Messages:
        opposite = {what: i + 1 for i, what in enumerate(_sent(schedule, target, source))}
        messages, taken, so_far = [], {}, 0
        for action in schedule.ranks[source]:
            so_far = max([so_far, *(opposite.get(need, 0) for need in schedule.needs(action))])
            if receiver(schedule, action) == target:
                messages.append(message(action))
                taken[messages[-1]] = so_far
        return cls(tuple(messages), taken)


def _sent(schedule: Schedule, source: int, target: int) -> Iterator[Message]:
    for action in schedule.ranks[source]:
        if receiver(schedule, action) == target:
            yield message(action)


class Residency(NamedTuple):
    """What stays of gathered weights (ZeRO-3) after an action: ``stage``, all of its stage; ``head``, those with which
    backward begins."""

    stage: bool
    head: bool


def residency(actions: Sequence[Action]) -> list[Residency]:
    """For each action of a rank, what stays gathered after it. W needs no weights: it is passed over.

    A rank with several stages that goes on with the one that it is at need not forget its weights in between:
    breadth-first schedules visit each stage once forward and once backward, whatever the number of micro-batches
    (Lamy-Poirier 2022, arXiv 2211.05953, section 4). With one stage a rank never leaves it, and nothing would be saved if
    weights stayed: there they come and go with each micro-batch.
    """
    several = len({action.stage for action in actions}) > 1
    found: list[Residency] = []
    following: Action | None = None
    for action in reversed(actions):
        if action.op == "W":
            found.append(Residency(False, False))
            continue
        same = following is not None and following.stage == action.stage
        backward = following is not None and following.op != "F"
        found.append(Residency(several and same, same and backward and action.op == "F"))
        following = action
    return found[::-1]
