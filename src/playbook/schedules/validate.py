"""Can a schedule be carried out? If not, one sentence says which action is wrong, or which waits for which."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from playbook.errors import ScheduleError
from playbook.schedules.actions import OPS, Action, Schedule
from playbook.schedules.kept import kept
from playbook.schedules.timeline import PerStage
from playbook.schedules.walk import walk


def schedule_of(data: Any) -> Schedule:
    """A schedule from what ``to_json`` gives, or a reader's own. Raises ScheduleError for what it cannot read."""
    try:
        if not isinstance(data, Mapping):
            raise ValueError("the whole is no object")
        ranks = tuple(
            tuple(Action(str(a["op"]), _whole(a, "stage"), _whole(a, "microbatch")) for a in rank)
            for rank in data["ranks"]
        )
        count = sum(map(len, ranks))
        depth = 1 + max((a.stage for rank in ranks for a in rank), default=0)
        microbatches = 1 + max((a.microbatch for rank in ranks for a in rank), default=0)
        if max(depth, microbatches) > max(count, 1):
            raise ValueError(
                f"stages to {depth - 1} and micro-batches to {microbatches - 1}, but only {count} actions: both "
                "count from 0, and each needs actions of its own"
            )
        homes = {a.stage: r for r in reversed(range(len(ranks))) for a in ranks[r]}
        placement = data.get("placement") or [[homes.get(s, 0) for s in range(depth)]]
        return Schedule(
            str(data.get("name", "custom")),
            min(_whole(data, "microbatches", microbatches), count + 1),
            tuple(tuple(map(int, direction)) for direction in placement),
            ranks,
            tuple(map(int, data.get("directions", ()))),
            frozenset((int(r), int(i)) for r, i in data.get("overlapped", ())),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ScheduleError(
            'a schedule is {"ranks": [[{"op": "F", "stage": 0, "microbatch": 0}, …], …]} with '
            f"op one of {', '.join(OPS)}; in this one: {what}"
        ) from error


def _whole(data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number from 0 on."""
    value = data[key] if default is None else data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{key} is {value!r}, but must be a whole number from 0 on")
    return value


def check(schedule: Schedule, each_pass: bool = False) -> None:
    """Raise ScheduleError unless ranks can carry it out, and train with it."""
    validate(schedule)
    check_copies(schedule, each_pass)


def validate(schedule: Schedule, limit: PerStage | None = None, rest: PerStage = 1.0) -> None:
    """Raise ScheduleError unless every micro-batch goes forward and backward through every stage once, where the stage
    is, in an order in which no action waits for ever.

    Nor may a rank keep more than ``limit`` stages' activations of a micro-batch, if it is given; ``rest`` is the part of
    these that is kept between B and W. Both are one number, or one for each rank.
    """
    _check_placement(schedule)
    _check_overlapped(schedule)
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            _check_action(schedule, rank, action)
    _check_once(schedule)
    deque(walk(schedule), maxlen=0)
    if limit is not None:
        ranks = len(schedule.ranks)
        limits = by_rank("limit", limit, ranks, least=0.0)
        rests = by_rank("rest", rest, ranks, least=0.0, most=1.0)
        for rank in range(ranks):
            _check_memory(schedule, rank, limits[rank], rests[rank])


def check_copies(schedule: Schedule, each_pass: bool = False) -> None:
    """Raise ScheduleError unless ranks can train with ``schedule``: each has a stage, and copies of one agree.

    In a bidirectional pipeline the ranks r and p − 1 − r have the same stages, and add their gradients up stage by stage,
    as each is finished: in one order on both. With ``each_pass`` they do so after every micro-batch (ZeRO-2).
    """
    ranks, directions = len(schedule.ranks), schedule.placement
    for rank in range(ranks):
        if not any(rank in direction for direction in directions):
            raise ScheduleError(f"rank {rank} has no stage: in training every rank must have one")
    if len(directions) == 1:
        return
    if ranks % 2 or len(directions) > 2 or any(a + b != ranks - 1 for a, b in zip(*directions, strict=True)):
        raise ScheduleError(
            f"placement is {[list(homes) for homes in directions]}, but in training there must be one direction or two, "
            "of which the second has on rank p - 1 - r, of an even number p, what the first has on rank r"
        )
    for rank in range(ranks // 2):
        mine, other = (_finished(schedule, r, each_pass) for r in (rank, ranks - 1 - rank))
        if mine != other:
            what = "do W of" if each_pass else "finish"
            raise ScheduleError(
                f"ranks {rank} and {ranks - 1 - rank} have the same stages, but {what} stages {mine} and {other}: they "
                "must do so in one order, in which they add gradients up"
            )


def _finished(schedule: Schedule, rank: int, each_pass: bool) -> list[int]:
    """Stages of a rank in the order of their last W, or of all."""
    done = [action.stage for action in schedule.ranks[rank] if action.op in ("W", "BW")]
    return done if each_pass else list(dict.fromkeys(done[::-1]))[::-1]


def by_rank(
    name: str, given: PerStage, stages: int, *, least: float, most: float = float("inf")
) -> list[float]:
    """One number for each rank. Raises ScheduleError for another count, and for numbers outside ``least`` to ``most``."""
    numbers = [given] * stages if isinstance(given, int | float) else list(given)
    if len(numbers) != stages:
        raise ScheduleError(
            f"{name} has {len(numbers)} numbers, but must be one, or one for each of {stages} ranks"
        )
    for number in numbers:
        if not least <= number <= most:
            to = f"at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
            raise ScheduleError(f"{name} is {number:g}, but must be {to}")
    return [float(number) for number in numbers]


def _check_placement(schedule: Schedule) -> None:
    if not schedule.ranks or not schedule.placement or not schedule.depth:
        raise ScheduleError("the schedule has no ranks or no stages: it must have one of each at least")
    ranks, depth = len(schedule.ranks), schedule.depth
    for direction in schedule.placement:
        if len(direction) != depth or not all(0 <= rank < ranks for rank in direction):
            raise ScheduleError(
                f"placement is {[list(w) for w in schedule.placement]}, but every direction must give a rank from 0 to "
                f"{ranks - 1} to each of {depth} stages"
            )
    if schedule.directions and len(schedule.directions) != schedule.microbatches:
        raise ScheduleError(
            f"directions has {len(schedule.directions)} entries, but there are {schedule.microbatches} micro-batches: "
            "each goes in one"
        )
    for taken in schedule.directions:
        if not 0 <= taken < len(schedule.placement):
            raise ScheduleError(
                f"directions has a {taken}, but placement has {len(schedule.placement)}, counted from 0"
            )


def _check_overlapped(schedule: Schedule) -> None:
    for rank, i in schedule.overlapped:
        last = len(schedule.ranks[rank]) - 2 if 0 <= rank < len(schedule.ranks) else -1
        if not 0 <= i <= last or (rank, i + 1) in schedule.overlapped:
            raise ScheduleError(
                f"overlapped has [{rank}, {i}], but must be a rank and the place of an action there that the next one "
                "runs beside, and runs beside no third one"
            )


def _check_action(schedule: Schedule, rank: int, action: Action) -> None:
    op, stage, microbatch = action
    if op not in OPS:
        raise ScheduleError(f"op is {op!r} on rank {rank}, but must be one of {', '.join(OPS)}")
    for name, value, count in (
        ("stage", stage, schedule.depth),
        ("microbatch", microbatch, schedule.microbatches),
    ):
        if not 0 <= value < count:
            raise ScheduleError(
                f"{name} is {value} in {action} on rank {rank}, but must be from 0 to {count - 1}"
            )
    home = schedule.rank_of(stage, microbatch)
    if home != rank:
        raise ScheduleError(
            f"{action} is on rank {rank}, but stage {stage} is on rank {home} for this micro-batch"
        )


def _check_once(schedule: Schedule) -> None:
    """F once; B and W once each, or BW once."""
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            for part in ("B", "W") if action.op == "BW" else (action.op,):
                if action._replace(op=part) in seen:
                    raise ScheduleError(
                        f"{action} on rank {rank} comes twice: {part} of it has been done before"
                    )
                seen.add(action._replace(op=part))
    for microbatch in range(schedule.microbatches):
        for stage in range(schedule.depth):
            for op in ("F", "B", "W"):
                if Action(op, stage, microbatch) not in seen:
                    home = schedule.rank_of(stage, microbatch)
                    raise ScheduleError(f"{Action(op, stage, microbatch)} is missing: rank {home} must do it")


def _check_memory(schedule: Schedule, rank: int, limit: float, rest: float) -> None:
    """Also order on a rank: it is only here that W can be counted."""
    passes = "micro-batches" if schedule.depth == len(schedule.ranks) else "passes through one of its stages"
    depth = schedule.depth
    amounts = kept(schedule, rank, [1.0] * depth, [rest] * depth)
    for action, amount in zip(schedule.ranks[rank], amounts, strict=True):
        if amount > limit + 1e-9:
            raise ScheduleError(
                f"rank {rank} keeps the activations of {amount:g} {passes} with {action}, but the limit is {limit:g}"
            )
