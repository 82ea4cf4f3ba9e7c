"""A schedule in an order in which it can be carried out; timelines, ends and checks are folds over it.

A micro-batch on a stage is a number, its place: stage · microbatches + microbatch. Standard library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule

#: A rank, what it does next (an action, or two side by side), and who needs what these make: itself, if nobody does.
Block = tuple[int, Sequence[Action], Sequence[int]]


def walk(schedule: Schedule) -> Iterator[Block]:
    """The actions of all ranks, each when what it needs has been done: a rank goes on until it must wait.

    Raises ScheduleError where actions wait for one another, and says which for which.
    """
    depth, count, overlapped = schedule.depth, schedule.microbatches, schedule.overlapped
    one_way = schedule.placement[0] if not schedule.directions else None
    rank_of = (lambda stage, _: one_way[stage]) if one_way else schedule.rank_of
    forward, backward = bytearray(depth * count), bytearray(depth * count)

    def ready(action: Action) -> bool:
        op, stage, microbatch = action
        place = stage * count + microbatch
        if op == "F":
            return not stage or bool(forward[place - count])
        if op == "W":
            return bool(backward[place])
        return bool(forward[place] and (stage + 1 == depth or backward[place + count]))

    at = [0] * len(schedule.ranks)
    waiting, queued = deque(range(len(at))), set(range(len(at)))
    while waiting:
        rank = waiting.popleft()
        queued.discard(rank)
        actions, i = schedule.ranks[rank], at[rank]
        while i < len(actions):
            block = actions[i : i + 1 + ((rank, i) in overlapped)] if overlapped else actions[i : i + 1]
            if not ready(block[0]) or (block[1:] and not ready(block[1])):
                break
            receivers = []
            for op, stage, microbatch in block:
                other = rank
                if op != "W":
                    (forward if op == "F" else backward)[stage * count + microbatch] = 1
                    to = stage + 1 if op == "F" else stage - 1
                    if 0 <= to < depth:
                        other = rank_of(to, microbatch)
                receivers.append(other)
                if other != rank and other not in queued:
                    waiting.append(other)
                    queued.add(other)
            i += 2 if block[1:] else 1
            yield rank, block, receivers
        at[rank] = i
    for rank, actions in enumerate(schedule.ranks):
        if at[rank] < len(actions):
            raise ScheduleError(_deadlock(schedule, at, {"F": forward, "B": backward}, rank))


def _deadlock(schedule: Schedule, at: list[int], done: dict[str, bytearray], rank: int) -> str:
    """Who waits for whom, around the circle or to an action that nobody has."""
    said, seen = [], set()
    while rank not in seen:
        seen.add(rank)
        i, actions = at[rank], schedule.ranks[rank]
        blocked = actions[i : i + 1 + ((rank, i) in schedule.overlapped)]
        needs = ((action, need) for action in blocked for need in schedule.needs(action))
        missing = (
            n for n in needs if not done[n[1].op][n[1].stage * schedule.microbatches + n[1].microbatch]
        )
        action, need = next(missing)
        said.append(f"rank {rank} waits with {action} for {need}")
        same = {need, need._replace(op="BW")} if need.op == "B" else {need}
        left = (r for r, actions in enumerate(schedule.ranks) if same & set(actions[at[r] :]))
        holder = next(left, None)
        if holder is None:
            said.append("which no rank ever does")
            break
        if holder == rank:
            said.append("which comes later on the same rank")
        rank = holder
    return "the schedule cannot go on: " + ", ".join(said)
