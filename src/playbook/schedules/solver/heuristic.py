"""Zero-bubble schedules for measured times and any limit of memory (Qi et al. 2023, arXiv 2401.10241, section 3).

On every rank the order has one shape: some forward passes ahead, then backward and forward passes in turns whose weight
gradients are deferred, then all three in turns, then what is left. Two numbers per rank say it: how many are *ahead*, and
how many are *deferred*. First guesses follow from the times; a search around the best measures what each change is worth.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import pairwise, product

from playbook.schedules.actions import Action, Schedule, straight
from playbook.schedules.timeline import PerStage, Times
from playbook.schedules.validate import by_rank

Shape = tuple[tuple[int, int], ...]  # (ahead, deferred) of every rank

#: Changes that a search tries, and actions that it may go through for them: a second or two.
TRIES, WORK = 400, 6_000_000


def zero_bubble(
    stages: int,
    microbatches: int,
    limit: PerStage,
    times: Times | None = None,
    *,
    rest: PerStage = 1.0,
    tries: int | None = None,
    name: str = "",
) -> Schedule:
    """The schedule with the shortest span that keeps the activations of at most ``limit`` micro-batches on every rank.

    ``rest`` is the part of a micro-batch's activations that its weight gradient still needs after B; both are one number,
    or one per rank. ``limit`` = stages is ZB-1p, 2·stages ZB-2p. ``tries`` changes are tried around the best of the first
    guesses (by default 400, fewer of large schedules); the result is always the same for the same input. Raises
    ScheduleError for a limit below 1, which lets nothing pass, and for a rest outside 0 to 1.
    """
    times = times or Times()
    limits = by_rank("limit", limit, stages, least=1.0)
    rests = by_rank("rest", rest, stages, least=0.0, most=1.0)

    def span(shape: Shape) -> float:
        kept = zip(shape, limits, rests, strict=True)
        fits = all(ahead + part * late <= most + 1e-9 for (ahead, late), most, part in kept)
        return (
            span_of(shape, microbatches, times) if fits and _possible(shape, microbatches) else float("inf")
        )

    guesses = dict.fromkeys(_guesses(stages, microbatches, limits, times, rests))
    known = {shape: span(shape) for shape in guesses}
    best = min(known, key=lambda shape: known[shape])
    if tries is None:
        tries = max(10, min(TRIES, WORK // (3 * stages * microbatches) - len(known)))
    for change in _changes(stages, tries):
        shape = tuple((a + more, n + later) for (a, n), (more, later) in zip(best, change, strict=True))
        if shape not in known:
            known[shape] = span(shape)
            if known[shape] <= known[best]:
                best = shape
    ranks = tuple(ordered(r, microbatches, *one) for r, one in enumerate(best))
    return Schedule(name or f"zb-{max(limits) / stages:g}p", microbatches, straight(stages), ranks)


def ordered(rank: int, microbatches: int, ahead: int, late: int) -> tuple[Action, ...]:
    """A rank's actions: F ahead times, BF late times, BWF in turns, BW, and the W that were deferred."""
    source = {op: iter([Action(op, rank, m) for m in range(microbatches)]) for op in "FBW"}
    return tuple([next(source[op]) for op in _pattern(microbatches, ahead, late)])


def span_of(shape: Shape, microbatches: int, times: Times) -> float:
    """The span of the schedule of this shape: what `simulate` finds, in a fifth of the time."""
    return _Spans(shape, microbatches, times).run()


