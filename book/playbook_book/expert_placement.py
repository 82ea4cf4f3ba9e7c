"""Hot experts in several copies, and experts packed onto ranks so that each rank has as many rows as any other.

DeepSeek's load balancer for expert parallelism (github.com/deepseek-ai/EPLB; DeepSeek-V3, arXiv 2412.19437, section 3.4:
redundant experts), of one layer and one node: `replicate` says how many replicas each expert gets, `place` on which ranks
they are. Unlike EPLB it never puts two replicas of an expert on one rank, where they would take memory and balance
nothing. Replicas share the rows of their expert evenly. Standard library only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from playbook._checks import check_divides, check_int
from playbook.errors import ConfigError


@dataclass(frozen=True)
class ExpertPlacement:
    """Which ``experts`` are on each rank, under ``loads``, the rows of each expert."""

    loads: tuple[float, ...]
    experts: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Replicas of each expert."""
        found = [0] * len(self.loads)
        for e in (e for rank in self.experts for e in rank):
            found[e] += 1
        return tuple(found)

    @property
    def rows(self) -> tuple[float, ...]:
        """Rows of each rank."""
        each = [load / count for load, count in zip(self.loads, self.counts, strict=True)]
        return tuple(sum(each[e] for e in rank) for rank in self.experts)

    @property
    def imbalance(self) -> float:
        """Rows of the busiest rank over the mean: 1 where all have as many, the number of ranks where one has all."""
        return max(self.rows) * len(self.experts) / sum(self.loads) if any(self.loads) else 1.0

    @property
    def before(self) -> ExpertPlacement:
        """What this replaces: no replicas, the experts on the ranks in order."""
        return in_order(self.loads, len(self.experts))

    @property
    def moved(self) -> int:
        """Experts that ranks have now and had not before: their weights have to travel."""
        return sum(len({*now} - {*then}) for now, then in zip(self.experts, self.before.experts, strict=True))


def in_order(loads: Sequence[float], ranks: int) -> ExpertPlacement:
    """Expert parallelism as it is without all this: the first experts on the first rank, and so on."""
    _check(loads)
    check_divides("ranks", check_int("ranks", ranks, ConfigError), "experts", len(loads), ConfigError)
    each = len(loads) // ranks
    experts = tuple(tuple(range(rank * each, (rank + 1) * each)) for rank in range(ranks))
    return ExpertPlacement(tuple(loads), experts)


def balanced(loads: Sequence[float], ranks: int, slots: int) -> ExpertPlacement:
    """Experts of ``loads`` rows replicated and placed on ``ranks`` ranks with ``slots`` slots each, all of them filled.

    Raises ConfigError for fewer slots than experts need, and for more than one rank can use.
    """
    needed = len(in_order(loads, ranks).experts[0])
    check_int("slots", slots, ConfigError, least=needed, most=len(loads))
    return ExpertPlacement(tuple(loads), place(loads, replicate(loads, slots * ranks, most=ranks), ranks))


def replicate(loads: Sequence[float], slots: int, most: int | None = None) -> tuple[int, ...]:
    """How many of ``slots`` slots each expert gets: 1, then again and again 1 for the one with most rows a replica.

    No other counts make that maximum smaller, since every slot goes where it is. No expert gets more than ``most``.
    """
    _check(loads)
    check_int("slots", slots, ConfigError, least=len(loads))
    most = slots if most is None else check_int("most", most, ConfigError)
    check_int("slots", slots, ConfigError, most=most * len(loads))
    counts = [1] * len(loads)
    # Of two with as many rows a replica, the larger: what experts are called must not matter.
    fullest = [(-load, -load, e) for e, load in enumerate(loads) if most > 1]
    heapq.heapify(fullest)
    for _ in range(slots - len(loads)):
        _, load, e = heapq.heappop(fullest)
        counts[e] += 1
        if counts[e] < most:
            heapq.heappush(fullest, (load / counts[e], load, e))
    return tuple(counts)


def place(loads: Sequence[float], counts: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """The experts of each rank, for ``counts`` replicas of each: as many on one rank as on any other, and all different.

    Greedily, the longest first (LPT: Graham 1969, SIAM Journal on Applied Mathematics 17): from the expert with most rows
    a replica to that with fewest, replicas go to the ranks that have fewest rows among those with a slot left.
    """
    _check(loads)
    if len(counts) != len(loads):
        raise ConfigError(f"counts must be a number for each of {len(loads)} experts, got {len(counts)}")
    check_int("ranks", ranks, ConfigError)
    for count in counts:
        check_int("replicas of an expert", count, ConfigError, most=ranks)
    check_divides("ranks", ranks, "replicas", sum(counts), ConfigError)
    slots = sum(counts) // ranks
    each = [load / count for load, count in zip(loads, counts, strict=True)]
    placed: list[list[int]] = [[] for _ in range(ranks)]
    for e in sorted(range(len(loads)), key=lambda e: (-each[e], -counts[e])):
        rows = [sum(each[other] for other in rank) for rank in placed]
        free = [r for r in range(ranks) if len(placed[r]) < slots]
        free.sort(key=lambda r: rows[r])
        for r in free[: counts[e]]:
            placed[r].append(e)
        for _ in range(counts[e] - len(free)):
            _swap_in(e, placed, each, slots)
    return tuple(tuple(sorted(rank)) for rank in placed)


def _swap_in(e: int, placed: list[list[int]], each: list[float], slots: int) -> None:
    """Put ``e`` on a full rank, one of whose experts moves to a rank that has a slot left, but also ``e`` already.

    There always is one: the full rank has more experts than the other, and not ``e``, so at least two that the other has
    not. Of all ways, the one after which the busier of the two has fewest rows.
    """
    rows = [sum(each[other] for other in rank) for rank in placed]
    ways = [
        (max(rows[full] - each[f] + each[e], rows[r] + each[f]), full, r, i)
        for r, rank in enumerate(placed)
        if len(rank) < slots
        for full, others in enumerate(placed)
        if len(others) == slots and e not in others
        for i, f in enumerate(others)
        if f not in rank
    ]
    _, full, r, i = min(ways)
    placed[r].append(placed[full][i])
    placed[full][i] = e


def _check(loads: Sequence[float]) -> None:
    if not loads or not all(0 <= load < float("inf") for load in loads):
        raise ConfigError(f"loads must be a finite number of rows for each expert, got {list(loads)!r}")
