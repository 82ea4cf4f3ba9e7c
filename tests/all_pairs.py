"""Covering designs: few cases in which every two values of any two options meet.

Most faults that options cause together take two of them (Kuhn, Wallace and Gallo 2004, "Software fault interactions and
implications for software testing"), and a full product has each pair many times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]
#: How often a design is taken apart and made again, and of how many cases for a pair the best is taken.
ROUNDS, LOOKED_AT = 600, 60


def combined(**options: Sequence[Any]) -> list[Case]:
    """The full product: cases with a value of each option."""
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def all_pairs(cases: Iterable[Case], cost: Callable[[Case], float] = lambda case: 1.0) -> list[Case]:
    """Of ``cases`` so many that any two values which one of them has together, one of the chosen has, too.

    The same every time, and cheap: again and again up to a quarter of a design goes, others bring the pairs that it
    lacks then, and what costs no more in sum is kept (Ropke and Pisinger 2006, "An adaptive large neighborhood search
    heuristic", section 3). Values are hashable.
    """
    known, draw = list(cases), random.Random(0)
    design = _Design(known, [cost(case) for case in known], draw)
    best = design.completed([])
    for _ in range(ROUNDS):
        left = draw.sample(best, len(best) - draw.randint(1, len(best) // 4 + 1))
        best = min(design.completed(left), best, key=design.cost)  # of two that cost the same the new one
    return [known[i] for i in sorted(best)]


class _Design:
    """Cases by their places, and their pairs as bits of a number."""

    def __init__(self, known: list[Case], costs: list[float], draw: random.Random):
        self.costs, self.draw = costs, draw
        having: dict[tuple, list[int]] = {}
        for i, case in enumerate(known):
            for pair in combinations(case.items(), 2):  # of a set the order would be another in each process
                having.setdefault(pair, []).append(i)
        self.having = sorted(having.values(), key=len)  # the rarest first
        self.pairs = [0] * len(known)
        for bit, some in enumerate(self.having):
            for i in some:
                self.pairs[i] |= 1 << bit

    def cost(self, chosen: list[int]) -> float:
        return sum(self.costs[i] for i in chosen)

    def completed(self, chosen: list[int]) -> list[int]:
        """With cases for the pairs that are missing, the rarest pair first; without those whose pairs others have."""
        chosen, missing = list(chosen), (1 << len(self.having)) - 1
        for i in chosen:
            missing &= ~self.pairs[i]
        while missing:
            some = self.having[(missing & -missing).bit_length() - 1]
            some = self.draw.sample(some, LOOKED_AT) if len(some) > LOOKED_AT else some
            best = max(some, key=lambda i: (self.pairs[i] & missing).bit_count() / self.costs[i])
            chosen.append(best)
            missing &= ~self.pairs[best]
        once = twice = 0
        for i in chosen:
            once, twice = once | self.pairs[i], twice | once & self.pairs[i]
        for i in sorted(chosen, key=lambda i: -self.costs[i]):
            if not self.pairs[i] & ~twice:
                chosen.remove(i)
                once = twice = 0
                for j in chosen:
                    once, twice = once | self.pairs[j], twice | once & self.pairs[j]
        return chosen


def pairs(case: Case) -> set[frozenset]:
    """All pairs of (option, value) in a case."""
    return {frozenset(two) for two in combinations(case.items(), 2)}
