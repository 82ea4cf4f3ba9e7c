"""Zero-bubble schedules by an integer program (Qi et al. 2023, arXiv 2401.10241, section 3 and its appendix on the ILP).

Micro-batches are alike, so that they go in order, and so do their F, B and W on a rank: what is left to find is how the
three orders mix. A variable that is 0 or 1 says of two actions of one rank which comes first. HiGHS, which comes with
scipy, searches; it begins below what the heuristic of ``heuristic.py`` takes, so that it finds something better, or
proves that there is nothing, or runs out of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule, straight
from playbook.schedules.catalogue import check_size
from playbook.schedules.solver.heuristic import zero_bubble
from playbook.schedules.solver.milp import IntegerProgram
from playbook.schedules.timeline import PerStage, Times, simulate
from playbook.schedules.validate import by_rank, validate
from playbook.schedules.zero_bubble import zb_h1, zb_h2

Length = Callable[[Schedule], float]

#: Pairs of actions of one rank above which the program is not tried: HiGHS would not keep to its time limit.
MOST_PAIRS = 40_000


@dataclass(frozen=True)
class Solved:
    """What the solver found. ``time`` is the span (or the makespan) of ``schedule``, ``bound`` what no schedule can be
    below, ``heuristic`` what the heuristic takes.

    ``optimal`` where it is proven that there is no better one; ``better`` where it is better than the heuristic's, which
    else it is; ``stopped`` says in a sentence how the search ended, after ``seconds``.
    """

    schedule: Schedule
    time: float
    bound: float
    heuristic: float
    optimal: bool
    better: bool
    stopped: str
    seconds: float


def solve(
    stages: int,
    microbatches: int,
    limit: PerStage,
    times: Times | None = None,
    *,
    rest: PerStage = 1.0,
    time_limit: float = 10.0,
    makespan: bool = False,
) -> Solved:
    """The schedule with the shortest span (or ``makespan``) that keeps the activations of at most ``limit`` micro-batches
    on every rank, or the best one found in ``time_limit`` seconds.

    ``limit`` and ``rest`` are as for `zero_bubble`, whose schedule comes back where the solver has found none that is
    better. HiGHS looks at its clock between two steps, which may take a second or two in large programs. Raises
    ScheduleError as that does, for a time limit that is not above 0, and without scipy.
    """
    if not 0 < time_limit < float("inf"):
        raise ScheduleError(f"time_limit is {time_limit:g}, but must be a finite number of seconds above 0")
    check_size(stages, microbatches)
    begun, times = time.monotonic(), times or Times()
    limits, rests = by_rank("limit", limit, stages, least=1.0), by_rank("rest", rest, stages, least=0, most=1)
    _check_scipy()
    known = replace(zero_bubble(stages, microbatches, limits, times, rest=rests), name="zb-exact")

    def length(schedule: Schedule) -> float:
        line = simulate(schedule, times)
        return line.makespan if makespan else line.span

    best = _best_known(known, length, microbatches, limits, rests)
    heuristic = length(best)
    program = IntegerProgram(stages, microbatches, limits, rests, times, heuristic, makespan)
    bound, tiny = program.least, 1e-6 * heuristic
    if heuristic <= bound + tiny:
        text = "the heuristic's schedule is as short as work and messages allow: nothing was left to search"
        return Solved(best, heuristic, heuristic, heuristic, True, False, text, time.monotonic() - begun)
    if program.pairs > MOST_PAIRS:
        text = f"{program.pairs} pairs of actions are more than the solver takes on: this is the heuristic's schedule"
        return Solved(best, heuristic, bound, heuristic, False, False, text, time.monotonic() - begun)
    found = program.solve(begun + time_limit)
    shortest, better = heuristic, False
    if found.orders is not None:
        schedule = _made(stages, microbatches, found.orders)
        if _fits(schedule, limits, rests) and length(schedule) < heuristic - tiny:
            best, shortest, better = schedule, length(schedule), True
    bound = min(shortest, max(bound, found.bound))
    optimal = (found.finished and (better or found.orders is None)) or shortest <= bound + tiny
    bound = shortest if optimal else bound
    whose = "the solver's" if better else "the heuristic's"
    if optimal:
        text = f"no schedule is shorter: {whose} is proven to be the best"
    else:
        text = (
            f"stopped at its time limit of {time_limit:g} s: {whose} schedule is the best so far, {shortest:.6g}, and "
            f"none can be below {bound:.6g}"
        )
    return Solved(best, shortest, bound, heuristic, optimal, better, text, time.monotonic() - begun)


def _check_scipy() -> None:
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise ScheduleError(
            "the exact solver needs scipy, which is not installed: pip install scipy, or take the heuristic's zb-1p or "
            "zb-2p"
        ) from error


def _best_known(
    fitted: Schedule, length: Length, microbatches: int, limits: list[float], rests: list[float]
) -> Schedule:
    """The shortest of the schedules by hand that fit, and the heuristic's, which is the last resort."""
    known = [fitted]
    for by_hand in (zb_h1, zb_h2):
        try:
            schedule = by_hand(len(limits), microbatches)
            validate(schedule, limits, rests)
            known.append(replace(schedule, name="zb-exact"))
        except ScheduleError:
            continue
    return min(known, key=length)


def _made(stages: int, microbatches: int, orders: list[list[tuple[str, int]]]) -> Schedule:
    ranks = tuple(tuple(Action(op, r, m) for op, m in order) for r, order in enumerate(orders))
    return Schedule("zb-exact", microbatches, straight(stages), ranks)


def _fits(schedule: Schedule, limits: list[float], rests: list[float]) -> bool:
    """What the solver gives has rounding in it; nothing is believed that does not pass the check."""
    try:
        validate(schedule, limits, rests)
    except ScheduleError:
        return False
    return True
