"""Covering designs: few cases in which every two values of any two options meet.

Most faults that options cause together take two of them (Kuhn, Wallace and Gallo 2004, "Software fault interactions and
implications for software testing"), and a full product has each pair many times.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def combined(**options: Sequence[Any]) -> list[Case]:
    """The full product: cases with a value of each option."""
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def all_pairs(cases: Iterable[Case], cost: Callable[[Case], float] = lambda case: 1.0) -> list[Case]:
    """Of ``cases`` so many that any two values which one of them has together, one of the chosen has, too.

    Greedy, and the same every time: next is the case with the most pairs that are still missing for what it costs, the
    first of several. At last those go, the dearest first, whose pairs others have brought since. Values are hashable.
    """
    known = list(cases)
    missing = {pair for case in known for pair in pairs(case)}
    most = [(-len(pairs(case)) / cost(case), i) for i, case in enumerate(known)]
    heapq.heapify(most)
    chosen = []
    while missing:
        _, i = heapq.heappop(most)
        gain = -len(pairs(known[i]) & missing) / cost(known[i])
        if most and (gain, i) > most[0]:  # it had more when it was last looked at
            heapq.heappush(most, (gain, i))
            continue
        chosen.append(known[i])
        missing -= pairs(known[i])
    times = Counter(pair for case in chosen for pair in pairs(case))
    for case in sorted(chosen, key=cost, reverse=True):
        if min(times[pair] for pair in pairs(case)) > 1:
            chosen.remove(case)
            times.subtract(pairs(case))
    return chosen


def pairs(case: Case) -> set[frozenset]:
    """All pairs of (option, value) in a case."""
    return {frozenset(two) for two in combinations(case.items(), 2)}
