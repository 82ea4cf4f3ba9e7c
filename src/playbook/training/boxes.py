"""Elements of a tensor that lie end to end, as boxes of the whole tensor.

A rank has a slice of a parameter, or with ZeRO a stretch of one that begins and ends anywhere. A file of tensors knows
offsets and sizes along each dim. A stretch is at most two boxes a dim beside a middle one: the end of a first row, whole
rows, the beginning of a last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from playbook.parallel.placement import Placement
from playbook.planning.weights import Sizes, stretches


@dataclass(frozen=True)
class Box:
    """A part of a whole tensor: ``sizes`` elements from ``offsets`` on.

    In the stretch that it is cut from it begins ``at`` an element and has the sizes ``padded``, those of what lies beyond
    the end of the whole tensor included.
    """

    offsets: Sizes
    sizes: Sizes
    at: int
    padded: Sizes

    def of(self, stretch: Tensor) -> Tensor:
        """The box as a view of the stretch (n,), without padding."""
        view = stretch[self.at : self.at + math.prod(self.padded)].view(self.padded)
        if self.sizes == self.padded:
            return view
        for dim, size in enumerate(self.sizes):
            view = view.narrow(dim, 0, size)
        return view


def boxes(placement: Placement, shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements ``start:stop``, end to end, of the slice of ``shape`` that ``placement`` cuts from a whole tensor."""
    if not placement.shards and start == 0 and stop == math.prod(shape):  # most are: no need to look closer
        yield Box((0,) * len(shape), tuple(shape), 0, tuple(shape))
        return
    origin, inside = [0] * len(shape), list(placement.whole_shape(shape))
    for cut in placement.shards:
        origin[cut.dim] += cut.start
        inside[cut.dim] = min(cut.stop - cut.start, max(0, min(inside[cut.dim], cut.size) - cut.start))
    for at, padded in stretches(tuple(shape), start, stop):
        offsets = tuple(o + first for o, first in zip(origin, at, strict=True))
        sizes = tuple(min(n, max(0, m - a)) for n, m, a in zip(padded, inside, at, strict=True))
        if all(sizes):
            yield Box(offsets, sizes, _flat(at, shape) - start, padded)


def _flat(at: Sizes, shape: Sequence[int]) -> int:
    position = 0
    for index, size in zip(at, shape, strict=True):
        position = position * size + index
    return position
