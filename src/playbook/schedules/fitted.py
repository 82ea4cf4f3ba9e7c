"""Zero-bubble schedules for measured times and any limit of memory (Qi et al. 2023, arXiv 2401.10241, section 3).

On every rank the order has one shape: some forward passes ahead, then backward and forward passes in turns whose weight
gradients are put off, then all three in turns, then what is left. Two numbers per rank say it: how many are *ahead*, and how
many are *put off*. A first guess follows from the times; a search around it simulates what each change is worth.
"""

from __future__ import annotations

import random

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule, straight
from playbook.schedules.timeline import Times, simulate

Shape = tuple[tuple[int, int], ...]  # (ahead, put off) of every rank


def zero_bubble(
    stages: int,
    microbatches: int,
    limit: float,
    times: Times | None = None,
    *,
    rest: float = 1.0,
    tries: int = 200,
    name: str = "",
) -> Schedule:
    """The schedule with the shortest span that keeps the activations of at most ``limit`` micro-batches on every rank.

    ``rest`` is the part of a micro-batch's activations that its weight gradient still needs after B. ``limit`` = stages is
    ZB-1p, 2·stages ZB-2p. ``tries`` changes are tried around the best of the first guesses; the result is always the same
    for the same input. Raises ScheduleError for a limit that lets nothing pass.
    """
    times = times or Times()
    if limit < 1:
        raise ScheduleError(f"limit is {limit}, but one micro-batch at least must fit")
    name = name or f"zb-{limit / stages:g}p"

    def made(shape: Shape) -> Schedule:
        ranks = (ordered(r, microbatches, *one) for r, one in enumerate(shape))
        return Schedule(name, microbatches, straight(stages), tuple(ranks))

    def span(shape: Shape) -> float:
        fits = all(ahead + rest * late <= limit + 1e-9 for ahead, late in shape)
        return simulate(made(shape), times).span if fits and _possible(shape, microbatches) else float("inf")

    guesses = _guesses(stages, microbatches, limit, times, rest)
    best = min(((span(guess), guess) for guess in guesses), key=lambda found: found[0])
    draw = random.Random(0)
    for _ in range(tries):
        change = list(best[1])
        for _ in range(draw.choice((1, 1, 2))):
            rank = draw.randrange(stages)
            ahead, late = change[rank]
            change[rank] = (ahead + draw.choice((-1, 0, 0, 1)), late + draw.choice((-2, -1, 0, 1, 2)))
        found = span(tuple(change))
        if found <= best[0]:
            best = found, tuple(change)
    return made(best[1])


def ordered(rank: int, microbatches: int, ahead: int, late: int) -> tuple[Action, ...]:
    """A rank's actions: F ahead times, BF late times, BWF in turns, BW, and the W that were put off."""
    pattern = "F" * ahead + "BF" * late + "BWF" * (microbatches - ahead - late) + "BW" * ahead + "W" * late
    source = {op: iter(range(microbatches)) for op in "FBW"}
    return tuple(Action(op, rank, next(source[op])) for op in pattern)


def _possible(shape: Shape, microbatches: int) -> bool:
    """At least one ahead; no more than there are; a rank has as many ahead as the next one, or that one would wait for ever."""
    inside = all(ahead >= 1 and late >= 0 and ahead + late <= microbatches for ahead, late in shape)
    return inside and all(a[0] >= b[0] for a, b in zip(shape, shape[1:], strict=False))


def _guesses(stages: int, microbatches: int, limit: float, times: Times, rest: float) -> list[Shape]:
    """As many ahead as pass before the first gradient is back, and put off a part of what memory allows."""
    table, found = times.table(stages), []
    for more in (0, 1):
        ahead = []
        for rank in range(stages):
            way = sum(table["F"][rank:]) + sum(table["B"][rank + 1 :]) + 2 * (stages - rank - 1) * times.comm
            count = int(way / table["F"][rank] + 1e-9) + more
            # Ranks further on have less to wait for: they get their part of the memory, and put off more.
            fair = 1 + round((limit - 1) * (stages - rank - 1) / max(1, stages - 1))
            ahead.append(max(1, min(count, fair if limit < 2 * stages else int(limit), microbatches)))
        for part in range(16, 41):
            late = [int(part / 40 * (limit - a) / rest) if rest else microbatches for a in ahead]
            found.append(
                tuple((a, max(0, min(n, microbatches - a))) for a, n in zip(ahead, late, strict=True))
            )
    return found
