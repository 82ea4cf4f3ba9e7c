"""Weights that ZeRO-3 gathers in FP8: a byte for each element of those that linear layers multiply in it.

They would be quantised when they have arrived. A rank quantises its shard before it sends it, with the scales of whole
groups, on which ranks agree once a step, so that what arrives is quantised to the same codes again. All else, norms and
biases, travels as it is. torchao does so for FSDP (``enable_fsdp_float8_all_gather``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.model.linear import linear_layers
from playbook.parallel.flat import Bucket, Segment, Slot
from playbook.parallel.mesh import all_gather

if TYPE_CHECKING:
    from playbook.model.fp8 import FP8


class FP8Gathers:
    """The all-gathers of the ``buckets`` of a model whose weights, in some of them, are multiplied in FP8."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], group: dist.ProcessGroup):
        self.buckets, self.group = buckets, group
        layers: dict[Tensor, Any] = {layer.weight: layer.products for layer in linear_layers(model)}
        #: The products of the weights that travel in FP8.
        self.products: dict[Slot, FP8] = {
            slot: layers[slot.parameter]
            for bucket in buckets
            for slot in bucket.slots
            if slot.parameter in layers and layers[slot.parameter].sends_weights
        }
        self.scales: dict[Slot, Tensor] = {}

    def __contains__(self, bucket: Bucket) -> bool:
        return any(slot in self.products for slot in bucket.slots)

    @torch.no_grad()
    def agree(self, shards: Tensor) -> None:
        """Find the scales of all weights, of which this rank has ``shards``: one message for all of them."""
        largest = {slot: one.no_magnitudes(slot.shape, shards.device) for slot, one in self.products.items()}
        for segment in (part for bucket in self.buckets for part in bucket.segments(self.group.rank())):
            if segment.slot in largest:
                found, own = largest[segment.slot], segment.of_shards(shards).abs().float()
                found.view(-1).scatter_reduce_(0, self._groups(segment, found), own, "amax")
        if not largest:
            return
        vector = torch.cat([found.view(-1) for found in largest.values()])
        dist.all_reduce(vector, dist.ReduceOp.MAX, self.group)
        parts = vector.split([found.numel() for found in largest.values()])
        for (slot, found), part in zip(largest.items(), parts, strict=True):
            self.scales[slot] = self.products[slot].weight_scales(part.view_as(found))

    def start(self, bucket: Bucket, own: Tensor) -> tuple[dist.Work, Tensor]:
        """Begin to gather a bucket, of which this rank has ``own``: the work, and where all shards will lie, as bytes."""
        # Whole 8 bytes, so that all ranks' numbers lie aligned.
        codes = own.new_zeros(-(-len(own) // 8) * 8, dtype=torch.uint8)
        rest = own.new_zeros(self._room(bucket))
        at = filled = 0
        for segment in bucket.segments(self.group.rank()):
            size = len(segment)
            some = own[at : at + size]
            if segment.slot in self.products:
                scales = self._each(segment)
                codes[at : at + size] = self.products[segment.slot].codes_of(some, scales)
            else:
                rest[filled : filled + size] = some
                filled += size
            at += size
        packed = torch.cat([rest.view(torch.uint8), codes])
        landing = packed.new_empty(self.group.size() * len(packed))
        return all_gather(landing, packed, self.group, async_op=True), landing

    def finish(self, bucket: Bucket, landing: Tensor, whole: Tensor) -> None:
        """Fill ``whole`` with what has arrived."""
        room = self._room(bucket) * whole.element_size()
        for rank, packed in enumerate(landing.chunk(self.group.size())):
            rest, codes = packed[:room].view(whole.dtype), packed[room:]
            at = filled = 0
            for segment in bucket.segments(rank):
                size = len(segment)
                here = whole[segment.start - bucket.start : segment.stop - bucket.start]
                if segment.slot in self.products:
                    scales = self._each(segment)
                    here.copy_(self.products[segment.slot].numbers_of(codes[at : at + size], scales))
                else:
                    here.copy_(rest[filled : filled + size])
                    filled += size
                at += size

    def _room(self, bucket: Bucket) -> int:
        """The most elements that are not sent in FP8 in a rank's shard."""
        ranks = (bucket.segments(rank) for rank in range(self.group.size()))
        return max(sum(len(s) for s in own if s.slot not in self.products) for own in ranks)

    def _each(self, segment: Segment) -> Tensor:
        """The scale of each element."""
        scales = self.scales[segment.slot]
        return scales.view(-1)[self._groups(segment, scales)]

    def _groups(self, segment: Segment, groups: Tensor) -> Tensor:
        """To which of ``groups`` (…, rows, columns) each element belongs, counted through."""
        shape, device = segment.slot.shape, groups.device
        begin = segment.slot.start
        index = torch.arange(segment.start - begin, segment.stop - begin, device=device)
        rows, columns = shape[-2:]
        down, across = groups.shape[-2:]
        size = self.products[segment.slot].weight_groups(shape)
        matrix, row, column = index // (rows * columns), index // columns % rows, index % columns
        # One scale may serve all matrices of a stack.
        matrix = matrix.clamp(max=groups.numel() // (down * across) - 1)
        return (matrix * down + row // size[0]) * across + column // size[1]
