"""ZeRO-2: of the gradients, too, a rank keeps its share alone. What stage 1 does is in ``zero.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.parallel.data import zero_absent
from playbook.parallel.flat import Bucket, Slot
from playbook.parallel.single import reduce_scatter
from playbook.parallel.zero import Zero1


class Zero2(Zero1):
    """Stage 2: of the gradients, too, a rank keeps its share alone.

    A gradient exists whole only from its layer's backward until its bucket is full and reduce-scattered. So with G
    micro-batches per step each of them must send its gradients, where stage 1 sends their sum once: per step
    (G + 1)(N − 1)/N bytes for each byte of parameters.
    """

    stage = 2
    keeps_gradients = False
    #: Reduce-scatters that may be under way at once; a further one waits for the oldest.
    in_flight = 2

    def _make_gradients(self) -> None:
        self.gradients = torch.zeros(
            self.order.length // self.group.size(), dtype=self.order.dtype, device=self.order.device
        )
        self.fresh: set[int] = set()  # buckets whose share holds nothing of this step yet
        self.buffers: dict[int, Tensor] = {}
        self.pending: list[tuple[Bucket, Tensor, Tensor, dist.Work]] = []
        self.step_here: set[Slot] = set()  # arrived in any micro-batch of this step
        self._buckets_of = {
            slot: [bucket for bucket in self.buckets if slot in bucket.slots] for slot in self.order.slots
        }

    def zero_grad(self) -> None:
        super().zero_grad()
        self.fresh = {bucket.index for bucket in self.buckets}
        self.step_here.clear()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A backward pass after which there will be another. Its gradients are sent all the same: there is no room to
        keep them."""
        yield
        self._finish_pass()

    def _arrived(self, slot: Slot) -> None:
        """Move the gradient into the buffers of its buckets."""
        gradient = slot.parameter.grad
        assert gradient is not None
        flat = gradient.reshape(-1)
        for bucket in self._buckets_of[slot]:
            start, stop = max(slot.start, bucket.start), min(slot.stop, bucket.stop)
            self._buffer(bucket)[start - bucket.start : stop - bucket.start] = flat[
                start - slot.start : stop - slot.start
            ]
        slot.parameter.grad = None
        self.step_here.add(slot)

    def _buffer(self, bucket: Bucket) -> Tensor:
        if bucket.index not in self.buffers:
            self.buffers[bucket.index] = self.gradients.new_empty(len(bucket))
        return self.buffers[bucket.index]

    def _complete(self, bucket: Bucket) -> None:
        whole = self._buffer(bucket)
        zero_absent(whole, bucket, self.arrivals.here.__contains__)
        del self.buffers[bucket.index]
        while any(bucket is other for other, *_ in self.pending):  # of the micro-batch before, in a pipeline
            self._settle()
        share = self.own(bucket)
        # The first micro-batch's sum lands in its place; others come beside it, and are added.
        target = share if bucket.index in self.fresh else torch.empty_like(share)
        work = reduce_scatter(target, whole, self.group, async_op=True)
        self.pending.append((bucket, whole, target, work))
        if len(self.pending) > self.in_flight:
            self._settle()

    def own(self, bucket: Bucket) -> Tensor:
        """This rank's share of a bucket's gradient."""
        return self.gradients[self.in_shares(bucket)]

    def in_shares(self, bucket: Bucket) -> slice:
        """Where the share of a bucket lies in a vector of this rank's shares."""
        n = self.group.size()
        return slice(bucket.start // n, bucket.stop // n)

    def _settle(self) -> None:
        """Wait for the oldest reduce-scatter, and add it up."""
        bucket, _, target, work = self.pending.pop(0)
        work.wait()
        if bucket.index in self.fresh:
            self.fresh.remove(bucket.index)
        else:
            self.own(bucket).add_(target)

    def _finish_pass(self) -> None:
        self.arrivals.finish()
        while self.pending:
            self._settle()

    def finish(self) -> None:
        self._finish_pass()
        here = [slot in self.step_here for slot in self.order.slots]
        self._hand_over(here, lambda segment: segment.of_shares(self.gradients))
