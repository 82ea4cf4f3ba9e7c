"""What ZeRO-3 gathers and reduces in a pipeline: a walk through a rank's actions, as ``parallel/zero3.py`` makes it.

Which weights stay from one pass to the next is said by ``schedules.messages``, for runs and for this alike. Standard
library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from playbook.planning.weights import WeightUnit
from playbook.schedules.actions import Action
from playbook.schedules.messages import residency


def gathers(
    units: Sequence[WeightUnit], actions: Sequence[Action], depth: int, reshard: bool = True
) -> Counter[tuple[str, int]]:
    """All-gathers of a rank in a step, by phase (forward, backward) and index of the unit."""
    found: Counter[tuple[str, int]] = Counter()
    here: set[int] = set()
    for action, stays in zip(actions, residency(actions), strict=True):
        if action.op == "W":
            continue
        phase = "forward" if action.op == "F" else "backward"
        used = list(_used(units, action, depth))
        for index, _ in used:
            if index not in here:
                found[phase, index] += 1
                here.add(index)
        if reshard and not stays.stage:
            # What backward begins with stays from the last forward pass to it.
            kept = {index for index, keeps in used if keeps and stays.head}
            here &= kept
    return found


def _used(units: Sequence[WeightUnit], action: Action, depth: int) -> Iterator[tuple[int, bool]]:
    """The units that a pass needs, and whether each is one with which backward begins."""
    stage, forward = action.stage, action.op == "F"
    for index, unit in enumerate(units):
        if unit.role == "table":
            if stage == depth - 1 or (stage == 0 and forward):
                yield index, stage == depth - 1
        elif unit.stage == stage and (forward or unit.role != "embedding"):
            yield index, unit.role == "head"


def reductions(actions: Sequence[Action]) -> Counter[int]:
    """Reduce-scatters of each unit of a stage in a step: whole gradients stay as long as the weights do."""
    left = Counter(action.stage for action in actions if action.op in ("W", "BW"))
    found: Counter[int] = Counter()
    for action, stays in zip(actions, residency(actions), strict=True):
        if action.op in ("W", "BW"):
            left[action.stage] -= 1
            found[action.stage] += not stays.stage or left[action.stage] == 0
    return found
