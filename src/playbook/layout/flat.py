"""Many tensors in one vector: what buckets and shards are cut from.

Tensors lie end to end in the order in which backward reaches them, the last layer first. The vector is cut into buckets
without regard to where a tensor ends, so that they are all of one size, a large embedding's too. Padding comes only where
a vector must be divided by the ranks. Engines lay out parameters so (``parallel/flat.py``), the planner sizes of a model
that nobody has made (``planning/weights.py``). Standard library only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar


@dataclass(eq=False)
class Slot:
    """The place ``start:stop`` of a tensor in the vector."""

    start: int
    stop: int


T = TypeVar("T")
S = TypeVar("S", bound=Slot)


@dataclass(frozen=True, eq=False)
class Bucket(Generic[S]):
    """The part ``start:stop`` of the vector, which is of one ``unit``."""

    vector: FlatVector[Any, S]
    index: int
    unit: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @cached_property
    def slots(self) -> Sequence[S]:
        """Those that have elements in it."""
        slots = self.vector.slots
        first = bisect_right(slots, self.start, key=lambda slot: slot.stop)
        after = bisect_right(slots, self.stop - 1, key=lambda slot: slot.start)
        return slots[first:after]

    def shard(self, rank: int) -> slice:
        """Where the part of one rank lies in the vector: as many elements for each."""
        size = len(self) // self.vector.ranks
        return slice(self.start + rank * size, self.start + (rank + 1) * size)

    @property
    def in_shards(self) -> slice:
        """Where a rank's part lies in a vector of its shards alone, end to end."""
        return slice(self.start // self.vector.ranks, self.stop // self.vector.ranks)

    def segments(self, rank: int) -> Iterator[Segment[S]]:
        """What lies in one rank's shard, tensor by tensor."""
        shard = self.shard(rank)
        for slot in self.slots:
            start, stop = max(shard.start, slot.start), min(shard.stop, slot.stop)
            if start < stop:
                yield Segment(slot, start, stop, self.in_shards.start + start - shard.start)


@dataclass(frozen=True, eq=False)
class Segment(Generic[S]):
    """Elements ``start:stop`` of the vector, one tensor's in one bucket on one rank: from ``offset`` on in its shards."""

    slot: S
    start: int
    stop: int
    offset: int

    def __len__(self) -> int:
        return self.stop - self.start

    def of(self, vector: Any) -> Any:
        """The segment's part of the whole vector."""
        return vector[self.start : self.stop]

    def of_shards(self, shards: Any) -> Any:
        """The segment's part of a vector of its rank's shards."""
        return shards[self.offset : self.offset + len(self)]


class FlatVector(Generic[T, S]):
    """Where each tensor lies. ``units`` are lists of tensors; each unit begins at a multiple of ``ranks``.

    ``slot`` makes the place of a tensor that begins at a number; ``regions`` are where units begin and end, ``length`` is
    that of the vector, padding included.
    """

    def __init__(self, units: Iterable[Iterable[T]], ranks: int, slot: Callable[[int, T], S]):
        self.ranks, self.length = ranks, 0
        self.slots: list[S] = []
        self.regions: list[tuple[int, int]] = []
        for unit in units:
            start = end = self.length
            for tensor in unit:
                self.slots.append(slot(end, tensor))
                end = self.slots[-1].stop
            self.length = -(-end // ranks) * ranks
            self.regions.append((start, self.length))

    def cut(self, size: int | None = None, first: int | None = None) -> list[Bucket[S]]:
        """Buckets of at most ``size`` elements, the first of at most ``first``; each a multiple of ``ranks``.

        A bucket does not reach over the end of a unit; without a ``size`` it is one. A small first one leaves early in
        backward, while there is still much to compute beside it.
        """
        buckets: list[Bucket[S]] = []
        for unit, (start, stop) in enumerate(self.regions):
            while start < stop:
                limit = size if buckets or first is None else first
                step = stop - start if limit is None else max(1, limit // self.ranks) * self.ranks
                buckets.append(Bucket(self, len(buckets), unit, start, min(stop, start + step)))
                start = buckets[-1].stop
        return buckets