class _Spans:
    def __init__(self, shape: Shape, microbatches: int, times: Times):
        self.times, self.table, stages = times, times.table(len(shape)), len(shape)
        self.patterns = [_pattern(microbatches, *one) for one in shape]
        # When messages are there. Those of one kind arrive in order, so a rank's n-th pass waits for the n-th one. The
        # ends have all they need at once, and send into the void.
        self.forward: list[list[float]] = [[0.0] * microbatches, *([] for _ in shape)]
        self.backward: list[list[float]] = [*([] for _ in shape), [0.0] * microbatches]
        self.place, self.free = [0] * stages, [0.0] * stages
        self.taken = [(0, 0)] * stages
        self.stuck = [""] * stages  # what a rank waits with

    def run(self) -> float:
        stages = len(self.place)
        ready, queued = deque(range(stages)), [True] * stages
        while ready:
            rank = ready.popleft()
            queued[rank] = False
            self._advance(rank)
            for other, op, sent in ((rank + 1, "F", self.forward), (rank - 1, "B", self.backward)):
                if not 0 <= other < stages or queued[other] or self.stuck[other] != op:
                    continue
                if len(sent[rank + 1 if op == "F" else rank]) > self.taken[other][op == "B"]:
                    ready.append(other)
                    queued[other] = True
        return max(end - came[0] for end, came in zip(self.free, self.forward, strict=False))

    def _advance(self, rank: int) -> None:
        """What ``rank`` can do before it must wait."""
        f, b, w = (self.table[op][rank] for op in "FBW")
        down, up = self.forward[rank], self.backward[rank + 1]
        down_out, up_out = self.forward[rank + 1], self.backward[rank]
        hop, alone = self.times.comm + self.times.transfer, not self.times.transfer and self.times.overlap
        pattern, i, now = self.patterns[rank], self.place[rank], self.free[rank]
        forward, backward = self.taken[rank]
        op = ""
        for op in pattern[i:]:
            if op == "W":
                now += w
            elif op == "F":
                if forward == len(down):
                    break
                came = down[forward]
                forward += 1
                now = (came if came > now else now) + f
                if alone:
                    down_out.append(now + hop)
                elif rank + 1 < len(self.place):
                    now = self._send(now, down_out)
            else:
                if backward == len(up):
                    break
                came = up[backward]
                backward += 1
                now = (came if came > now else now) + b
                if alone:
                    up_out.append(now + hop)
                elif rank:
                    now = self._send(now, up_out)
            i += 1
        self.place[rank], self.free[rank], self.taken[rank] = i, now, (forward, backward)
        self.stuck[rank] = op if i < len(pattern) else ""

    def _send(self, now: float, sent: list[float]) -> float:
        """The message before this one left its link when it arrived, less the latency. When the rank is free again."""
        comm, transfer = self.times.comm, self.times.transfer
        sent.append((max(now, sent[-1] - comm) if sent else now) + transfer + comm)
        return now if self.times.overlap else sent[-1]


def _pattern(microbatches: int, ahead: int, late: int) -> str:
    return "F" * ahead + "BF" * late + "BWF" * (microbatches - ahead - late) + "BW" * ahead + "W" * late


def _possible(shape: Shape, microbatches: int) -> bool:
    """At least one ahead; no more than there are; as many as the next rank has, or that one would wait for ever."""
    inside = all(ahead >= 1 and late >= 0 and ahead + late <= microbatches for ahead, late in shape)
    return inside and all(a[0] >= b[0] for a, b in pairwise(shape))


def _changes(stages: int, tries: int) -> Iterator[list[tuple[int, int]]]:
    """What to add to a shape: something on one rank or two. Always the same."""
    draw = random.Random(0)
    for _ in range(tries):
        change = [(0, 0)] * stages
        for _ in range(draw.choice((1, 1, 2))):
            change[draw.randrange(stages)] = draw.choice((-1, 0, 0, 1)), draw.choice((-2, -1, 0, 1, 2))
        yield change


def _guesses(
    stages: int, microbatches: int, limits: list[float], times: Times, rests: list[float]
) -> Iterator[Shape]:
    """Those for this memory. More than 2·stages need not all be used: then those for less, too, which still fit."""
    yield ((1, 0),) * stages  # one at a time, which fits any limit
    yield from _guesses_within(microbatches, limits, times, rests)
    if max(limits) > 2 * stages:
        for most, share in product((2.0, 2.5, 3.0), (1.0, 0.5)):
            less = [min(limit, most * stages) for limit in limits]
            yield from _guesses_within(microbatches, less, times, [share * rest for rest in rests])


def _guesses_within(
    microbatches: int, limits: list[float], times: Times, rests: list[float]
) -> Iterator[Shape]:
    """As many ahead as pass before the first gradient is back, and defers a part of what memory allows."""
    uniform = min(limits) == max(limits)
    for fair in (True,) if uniform else (True, False):
        for more in (0, 1):
            ahead = _ahead(microbatches, limits, times, more, fair)
            yield tuple((a, 0) for a in ahead)
            for part in range(16, 41):
                late = [
                    min(m, int(part / 40 * (limit - a) / rest)) if rest else m
                    for a, limit, rest in zip(ahead, limits, rests, strict=True)
                    for m in (microbatches - a,)
                ]
                yield tuple(zip(ahead, late, strict=True))


def _ahead(microbatches: int, limits: list[float], times: Times, more: int, fair: bool) -> list[int]:
    """How many F each rank can do while the first micro-batch goes to the end and back, and ``more``, within its limit.

    Ranks further on have less to wait for: if ``fair``, they get a smaller part of their memory, and defer more.
    """
    stages = len(limits)
    table, hop = times.table(stages), times.comm + times.transfer
    ahead: list[int] = []
    for rank, limit in enumerate(limits):
        inner = stages - rank - 1
        way = sum(table["F"][rank:]) + sum(table["B"][rank + 1 :]) + 2 * inner * hop
        count = int(way / table["F"][rank] + 1e-9) + more if table["F"][rank] else microbatches
        share = 1 + round((limit - 1) * inner / max(1, stages - 1))
        most = min(share if fair and limit < 2 * stages else microbatches, int(limit + 1e-9))
        ahead.append(max(1, min(count, most, microbatches, *ahead[-1:])))
    return ahead
