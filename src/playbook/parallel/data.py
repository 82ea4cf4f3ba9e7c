"""Data parallelism: every rank has the whole model and a part of the batch; gradients are added up over the ranks.

Three ways to add them, each with the same result: when backward is over (``NaiveDataParallel``), each gradient as soon as
it is there (``OverlappedDataParallel``), and in buckets (``BucketedDataParallel``; Li et al. 2020, arXiv 2006.15704).

Gradients are *summed*: losses are divided by the tokens of the whole global batch (``engine.accumulate_gradients``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.layout.fields import BUCKET, DATA_PARALLEL, FIRST_BUCKET
from playbook.parallel.flat import Bucket, FlatOrder, GradientHooks, Named, Slot, Units, UsedParameters
from playbook.parallel.replicas import HookedReplicaSet, ReplicaSet, broadcast


class NaiveDataParallel(ReplicaSet):
    """All-reduce each gradient when backward is over: right, and the network is idle while the GPU computes."""

    def __init__(self, parameters: nn.Module | Named, group: dist.ProcessGroup, *, find_unused: bool = False):
        super().__init__(parameters, group)
        self.used = UsedParameters([name for name, _ in self.parameters], group, find_unused)
        broadcast([p for _, p in self.parameters], group)

    def finish(self) -> None:
        """After the last backward pass of a step: make every ``.grad`` the sum over the ranks."""
        here = [p.grad is not None for _, p in self.parameters]
        anywhere = self.used.agree(here, self.parameters[0][1].device)
        for (_, p), used in zip(self.parameters, anywhere, strict=True):
            if used:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                if self.used.group.size() > 1:
                    dist.all_reduce(p.grad, group=self.group)


class OverlappedDataParallel(HookedReplicaSet):
    """All-reduce each gradient as soon as backward has computed it, while it goes on with the layer before."""

    def __init__(self, parameters: nn.Module | Named, group: dist.ProcessGroup, *, find_unused: bool = False):
        super().__init__(parameters, group)
        self.buckets = FlatOrder([[parameter] for parameter in self.parameters]).cut()
        self.slots = [bucket.slots[0] for bucket in self.buckets]  # a bucket for each parameter
        self.used = UsedParameters([slot.name for slot in self.slots], group, find_unused)
        self.hooks = GradientHooks(self.buckets, lambda slot: None, self._reduce)
        self.works: list[dist.Work] = []
        self.here: set[Slot] = set()
        broadcast([p for _, p in self.parameters], group)

    def _reduce(self, bucket: Bucket) -> None:
        p = bucket.slots[0].parameter
        if p.grad is None:  # used on another rank, perhaps: all ranks must take part
            p.grad = torch.zeros_like(p)
        else:
            self.here.add(bucket.slots[0])
        self.works.append(dist.all_reduce(p.grad, group=self.group, async_op=True))

    def finish(self) -> None:
        """After the last backward pass of a step: every ``.grad`` is the sum over the ranks."""
        self.hooks.finish()
        wait(self.works)
        anywhere = self.used.agree([slot in self.here for slot in self.slots], self.slots[0].parameter.device)
        for slot, used in zip(self.slots, anywhere, strict=True):
            if not used:
                slot.parameter.grad = None
        self.hooks.skip(self.used.never(self.slots))
        self.here.clear()


class BucketedDataParallel(HookedReplicaSet):
    """All-reduce gradients in buckets, each as soon as it is full.

    A message costs time however short it is, so many small gradients are sent as one. They live in one flat vector, in
    the order of backward, of which every ``.grad`` is a view: what autograd adds up lands in the bucket, and what the
    all-reduce writes *is* the gradient. ``bucket`` and ``first_bucket`` are bytes; ``units`` are parameters by name that
    no bucket mixes with others.
    """

    def __init__(
        self,
        parameters: nn.Module | Named,
        group: dist.ProcessGroup,
        *,
        bucket: int = BUCKET,
        first_bucket: int = FIRST_BUCKET,
        find_unused: bool = False,
        units: Units | None = None,
    ):
        super().__init__(parameters, group)
        self.order = FlatOrder(units or [self.parameters])
        self.vector = self.order.zeros()
        self.views = {slot: slot.view(self.vector) for slot in self.order.slots}
        self.buckets = self.order.buckets(bucket, first_bucket)
        self.hooks = GradientHooks(self.buckets, self._arrived, self._reduce)
        self.used = UsedParameters([slot.name for slot in self.order.slots], group, find_unused)
        self.works: list[dist.Work] = []
        broadcast([p for _, p in self.parameters], group)

    def _arrived(self, slot: Slot) -> None:
        """Move a new gradient into the vector. From the second micro-batch on autograd adds to it there."""
        slot.keep_gradient_in(self.views[slot])

    def _reduce(self, bucket: Bucket) -> None:
        part = self.vector[bucket.start : bucket.stop]
        zero_absent(part, bucket, has_gradient)
        self.works.append(dist.all_reduce(part, group=self.group, async_op=True))

    def finish(self) -> None:
        """After the last backward pass of a step: every ``.grad`` is the sum over the ranks."""
        self.hooks.finish()
        wait(self.works)
        here = [has_gradient(slot) for slot in self.order.slots]
        anywhere = self.used.agree(here, self.vector.device)
        for slot, used in zip(self.order.slots, anywhere, strict=True):
            slot.parameter.grad = self.views[slot] if used else None
        self.hooks.skip(self.used.never(self.order.slots))


#: By name, the naive one first.
STRATEGIES: dict[str, type[ReplicaSet]] = dict(
    zip(DATA_PARALLEL, (NaiveDataParallel, OverlappedDataParallel, BucketedDataParallel), strict=True)
)


def zero_absent(part: Tensor, bucket: Bucket, here: Callable[[Slot], bool]) -> None:
    """Zero what no gradient has been written to: this rank adds nothing there. ``part`` is the bucket's memory."""
    end = bucket.start
    for slot in bucket.slots:
        if not here(slot):
            part[max(0, slot.start - bucket.start) : slot.stop - bucket.start].zero_()
        end = slot.stop
    part[max(0, end - bucket.start) :].zero_()  # padding


def has_gradient(slot: Slot) -> bool:
    """Whether a gradient of this step has come."""
    return slot.parameter.grad is not None


def wait(works: list[dist.Work]) -> None:
    """Wait for collectives that are under way, the oldest first, and forget them."""
    for work in works:
        work.wait()
    works.clear()
