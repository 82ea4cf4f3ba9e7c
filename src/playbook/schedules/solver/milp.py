"""The integer program of ``exact.py``: when each action begins, and which of two actions of a rank comes first.

Times are variables; so is, for two actions of a rank whose order is open, a number that is 1 if the backward pass (or the
weight gradient) of an earlier micro-batch comes before the other one. Beside the usual "one after the other, or the other
after the one", an action begins no sooner than all that comes before it takes, which keeps the relaxation tight.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from playbook.schedules.timeline import Times

RankPass = tuple[int, str, int]  # rank, op, micro-batch
Terms = list[tuple[int, float]]  # column and coefficient

#: Of a pair (late, early), ``early`` is of an earlier micro-batch and may overtake ``late``; else the order is clear.
PAIRS = (("F", "B"), ("F", "W"), ("B", "W"))


@dataclass(frozen=True)
class Found:
    """What the solver came back with: actions of each rank in order, if it found any; ``bound`` on the objective; whether
    it was done."""

    orders: list[list[tuple[str, int]]] | None
    bound: float
    finished: bool


class IntegerProgram:
    """Shortest span (or makespan) below ``most``, with what is known before any search in ``least`` and ``pairs``."""

    def __init__(
        self,
        stages: int,
        microbatches: int,
        limits: list[float],
        rests: list[float],
        times: Times,
        most: float,
        makespan: bool,
    ):
        self.stages, self.count, self.limits, self.rests = stages, microbatches, limits, rests
        table = times.table(stages)
        self.length = [{op: table[op][r] for op in "FBW"} for r in range(stages)]
        self.hop, self.spacing = times.comm + times.transfer, times.transfer
        if not times.overlap:  # a pass takes as long as it keeps its rank busy
            for rank in range(stages):
                self.length[rank]["F"] += self.hop if rank + 1 < stages else 0.0
                self.length[rank]["B"] += self.hop if rank else 0.0
            self.hop = self.spacing = 0.0
        self.heads = [sum(self.length[q]["F"] + self.hop for q in range(r)) for r in range(stages)]
        self.origin = [0.0] * stages if makespan else self.heads
        self.pairs = 3 * stages * microbatches * (microbatches - 1) // 2
        self.least = max(self._least(rank) for rank in range(stages))
        self.most = most

    def _least(self, rank: int) -> float:
        """No more goes ahead than fits until the first gradient is back; from then on a rank may work without a pause."""
        length = self.length[rank]
        inner = range(rank + 1, self.stages)
        back = length["F"] + sum(self.length[q]["F"] + self.length[q]["B"] + 2 * self.hop for q in inner)
        ahead = min(self.count, int(self.limits[rank] + 1e-9)) * length["F"]
        work = self.count * sum(length.values())
        return self.heads[rank] - self.origin[rank] + work + max(0.0, back - ahead)

    def solve(self, deadline: float) -> Found:
        """Ask HiGHS, until ``deadline`` on the clock of ``time.monotonic``."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        self.unit = max(sum(length.values()) for length in self.length) / 3 or 1.0
        self._windows()
        self._write()
        values, rows, columns = zip(*self.entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self.bounds), self.columns))
        cost = np.zeros(self.columns)
        cost[0] = 1.0
        answer: Any = milp(
            cost,
            integrality=np.array([0] * self.times + [1] * (self.columns - self.times)),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            constraints=LinearConstraint(matrix, np.array(self.bounds), np.inf),
            options={"time_limit": max(0.1, deadline - time.monotonic()), "mip_rel_gap": 1e-6},
        )
        bound = answer.mip_dual_bound
        known = bound * self.unit if bound is not None and np.isfinite(bound) else 0.0
        return Found(None if answer.x is None else self._orders(answer.x), known, answer.status in (0, 2))

    def _windows(self) -> None:
        """The earliest and the latest that each action can begin: many orders follow from that alone."""
        self.soon: dict[RankPass, float] = {}
        self.late: dict[RankPass, float] = {}
        count, stages = self.count, self.stages
        for rank in range(stages):
            f = self.length[rank]["F"]
            for i in range(count):
                came = self.soon[rank - 1, "F", i] + self.length[rank - 1]["F"] + self.hop if rank else 0.0
                self.soon[rank, "F", i] = max(came, self.heads[rank] + i * f)
        for rank in reversed(range(stages)):
            f, b, w = (self.length[rank][op] for op in "FBW")
            for i in range(count):
                own = max(self.soon[rank, "F", i] + f, self.heads[rank] + (i + 1) * f + i * b)
                further = rank + 1 < stages
                came = self.soon[rank + 1, "B", i] + self.length[rank + 1]["B"] + self.hop if further else 0.0
                self.soon[rank, "B", i] = max(own, came)
                self.soon[rank, "W", i] = max(
                    self.soon[rank, "B", i] + b, self.heads[rank] + (i + 1) * (f + b) + i * w
                )
        for rank in range(stages):
            f, b, w = (self.length[rank][op] for op in "FBW")
            end = self.origin[rank] + self.most
            for i in range(count):
                left = count - i
                self.late[rank, "W", i] = end - left * w
                sent = self.late[rank - 1, "B", i] - self.hop if rank else end
                self.late[rank, "B", i] = min(end - left * (b + w), sent - b)
        for rank in reversed(range(stages)):
            f, b, w = (self.length[rank][op] for op in "FBW")
            for i in range(count):
                left = count - i
                sent = (
                    self.late[rank + 1, "F", i] - self.hop if rank + 1 < stages else self.late[rank, "B", i]
                )
                end = self.origin[rank] + self.most - left * (f + b + w)
                self.late[rank, "F", i] = min(end, sent - f, self.late[rank, "B", i] - f)

    def _write(self) -> None:
        """Columns, their bounds, and rows: terms that are at least a number."""
        self.low, self.high = [self.least / self.unit], [self.most / self.unit * (1 - 1e-6)]
        self.entries: list[tuple[float, int, int]] = []
        self.bounds: list[float] = []
        self.column: dict[RankPass, int] = {}
        for place, soon in self.soon.items():
            self.column[place] = len(self.low)
            first = place[1:] == ("F", 0)  # a rank begins as soon as it can
            self.low.append(soon / self.unit)
            self.high.append((soon if first else max(soon, self.late[place])) / self.unit)
        self.times = len(self.low)
        self.order: dict[
            tuple[int, str, int, str, int], int
        ] = {}  # the column of a pair; -1 and -2: surely 0, 1
        for rank in range(self.stages):
            for late, early in PAIRS:
                for i in range(self.count):
                    for j in range(i):
                        self._pair(rank, late, i, early, j)
        self.columns = len(self.low)
        for rank in range(self.stages):
            self._messages(rank)
            self._turns(rank)
            self._memory(rank)
            for i in range(self.count):
                self._steady(rank, i)

    def _add(self, terms: Iterable[tuple[int, float]], least: float) -> None:
        """A row. A pair that is decided is a number, not a column."""
        row = len(self.bounds)
        for column, factor in terms:
            if column >= 0:
                self.entries.append((factor, row, column))
            elif column == -2:
                least -= factor
        self.bounds.append(least)

    def _after(self, later: RankPass, earlier: RankPass, gap: float) -> None:
        self._add([(self.column[later], 1.0), (self.column[earlier], -1.0)], gap / self.unit)

    def _pair(self, rank: int, late: str, i: int, early: str, j: int) -> None:
        """1 if ``early`` of micro-batch j comes before ``late`` of micro-batch i > j."""
        a, b = (rank, late, i), (rank, early, j)
        length_a, length_b = self.length[rank][late], self.length[rank][early]
        key = rank, late, i, early, j
        if self.soon[a] + length_a > self.late[b] + 1e-9 * self.most:
            self.order[key] = -2
        elif self.soon[b] + length_b > self.late[a] + 1e-9 * self.most:
            self.order[key] = -1
        else:
            self.order[key] = len(self.low)
            self.low.append(0.0)
            self.high.append(1.0)

    def _messages(self, rank: int) -> None:
        """F before F of the next stage, B before B of the one before; a link carries one message after the other."""
        for op, to in (("F", rank + 1), ("B", rank - 1)):
            if not 0 <= to < self.stages:
                continue
            length = self.length[rank][op]
            for i in range(self.count):
                self._after((to, op, i), (rank, op, i), length + self.hop)
                if self.spacing > length:
                    for j in range(i):
                        wait = length + self.hop + (i - j) * self.spacing
                        self._after((to, op, i), (rank, op, j), wait)

    def _turns(self, rank: int) -> None:
        """A rank does one thing at a time: each kind in order, F before B before W of a micro-batch, pairs as they are
        decided."""
        length = self.length[rank]
        for i in range(self.count):
            for op in "FBW":
                if i:
                    self._after((rank, op, i), (rank, op, i - 1), length[op])
            self._after((rank, "B", i), (rank, "F", i), length["F"])
            self._after((rank, "W", i), (rank, "B", i), length["B"])
        for late, early in PAIRS:
            for i in range(self.count):
                for j in range(i):
                    self._decided(rank, late, i, early, j)

    def _decided(self, rank: int, late: str, i: int, early: str, j: int) -> None:
        a, b = (rank, late, i), (rank, early, j)
        pair = self.order[rank, late, i, early, j]
        if pair == -2:
            self._after(a, b, self.length[rank][early])
        elif pair == -1:
            self._after(b, a, self.length[rank][late])
        else:
            first = (self.length[rank][early] + self.late[b] - self.soon[a]) / self.unit
            then = (self.length[rank][late] + self.late[a] - self.soon[b]) / self.unit
            x, y = self.column[a], self.column[b]
            self._add([(x, 1), (y, -1), (pair, -first)], self.length[rank][early] / self.unit - first)
            self._add([(y, 1), (x, -1), (pair, then)], self.length[rank][late] / self.unit)
        if j:  # who has been overtaken by one has been by all before it
            self._add([(self.order[rank, late, i, early, j - 1], 1), (pair, -1)], 0)
        if i - 1 > j:
            self._add([(pair, 1), (self.order[rank, late, i - 1, early, j], -1)], 0)

    def _memory(self, rank: int) -> None:
        """What is kept as a forward pass begins: all before it, less what B and W have freed."""
        rest = self.rests[rank]
        for i in range(self.count):
            freed = [(self.order[rank, "F", i, "B", j], 1 - rest) for j in range(i)]
            freed += [(self.order[rank, "F", i, "W", j], rest) for j in range(i)]
            self._add(freed, i + 1 - self.limits[rank])

    def _steady(self, rank: int, i: int) -> None:
        """An action begins after all that comes before it, and all that comes after it ends in time."""
        m, length = self.count, {op: took / self.unit for op, took in self.length[rank].items()}
        head, origin = self.heads[rank] / self.unit, self.origin[rank] / self.unit
        work = m * sum(length.values())
        for op in "FBW":
            # Sure to come before: own kind of earlier micro-batches, and own earlier kinds up to this one.
            earlier = "FBW"[: "FBW".index(op)]
            before = i * length[op] + (i + 1) * sum(length[kind] for kind in earlier)
            terms: Terms = []
            for late, early in PAIRS:
                if late == op:  # overtaken by these
                    terms += [(self.order[rank, op, i, early, j], length[early]) for j in range(i)]
                elif early == op:  # not overtaking those
                    before += length[late] * (m - 1 - i)
                    terms += [(self.order[rank, late, k, op, i], -length[late]) for k in range(i + 1, m)]
            begins = self.column[rank, op, i]
            if i or op != "F":
                self._add([(begins, 1), *((c, -t) for c, t in terms)], head + before)
            self._add([(0, 1), (begins, -1), *terms], work - before - origin)

    def _orders(self, values: Any) -> list[list[tuple[str, int]]]:
        """Each rank's actions by how many come before them."""
        found = []
        for rank in range(self.stages):
            before = {(op, i): i + "FBW".index(op) * (i + 1) for op in "FBW" for i in range(self.count)}
            for late, early in PAIRS:
                for i in range(self.count):
                    for j in range(i):
                        pair = self.order[rank, late, i, early, j]
                        first = pair == -2 or (pair >= 0 and values[pair] > 0.5)
                        before[(late, i) if first else (early, j)] += 1
            found.append(sorted(before, key=lambda one: before[one]))
        return found
