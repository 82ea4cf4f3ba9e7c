"""How long the weights of a stage stay on a rank that has to gather them (ZeRO-3 in a pipeline). Standard library only.

A rank with several stages that goes on with the one that it is at, another micro-batch's pass, need not forget its
weights
in between. Breadth-first schedules visit each stage once forward and once backward, whatever the number of micro-batches
(Lamy-Poirier 2022, arXiv 2211.05953, section 4); 1F1B with one stage a rank never leaves it, so that nothing would be
saved if weights stayed: there they come and go with each micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from playbook.schedules.actions import Action


class Residency(NamedTuple):
    """What stays after an action: ``stage``, all weights of its stage; ``head``, those with which backward begins."""

    stage: bool
    head: bool


def residency(actions: Sequence[Action]) -> list[Residency]:
    """For each action of a rank, what stays gathered after it. W needs no weights: it is passed over."""
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
