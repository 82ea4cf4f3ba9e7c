"""ZeRO-2: of the gradients, too, a rank keeps its shard alone. What stage 1 does is in ``zero.py``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.parallel.data import zero_absent
from playbook.parallel.flat import Bucket, FlatOrder, GradientHooks, Segment, Slot
from playbook.parallel.mesh import reduce_scatter
from playbook.parallel.zero import Zero1


class Zero2(Zero1):
    """Stage 2: of the gradients, too, a rank keeps its shard alone.

    A gradient exists whole only from its layer's backward until its bucket is full and reduce-scattered. So with G
    micro-batches per step each of them must send its gradients, where stage 1 sends their sum once: per step
    (G + 1)(N − 1)/N bytes for each byte of parameters.
    """

    stage = 2

    def _gradients(self, order: FlatOrder, buckets: list[Bucket], group: dist.ProcessGroup) -> GradientShards:
        return GradientShards(order, buckets, group)


class GradientShards:
    """This rank's shards of all buckets' gradients, in one vector; a whole bucket has memory only until it is sent."""

    keep_whole = False
    #: Reduce-scatters that may be under way at once; a further one waits for the oldest.
    in_flight = 2

    def __init__(self, order: FlatOrder, buckets: list[Bucket], group: dist.ProcessGroup):
        self.group, self.buckets = group, buckets
        self.vector = torch.zeros(order.length // group.size(), dtype=order.dtype, device=order.device)
        self.fresh: set[int] = set()  # buckets whose shard holds nothing of this step yet
        self.buffers: dict[int, Tensor] = {}
        self.pending: list[tuple[Bucket, Tensor, Tensor, dist.Work]] = []
        self.step_here: set[Slot] = set()  # arrived in any micro-batch of this step
        self._buckets_of = {
            slot: [bucket for bucket in buckets if slot in bucket.slots] for slot in order.slots
        }

    def begin(self) -> None:
        self.fresh = {bucket.index for bucket in self.buckets}
        self.step_here.clear()

    def arrived(self, slot: Slot) -> None:
        """Move the gradient into the buffers of its buckets."""
        gradient = slot.parameter.grad
        assert gradient is not None
        flat = gradient.reshape(-1)
        for bucket in self._buckets_of[slot]:
            start, stop = max(slot.start, bucket.start), min(slot.stop, bucket.stop)
            part = flat[start - slot.start : stop - slot.start]
            self._buffer(bucket)[start - bucket.start : stop - bucket.start] = part
        slot.parameter.grad = None
        self.step_here.add(slot)

    def _buffer(self, bucket: Bucket) -> Tensor:
        if bucket.index not in self.buffers:
            self.buffers[bucket.index] = self.vector.new_empty(len(bucket))
        return self.buffers[bucket.index]

    def reduce(self, bucket: Bucket, hooks: GradientHooks) -> None:
        """Start a reduce-scatter of a bucket's buffer, which goes when that is over."""
        whole = self._buffer(bucket)
        zero_absent(whole, bucket, hooks.here.__contains__)
        del self.buffers[bucket.index]
        while any(bucket is other for other, *_ in self.pending):  # of the micro-batch before, in a pipeline
            self._settle_oldest()
        shard = self.vector[bucket.in_shards(self.group)]
        # The first micro-batch's sum lands in its place; others come beside it, and are added.
        target = shard if bucket.index in self.fresh else torch.empty_like(shard)
        work = reduce_scatter(target, whole, self.group, async_op=True)
        self.pending.append((bucket, whole, target, work))
        if len(self.pending) > self.in_flight:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        """Wait for the oldest reduce-scatter, and add it up."""
        bucket, _, target, work = self.pending.pop(0)
        work.wait()
        if bucket.index in self.fresh:
            self.fresh.remove(bucket.index)
        else:
            self.vector[bucket.in_shards(self.group)].add_(target)

    def settle(self) -> None:
        while self.pending:
            self._settle_oldest()

    def here(self, slot: Slot) -> bool:
        return slot in self.step_here

    def of(self, segment: Segment) -> Tensor:
        return segment.of_shards(self.vector)
