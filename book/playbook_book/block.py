"""The threads of a block, one after the other between barriers, and what two of them do to one place of shared memory.

A kernel is a function of one thread, and ``yield`` is ``__syncthreads()``:

    def reverse(t, x, y, s):
        s[t.x] = x[t.x]
        yield
        y[t.x] = s[t.block_dim.x - 1 - t.x]

    run(reverse, Dim(64), x, y, shared={"s": 64}).races

Between two barriers a GPU runs threads in any order, so whatever they do to shared memory there must not depend on it. A
*race* is a place that one thread writes, and another reads or writes, between the same two barriers. Here threads run one
after the other, in an order that is given; races are found in all of them alike. On a GPU, ``compute-sanitizer --tool
racecheck`` finds them. Source: CUDA C++ Programming Guide, "Synchronization Functions".
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Literal

from playbook.errors import ConfigError
from playbook_book.kernels.warps import Dim, Thread

Order = Literal["forward", "backward"] | int


@dataclass(frozen=True)
class Race:
    """Two threads of a block, by number, at one place of shared memory between the same two barriers."""

    array: str
    place: int
    writer: int
    other: int
    other_writes: bool

    def __str__(self) -> str:
        does = "writes" if self.other_writes else "reads"
        return (
            f"thread {self.writer} writes {self.array}[{self.place}], which thread {self.other} {does} "
            "between the same two barriers"
        )


@dataclass
class Ran:
    """What a block did: the first race at each place of an array, and how many barriers it passed."""

    races: list[Race] = field(default_factory=list)
    barriers: int = 0


class Shared:
    """An array of numbers in shared memory; not a number until something is written."""

    def __init__(self, name: str, length: int):
        self.name, self.values = name, [float("nan")] * length
        self.thread = 0
        self.races: dict[int, Race] = {}
        self._touched: dict[int, dict[int, bool]] = defaultdict(dict)

    def __getitem__(self, place: int) -> float:
        self._note(place, writes=False)
        return self.values[place]

    def __setitem__(self, place: int, value: float) -> None:
        self._note(place, writes=True)
        self.values[place] = float(value)

    def barrier(self) -> None:
        """Forget who has touched what: accesses before a barrier and after it are no race."""
        self._touched.clear()

    def _note(self, place: int, writes: bool) -> None:
        if not 0 <= place < len(self.values):
            raise ConfigError(f"place must be 0 to {len(self.values) - 1} in {self.name}, got {place}")
        touched = self._touched[place]
        for other, wrote in touched.items():
            if other != self.thread and (wrote or writes) and place not in self.races:
                pair = (self.thread, other, wrote) if writes else (other, self.thread, False)
                self.races[place] = Race(self.name, place, *pair)
        touched[self.thread] = writes or touched.get(self.thread, False)


Kernel = Callable[..., Generator[None] | None]


def run(
    kernel: Kernel,
    block_dim: Dim,
    *arguments: Any,
    shared: Mapping[str, int] | None = None,
    order: Order = "forward",
) -> Ran:
    """Runs one block of ``kernel(thread, *arguments, *arrays)``, arrays of shared memory by name and length.

    ``order`` of its threads: forward, backward, or shuffled anew after each barrier by this seed. Raises ConfigError
    where a thread leaves shared memory, and where not all threads wait at the same barrier, of which CUDA says that
    execution is likely to hang.
    """
    arrays = [Shared(name, length) for name, length in (shared or {}).items()]
    threads = [Thread(*block_dim.place(i), Dim(0, 0, 0), block_dim, Dim(1)) for i in range(block_dim.size)]
    started = [_begun(kernel, thread, *arguments, *arrays) for thread in threads]
    ran, shuffle = Ran(), random.Random(order if isinstance(order, int) else 0)
    while True:
        waiting = {}
        for i in _ordered(len(threads), order, shuffle):
            for array in arrays:
                array.thread = i
            if next(started[i], _DONE) is not _DONE:
                waiting[i] = _line(started[i])
        _check(waiting, len(threads))
        for array in arrays:
            array.barrier()
        if not waiting:
            ran.races = [race for array in arrays for race in array.races.values()]
            return ran
        ran.barriers += 1


_DONE = object()


def _begun(kernel: Kernel, *arguments: Any) -> Generator[None]:
    """A kernel without a barrier is an ordinary function."""
    steps = kernel(*arguments)
    if steps is not None:
        yield from steps


def _ordered(count: int, order: Order, shuffle: random.Random) -> Sequence[int]:
    places = list(range(count))
    if order == "forward":
        return places
    return places[::-1] if order == "backward" else shuffle.sample(places, count)


def _line(steps: object) -> tuple[int, ...]:
    """Where a generator waits, from line to line into what it has called."""
    if not isinstance(steps, GeneratorType) or steps.gi_frame is None:
        return ()
    return (steps.gi_frame.f_lineno, *_line(steps.gi_yieldfrom))


def _check(waiting: Mapping[int, tuple[int, ...]], threads: int) -> None:
    if not waiting:
        return
    first, line = next(iter(sorted(waiting.items())))
    for i in range(threads):
        if waiting.get(i) != line:
            where = "at another one" if i in waiting else "at its end"
            raise ConfigError(
                f"all threads of a block must wait at the same barrier, but while thread {first} waits at one, thread "
                f"{i} is {where}"
            )
