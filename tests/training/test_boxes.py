"""Stretches of slices as boxes: each element of the whole tensor is where the placement says that it is."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from playbook.parallel.placement import Placement, Shard
from playbook.training.boxes import boxes, stretches

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_a_stretch_is_its_boxes_end_to_end(shape, data):
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    whole = torch.arange(count).view(shape)
    found = list(stretches(shape, start, stop))
    pieces = []
    for offsets, sizes in found:
        box = whole
        for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            box = box.narrow(dim, offset, size)
        pieces += box.reshape(-1).tolist()
    assert pieces == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), st.data())
def test_boxes_of_all_ranks_make_the_whole(shape, data):
    """Tensors that are cut along one dim or two, padded where they do not come out even, and then over replicas."""
    whole = torch.arange(math.prod(shape)).view(shape)
    cuts = [[()]]
    for axis in ("tp", "ep")[: data.draw(st.integers(0, 2))]:
        dim, ranks = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 3))
        done = [cut for cut in cuts[0][0] if cut.dim == dim]
        size = done[-1].stop - done[-1].start if done else shape[dim]
        each = -(-size // ranks)
        new = [Shard(axis, dim, i * each, (i + 1) * each, size) for i in range(ranks)]
        cuts = [[(*before, shard)] for (before,) in cuts for shard in new]
    found = torch.full(shape, -1)
    for (shards,) in cuts:
        placement = Placement("w", shards)
        own = placement.of(whole)
        middle = data.draw(st.integers(0, own.numel()))
        for start, stop in ((0, middle), (middle, own.numel())):
            stretch = own.reshape(-1)[start:stop]
            for box in boxes(placement, tuple(own.shape), start, stop):
                target = found
                for dim, (offset, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
                    target = target.narrow(dim, offset, size)
                assert bool((target == -1).all())  # nobody else has it
                target.copy_(box.of(stretch))
    assert torch.equal(found, whole)
