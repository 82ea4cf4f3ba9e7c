"""Exercises of the chapter on memory access."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from functools import partial
from operator import add
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number


@number(
    "memory-access.sectors",
    "sectors of 32 particles, read field by field",
    praise="every number read costs a sector; from nine separate arrays, a sector would bring eight numbers",
    otherwise="In one load, how far apart do neighbouring threads read, compared with a sector?",
)
def sectors_of_particles() -> tuple[float, dict[float, str]]:
    from playbook_book.kernels.warps import load, sectors

    fields = 9
    loads = [sectors([load("particles", fields * i + field) for i in range(32)]) for field in range(fields)]
    return sum(loads), {
        loads[0]: "that is one of the nine loads",
        36: "that is what the particles fill, and what nine arrays would cost, one array for each field",
        9 * 36: "almost: the particles fill 36 sectors, but one load does not touch all of them",
        32 * sum(loads): "that is in bytes",
    }


ROWS, COLUMNS = 64, 8


@exercise("memory-access.swizzle", "function", "where the chunks of a tile lie, without bank conflicts")
def swizzle(write: Callable[[int, int], int]) -> str:
    from playbook_book.kernels.warps import passes, shared

    places = {(row, column): write(row, column) for row in range(ROWS) for column in range(COLUMNS)}
    _distinct(places)

    def of_warp(chunks: list[tuple[int, int]]) -> int:
        return passes([shared("tile", places[one], size=16) for one in chunks])

    for first in range(0, ROWS, 4):
        found = of_warp([(first + i // COLUMNS, i % COLUMNS) for i in range(32)])
        if found > 4:
            raise NotYet(f"writing rows {first} to {first + 3} takes {found} wavefronts, and should take 4")
    for column in range(COLUMNS):
        for first in (0, 32):
            found = of_warp([(first + i, column) for i in range(32)])
            if found > 4:
                raise NotYet(
                    f"rows are written in 4 wavefronts; reading column {column} of rows {first} to {first + 31} "
                    f"takes {found}"
                )
    return "rows and columns in the fewest wavefronts, and no byte of padding"


def _distinct(places: dict[tuple[int, int], int]) -> None:
    seen: dict[int, tuple[int, int]] = {}
    for where, place in places.items():
        if isinstance(place, bool) or not isinstance(place, int):
            raise NotYet(f"chunk{where} is {place!r}, but a place is a whole number")
        if not 0 <= place < ROWS * COLUMNS:
            raise NotYet(f"chunk{where} is {place}, outside the tile's {ROWS * COLUMNS} places")
        if place in seen:
            raise NotYet(f"chunks {seen[place]} and {where} lie in the same place, {place}")
        seen[place] = where


answers(
    "memory-access.swizzle",
    right=[
        lambda row, column: row * 8 + (column ^ row % 8),
        lambda row, column: row * 8 + (column + row) % 8,
    ],
    wrong={
        "reading column 0 of rows 0 to 31 takes 32": lambda row, column: row * 8 + column,
        "chunk(57, 0) is 513, outside the tile's 512 places": lambda row, column: row * 9 + column,
        "writing rows 0 to 3 takes 32 wavefronts": lambda row, column: column * 64 + row,
        "chunks (0, 0) and (0, 1) lie in the same place, 0": lambda row, column: row * 8,
        "reading column 0 of rows 0 to 31 takes 8": lambda row, column: row * 8 + (column + row // 2) % 8,
        "chunk(0, 0) is 0.0, but a place is a whole number": lambda row, column: row * 8 + column / 1,
    },
)


@exercise("memory-access.race", "repair", "a softmax whose threads overwrite what others have not read yet")
def race(mended: Callable[..., Generator[None] | None]) -> str:
    from playbook.errors import ConfigError
    from playbook_book.block import Order, run
    from playbook_book.kernels.warps import Dim

    values = [0.5 * (i * 7 % 11) - 3.0 for i in range(32)]
    weights = [math.exp(value - max(values)) for value in values]
    right = [weight / sum(weights) for weight in weights]
    orders: tuple[Order, ...] = ("backward", "forward", 0)
    for order in orders:
        x, y = _Row(values), [math.nan] * 32
        try:
            ran = run(mended, Dim(32), x, y, shared={"s": 32}, order=order)
        except ConfigError as error:
            raise NotYet(str(error)) from None
        good = all(abs(a - b) < 1e-9 for a, b in zip(y, right, strict=True))  # false for what is no number
        if ran.races:
            result = "right in this order of threads, but" if good else "wrong:"
            raise NotYet(f"the result is {result} {min(ran.races, key=lambda one: one.place)}")
        if not good:
            raise NotYet("there is no race, but the result is not the softmax of x")
        if x.reads > 2 * 32:
            raise NotYet(f"right, but the threads read x {x.reads} times; {2 * 32} times is enough")
        if ran.barriers > 13:
            raise NotYet(f"right, and without a race, but {ran.barriers} barriers are more than it needs")
    return "the softmax in any order of threads, and no race"


class _Row:
    """Numbers in global memory, and how often they are read."""

    def __init__(self, values: list[float]):
        self.values, self.reads = values, 0

    def __getitem__(self, i: int) -> float:
        self.reads += 1
        return self.values[i]


def _halves(t: Any, s: Any, combine: Callable[[float, float], float]) -> Generator[None]:
    stride = t.block_dim.x // 2
    while stride:
        if t.x < stride:
            s[t.x] = combine(s[t.x], s[t.x + stride])
        yield
        stride //= 2


def _softmax(
    t: Any, x: Any, y: Any, s: Any, *, before=0, between=1, after=1, branch=False, top=None
) -> Generator[None]:
    """With so many barriers before the maximum is read, after that, and before the sum."""
    s[t.x] = x[t.x]
    yield
    yield from _halves(t, s, max)
    yield from [None] * before
    largest = top(x) if top else s[0]
    yield from [None] * between
    if branch and t.x:
        yield
    s[t.x] = mine = math.exp(x[t.x] - largest)
    yield from [None] * after
    yield from _halves(t, s, add)
    y[t.x] = mine / s[0]


def _without_barriers(t: Any, x: Any, y: Any, s: Any) -> None:
    s[t.x] = x[t.x]
    s[t.x] = mine = math.exp(x[t.x] - s[0])
    y[t.x] = mine / s[0]


def _not_divided(t: Any, x: Any, y: Any, s: Any) -> None:
    y[t.x] = math.exp(x[t.x])


answers(
    "memory-access.race",
    right=[_softmax],
    wrong={
        "right in this order of threads, but thread 0 writes s[0], which thread 31 reads": (
            partial(_softmax, between=0)
        ),
        "while thread 0 waits at one, thread 1 is at another one": partial(_softmax, between=0, branch=True),
        "but thread 16 writes s[16], which thread 0 reads": partial(_softmax, after=0),
        "wrong: thread 0 writes s[0]": _without_barriers,
        "right, but the threads read x 1": partial(_softmax, top=lambda x: max(x[i] for i in range(32))),
        "no race, but the result is not the softmax of x": _not_divided,
        "14 barriers are more than it needs": partial(_softmax, before=1),
    },
)
