"""Exercises of the chapter on Muon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number, same

Rows = list[list[float]]


@number(
    "muon.overhead",
    "the tokens per step from which Newton-Schulz adds at most one percent",
    praise="each more token per step makes the share smaller: the update costs the same, however large the batch",
    otherwise="Write both FLOPs for one matrix: n stays only in the smaller term",
    tolerance=0.01,
)
def overhead() -> tuple[float, dict[float, str]]:
    m, n, share = 8192, 28672, 0.01
    right = (20 * m + 10 * m * m / n) / (6 * share)
    return right, {
        5 * m / share: "that is the bound, exact for a square matrix; this one is wider, and needs fewer",
        (20 * n + 10 * n * n / m) / (6 * share): "m is the shorter side: the squares are m × m",
        right / 5: "that is one iteration of five",
        3 * right: "that is a percent of forward alone; backward takes twice as many FLOPs",
        20 * m / (6 * share): "the square of XXᵀ is a product, too: 2m³ FLOPs",
        right
        / 2: "a product of an m × k and a k × n matrix takes 2mkn FLOPs: a multiplication and an addition each",
        right / 100: "one percent is 0.01",
    }


@answers_made("muon.overhead")
def _counted() -> tuple[list[Any], dict[str, Any]]:
    from playbook.planning.muon import Matrix

    return [Matrix(1, 28672, 8192, ()).flops / (6 * 28672 * 8192 * 0.01)], {}


#: Matrices of six blocks of Llama 3 8B, and of blocks in which sides differ more; numbers of ranks.
LLAMA = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), *[(14336, 4096)] * 2, (4096, 14336)]
UNEVEN = [
    (8192, 1024), (4096, 4096), (3072, 3072), (6144, 2048), (1024, 8192), (2048, 2048), (4096, 1024), (3072, 3072)
]  # fmt: skip
CASES = ((LLAMA * 6, 8), (UNEVEN * 3, 4))
#: How much more than the average the busiest rank may have.
MOST = 9 / 8


def _flops(rows: int, columns: int) -> float:
    m, n = sorted((rows, columns))
    return 5 * (4 * m * m * n + 2 * m**3)


def _loads(costs: Sequence[float], owners: Sequence[int], ranks: int) -> list[float]:
    """What each rank has, as a multiple of the average."""
    found = [0.0] * ranks
    for cost, owner in zip(costs, owners, strict=True):
        found[owner] += cost * ranks / sum(costs)
    return found


@exercise("muon.owners", "function", "a rank for each matrix, so that all have about as much to compute")
def owners(write: Callable[..., Any]) -> str:
    for shapes, ranks in CASES:
        where = f"{len(shapes)} matrices, {ranks} ranks: "
        given = list(write(list(shapes), ranks))
        if len(given) != len(shapes):
            raise NotYet(f"{where}{len(given)} owners, expected one for each matrix, in their order")
        if odd := [rank for rank in given if rank not in range(ranks)]:
            raise NotYet(f"{where}rank {odd[0]!r} is none of 0 to {ranks - 1}")
        loads = _loads([_flops(*shape) for shape in shapes], given, ranks)
        if (most := max(loads)) > MOST:
            raise NotYet(
                f"{where}rank {loads.index(most)} computes {most:.2f} times the average. {_why(shapes, given, ranks)}"
            )
    return "no rank waits long for the busiest one"


def _why(shapes: Sequence[tuple[int, int]], given: Sequence[int], ranks: int) -> str:
    if max(_loads([rows * columns for rows, columns in shapes], given, ranks)) <= MOST:
        return "Ranks have about as many elements, but an element of a square matrix costs more than one of a long one"
    counts = [given.count(rank) for rank in range(ranks)]
    if max(counts) - min(counts) <= 1:
        return "All have about as many matrices, but these differ by far in what they cost"
    return "Give a costly matrix to the rank that has least so far"


def _greedy(
    shapes: Sequence[tuple[int, int]],
    ranks: int,
    *,
    cost: Callable[[int, int], float] = _flops,
    largest_first: bool = True,
) -> list[int]:
    costs, load, found = [cost(*shape) for shape in shapes], [0.0] * ranks, [0] * len(shapes)
    order = sorted(range(len(costs)), key=lambda i: -costs[i]) if largest_first else range(len(costs))
    for i in order:
        found[i] = min(range(ranks), key=load.__getitem__)
        load[found[i]] += costs[i]
    return found


def _in_turns(shapes: Sequence[tuple[int, int]], ranks: int, *, turning: bool) -> list[int]:
    found, order = [0] * len(shapes), sorted(range(len(shapes)), key=lambda i: -_flops(*shapes[i]))
    for place, i in enumerate(order):
        back = turning and place // ranks % 2
        found[i] = ranks - 1 - place % ranks if back else place % ranks
    return found


answers(
    "muon.owners",
    right=[_greedy, partial(_in_turns, turning=True)],
    wrong={
        "All have about as many matrices": lambda shapes, ranks: [i % ranks for i in range(len(shapes))],
        "rank 0 computes 1.20 times the average": partial(_in_turns, turning=False),
        "an element of a square matrix costs more": partial(
            _greedy, cost=lambda rows, columns: rows * columns
        ),
        "rank 0 computes 8.00 times the average. Give a costly": lambda shapes, ranks: [0] * len(shapes),
        "rank 8 is none of 0 to 7": lambda shapes, ranks: [i % ranks + 1 for i in range(len(shapes))],
        "8 owners, expected one for each matrix": lambda shapes, ranks: list(range(ranks)),
    },
)


def orthogonal(x: Rows) -> Rows:
    """Newton-Schulz on rows of numbers, no more of them than columns."""

    def dot(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True))

    norm = math.sqrt(sum(dot(row, row) for row in x))
    x = [[value / norm for value in row] for row in x]
    for _ in range(5):
        gram = [[dot(a, b) for b in x] for a in x]
        many = [
            [-4.7750 * gram[i][j] + 2.0315 * dot(gram[i], gram[j]) for j in range(len(x))]
            for i in range(len(x))
        ]
        columns = list(zip(*x, strict=True))
        x = [
            [3.4445 * x[i][j] + dot(many[i], column) for j, column in enumerate(columns)]
            for i in range(len(x))
        ]
    return x


class _Rank:
    """One of some ranks, which all have gradients of their own, and what it may ask for."""

    def __init__(self, ranks: int, rank: int, rows: int = 4, columns: int = 6):
        self.local: list[Rows] = [
            [[math.sin(1 + 7 * r + 3 * i + 2 * j * (i + 1)) for j in range(columns)] for i in range(rows)]
            for r in range(ranks)
        ]
        self.own = self.local[rank]
        self.total = [[sum(v) for v in zip(*row, strict=True)] for row in zip(*self.local, strict=True)]
        each = rows // ranks
        self.mine = slice(rank * each, (rank + 1) * each)

    def reduce_scatter(self, rows: Rows) -> Rows:
        if not same(rows, self.own):
            raise NotYet("reduce_scatter sums what ranks give it: give it all rows of this rank's gradient")
        return [list(row) for row in self.total[self.mine]]

    def all_gather(self, rows: Rows) -> Rows:
        if same(rows, self.own[self.mine]):
            raise NotYet("all_gather was given rows of this rank's samples alone: sum them over ranks first")
        if not same(rows, self.total[self.mine]):
            raise NotYet("all_gather puts the rows of all ranks together: give it those that this rank owns")
        return [list(row) for row in self.total]

    def orthogonal(self, rows: Rows) -> Rows:
        if len(rows) != len(self.total):
            raise NotYet(
                f"Newton-Schulz saw {len(rows)} of {len(self.total)} rows: that is blockwise, another update"
            )
        if same(rows, self.own):
            raise NotYet("Newton-Schulz saw the gradient of this rank's samples alone")
        if not same(rows, self.total):
            raise NotYet(
                "Newton-Schulz saw a matrix in which only this rank's rows were summed over ranks: "
                "each rank makes another update"
            )
        return orthogonal(rows)


@exercise("muon.rows", "repair", "the rows of an update, of a gradient that was reduce-scattered")
def rows_of_update(mended: Callable[..., Any]) -> str:
    for ranks in (2, 4):
        for rank in range(ranks):
            one = _Rank(ranks, rank)
            gradient = [list(row) for row in one.own]
            given = mended(gradient, one.mine, one.reduce_scatter, one.all_gather, one.orthogonal)
            wanted = orthogonal(one.total)[one.mine]
            if not isinstance(given, list) or len(given) != len(wanted):
                size = f"{len(given)} rows" if isinstance(given, list) else repr(given)
                raise NotYet(
                    f"with {ranks} ranks it returned {size}, expected the {len(wanted)} of this rank"
                )
            if not same(given, wanted):
                raise NotYet(f"with {ranks} ranks, rank {rank} returned other rows than those of one device")
    return "every rank makes the update of one device, and keeps its rows of it"


def _of_summed(gradient: Rows, mine: slice, reduce_scatter: Any, all_gather: Any, orthogonal: Any) -> Rows:
    return orthogonal(all_gather(reduce_scatter(gradient)))[mine]


def _in_place(gradient: Rows, mine: slice, reduce_scatter: Any, all_gather: Any, orthogonal: Any) -> Rows:
    gradient[:] = all_gather(reduce_scatter(gradient))
    return orthogonal(gradient)[mine]


def _as_found(gradient: Rows, mine: slice, reduce_scatter: Any, all_gather: Any, orthogonal: Any) -> Rows:
    gradient[mine] = reduce_scatter(gradient)
    return orthogonal(gradient)[mine]


answers(
    "muon.rows",
    right=[_of_summed, _in_place],
    wrong={
        "only this rank's rows were summed over ranks": _as_found,
        "Newton-Schulz saw 2 of 4 rows: that is blockwise": (
            lambda gradient, mine, reduce, gather, orthogonal: orthogonal(reduce(gradient))
        ),
        "all_gather was given rows of this rank's samples alone": (
            lambda gradient, mine, reduce, gather, orthogonal: orthogonal(gather(gradient[mine]))[mine]
        ),
        "Newton-Schulz saw the gradient of this rank's samples alone": (
            lambda gradient, mine, reduce, gather, orthogonal: orthogonal(gradient)[mine]
        ),
        "it returned 4 rows, expected the 2 of this rank": (
            lambda gradient, mine, reduce, gather, orthogonal: orthogonal(gather(reduce(gradient)))
        ),
        "rank 0 returned other rows than those of one device": (
            lambda gradient, mine, reduce, gather, orthogonal: gather(reduce(gradient))[mine]
        ),
    },
)
