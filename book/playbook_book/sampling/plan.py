"""From trainer to sampler, on paper: which box of which tensor goes from whom to whom. Standard library only.

A rank of a trainer has boxes of whole tensors: slices (tp, ep), stages (pp), stretches of slices (ZeRO-3). A rank of a
sampler needs other boxes. What it lacks is the difference, and comes from one of the ranks that have it; what it has it
copies. So each element that a rank lacks is sent to it once, and nothing else is sent. `reshard.py` carries the
messages out, of boxes that live ranks report; `transfer.py` says what boxes those of a `Job` are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from playbook.errors import ConfigError
from playbook.layout.fields import BUCKET
from playbook.planning.weights import Sizes


class Region(NamedTuple):
    """A box of a whole tensor: ``sizes`` elements from ``offsets`` on along each dim."""

    offsets: Sizes
    sizes: Sizes

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def meets(self, other: Region) -> Region | None:
        """What both have; None if that is nothing."""
        start = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(
            min(a + m, b + n) - s
            for a, m, b, n, s in zip(self.offsets, self.sizes, other.offsets, other.sizes, start, strict=True)
        )
        return Region(start, sizes) if all(size > 0 for size in sizes) else None

    def without(self, hole: Region) -> Iterator[Region]:
        """What is left of it without ``hole``, which lies inside: at most two boxes for each dim."""
        offsets, sizes = list(self.offsets), list(self.sizes)
        for dim, (start, size) in enumerate(zip(hole.offsets, hole.sizes, strict=True)):
            for begin, end in ((offsets[dim], start), (start + size, offsets[dim] + sizes[dim])):
                if begin < end:
                    yield self._with(offsets, sizes, dim, begin, end - begin)
            offsets[dim], sizes[dim] = start, size

    def pieces(self, most: int) -> Iterator[Region]:
        """The same in boxes of at most ``most`` elements, cut along the first dims."""
        if self.elements <= most:
            yield self
            return
        dim = next(i for i, size in enumerate(self.sizes) if size > 1)
        step = max(1, most // (self.elements // self.sizes[dim]))
        for at in range(0, self.sizes[dim], step):
            size = min(step, self.sizes[dim] - at)
            one = self._with(list(self.offsets), list(self.sizes), dim, self.offsets[dim] + at, size)
            yield from one.pieces(most)

    @staticmethod
    def _with(offsets: list[int], sizes: list[int], dim: int, start: int, size: int) -> Region:
        return Region((*offsets[:dim], start, *offsets[dim + 1 :]), (*sizes[:dim], size, *sizes[dim + 1 :]))


#: The boxes that a rank has or wants, by the name of the tensor.
Boxes = Mapping[str, Sequence[Region]]


class Move(NamedTuple):
    """A box of a tensor, of elements of so many bytes, on its way from one rank to another."""

    name: str
    region: Region
    source: int
    to: int
    itemsize: int

    @property
    def bytes(self) -> int:
        return self.region.elements * self.itemsize


def plan(
    has: Sequence[Boxes], wants: Sequence[Boxes], itemsizes: Mapping[str, int], node: int | None = None
) -> list[Move]:
    """All that is sent, tensor by tensor in the order of ``itemsizes``, where each rank ``has`` and ``wants`` such boxes.

    Of the ranks that have a box, the one sends it that has sent least so far; with ``node``, ranks of which so many
    neighbours are in a node, one of the same node if there is any. Raises ConfigError for what nobody has.
    """
    load, found = [0] * len(has), list[Move]()
    for name, itemsize in itemsizes.items():
        holders = defaultdict[Region, list[int]](list)
        for rank, boxes in enumerate(has):
            for region in dict.fromkeys(boxes.get(name, ())):
                holders[region].append(rank)
        sources = tuple(holders)
        for to, boxes in enumerate(wants):
            own = tuple(has[to].get(name, ()))
            for region, source in missing(tuple(boxes.get(name, ())), own, sources, name):
                near = {rank: node is not None and rank // node != to // node for rank in holders[source]}
                sender = min(near, key=lambda rank: (near[rank], load[rank], (rank - to) % len(has)))
                found.append(Move(name, region, sender, to, itemsize))
                load[sender] += found[-1].bytes
    return found


@cache
def missing(
    wanted: tuple[Region, ...], own: tuple[Region, ...], sources: tuple[Region, ...], name: str = ""
) -> list[tuple[Region, Region]]:
    """What of ``wanted`` is not in ``own``, in boxes, each with the one of ``sources`` that it lies in."""
    rest, found = list(wanted), []
    for i, source in enumerate((*own, *sources)):
        left: list[Region] = []
        for region in rest:
            if both := region.meets(source):
                if i >= len(own):
                    found.append((both, source))
                left += region.without(both)
            else:
                left.append(region)
        rest = left
    if rest:
        raise ConfigError(f"no rank has {rest[0].sizes} elements of {name!r} from {rest[0].offsets} on")
    return found


def rounds(moves: Iterable[Move], limit: int = BUCKET) -> list[list[Move]]:
    """Moves that are under way at once: in a round no rank sends or gets more than ``limit`` bytes, nor elements of two
    sizes. A box that is larger is cut."""
    found: list[list[Move]] = []
    at: dict[tuple[str, int], tuple[int, int, int]] = {}  # round, bytes in it, their size
    for move in moves:
        for region in move.region.pieces(max(1, limit // move.itemsize)):
            one = move._replace(region=region)
            ends = ("from", one.source), ("to", one.to)
            seen = [at.get(end, (0, 0, one.itemsize)) for end in ends]
            last = max(number for number, _, _ in seen)
            full = any(
                number == last and (used + one.bytes > limit or size != one.itemsize)
                for number, used, size in seen
            )
            last += full
            for end, (number, used, _) in zip(ends, seen, strict=True):
                at[end] = last, one.bytes + (used if number == last else 0), one.itemsize
            found += [[] for _ in range(last + 1 - len(found))]
            found[last].append(one)
    return found


@dataclass(frozen=True)
class Sent:
    """What ranks send and get, in bytes and in messages: one for each round and pair of ranks."""

    sent: list[int]
    got: list[int]
    messages: list[int]


def sent(moves: Iterable[Move], ranks: int, limit: int = BUCKET) -> Sent:
    """What each rank sends and gets for ``moves``."""
    out, into, pairs = [0] * ranks, [0] * ranks, Counter[int]()
    for together in rounds(moves, limit):
        for move in together:
            out[move.source] += move.bytes
            into[move.to] += move.bytes
        pairs.update(source for source, _ in {(move.source, move.to) for move in together})
    return Sent(out, into, [pairs[rank] for rank in range(ranks)])
