"""Exercises of the chapter on memory access."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


@exercise("memory-access.sectors", "number", "sectors of 32 particles, read field by field")
def sectors_of_particles(answer: Any) -> str:
    from playbook.kernels.warps import load, sectors

    fields = 9
    loads = [sectors([load("particles", fields * i + field) for i in range(32)]) for field in range(fields)]
    right = sum(loads)
    hints: dict[float, str] = {
        loads[0]: "that is one of the nine loads",
        36: "that is what the particles fill, and what nine arrays would cost, one array for each field",
        9 * 36: "almost: the particles fill 36 sectors, but one load does not touch all of them",
        right * 32: "that is in bytes",
    }
    number(
        answer,
        right,
        hints,
        otherwise="In one load, how far apart do neighbouring threads read, compared with a sector?",
    )
    return "every number read costs a sector; from nine separate arrays, a sector would bring eight numbers"


@exercise("memory-access.padding", "number", "wavefronts of a column of halves in padded rows")
def wavefronts_of_halves(answer: Any) -> str:
    from playbook.kernels.warps import passes, shared

    def of_rows(halves: int) -> int:
        return passes([shared("tile", halves * i, size=2) for i in range(32)])

    right = of_rows(72)
    hints: dict[float, str] = {
        of_rows(64): "that is without padding: all rows begin in the same bank",
        of_rows(66): "that is with 2 halves, one word, of padding: rows of 33 words",
        8: "almost: 8 is the number of different banks; how many threads read from each?",
        2: "a bank is 4 bytes wide, so how many banks apart do neighbouring rows of 72 halves begin?",
    }
    number(answer, right, hints, otherwise="In which bank does row i begin?")
    return "rows begin 36 words apart, so 32 rows begin in only 8 banks, four rows in each"


ROWS, COLUMNS = 64, 8


@exercise("memory-access.swizzle", "function", "where the chunks of a tile lie, without bank conflicts")
def swizzle(write: Callable[[int, int], int]) -> str:
    from playbook.kernels.warps import passes, shared

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


@exercise("memory-access.race", "repair", "a softmax whose threads overwrite what others have not read yet")
def race(mended: Callable[..., Generator[None] | None]) -> str:
    from playbook.errors import ConfigError
    from playbook.kernels.warps import Dim
    from playbook_book.block import Order, run

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
