"""ZeRO: data parallelism in which each rank keeps a shard of what replicas would hold in common (arXiv 1910.02054).

Stage 1 shards the optimizer states, stage 2 the gradients as well, stage 3 (``zero3.py``) the parameters
too. All rest on one idea: an all-reduce is a reduce-scatter and an all-gather, and between the two each rank has the
whole sum of *its* shard. So it updates that alone, with the optimizer states of it alone; then all weights are gathered.

Parameters lie in one flat vector, cut into buckets; a bucket is cut into as many shards as there are ranks. AdamW works
element by element, so that it does not mind where a shard begins: what lies in a shard of a parameter is a tensor of its
own to it (a *segment*), and the result is what it would be for the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.layout.fields import BUCKET, FIRST_BUCKET
from playbook.parallel.data import has_gradient, wait, zero_absent
from playbook.parallel.flat import (
    Bucket,
    FlatOrder,
    GradientHooks,
    Named,
    Segment,
    Slot,
    Units,
    UsedParameters,
    backward_order,
)
from playbook.parallel.mesh import all_gather, clone_group, reduce_scatter
from playbook.parallel.replicas import HookedReplicaSet, Leaf, broadcast


class Weights(Protocol):
    """Where a stage keeps parameters: whole, or as this rank's shards."""

    vector: Tensor
    gathering: dist.ProcessGroup

    def leaf(self, segment: Segment) -> Tensor: ...


def shard_of(weights: Weights, part: Segment) -> Leaf:
    """A segment as an optimizer sees it."""
    parameter, tensor = part.slot.parameter, weights.leaf(part).detach()
    tensor.requires_grad_(parameter.requires_grad)
    return Leaf(part.slot.name, parameter, part.start - part.slot.start, tensor)


class Zero(HookedReplicaSet):
    """A set whose optimizer states are sharded, and of whose gradients and parameters a rank has what the stage says.

    A step: gradients arrive in ``store`` and are reduce-scattered bucket by bucket; the optimizer updates this rank's
    segments of the weights in ``weights``.
    """

    stage: int
    shared = True

    def __init__(
        self,
        order: FlatOrder,
        buckets: list[Bucket],
        group: dist.ProcessGroup,
        weights: Weights,
        store: WholeGradients | GradientShards,
        find_unused: bool = False,
    ):
        self.parameters = [(slot.name, slot.parameter) for slot in order.slots]
        self.group: dist.ProcessGroup = group
        self.order, self.buckets, self.weights, self.store = order, buckets, weights, store
        self.across, self.sharers = store.across, store.group.size()
        self.keeps_gradients = store.keep_whole
        self.segments = [part for bucket in buckets for part in bucket.segments(store.group.rank())]
        self.leaves = [shard_of(weights, segment) for segment in self.segments]
        self.used = UsedParameters([slot.name for slot in order.slots], group, find_unused)
        self.hooks = GradientHooks(buckets, store.arrived, self._complete)

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        super().zero_grad()
        for leaf in self.leaves:
            leaf.tensor.grad = None
        self.store.begin()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A backward pass after which there will be another: gradients stay here, and add up, or are sent all the same
        where there is no room to keep them."""
        if self.keeps_gradients:
            with self.hooks.paused():
                yield
            return
        self.store.more = True
        yield
        self.hooks.finish()
        self.store.settle()
        self.store.more = False

    def defer_sync(self) -> None:
        super().defer_sync()
        self.store.more = True  # until the step is over

    def _complete(self, bucket: Bucket) -> None:
        self.store.reduce(bucket, self.hooks)

    def finish(self) -> None:
        """After the last backward pass of a step: this rank has the sum over all ranks of its shard."""
        # Whole gradients are looked for before the missing ones are zeroed, shards once all have come.
        here = [self.store.here(slot) for slot in self.order.slots] if self.keeps_gradients else []
        self.hooks.finish()
        self.store.settle(last=True)
        here = here or [self.store.here(slot) for slot in self.order.slots]
        anywhere = self.used.agree(here, self.order.device)
        unused = {slot for slot, used in zip(self.order.slots, anywhere, strict=True) if not used}
        self.hooks.skip(self.used.never(self.order.slots))
        for segment, leaf in zip(self.segments, self.leaves, strict=True):
            leaf.tensor.grad = None if segment.slot in unused else self.store.of(segment)

    def groups(self) -> list[dist.ProcessGroup]:
        return list(dict.fromkeys([self.group, self.store.group, self.weights.gathering]))

    def tensors(self) -> dict[str, list[Tensor]]:
        vectors = {"parameters": [self.weights.vector], "gradients": [self.store.vector]}
        return vectors | {"optimizer": self.states()}


class Zero1(Zero):
    """Stage 1: whole parameters and gradients on every rank, a shard of the optimizer states.

    Gradients add up in a flat vector over all micro-batches; during the last backward each full bucket is
    reduce-scattered; the new parameters are all-gathered, at once ("after") or bucket by bucket while the next forward
    pass goes on ("lazily"). ``units`` are parameters by name that no bucket mixes with others.
    """

    stage = 1
    weights: WholeParameters

    def __init__(
        self,
        parameters: nn.Module | Named,
        group: dist.ProcessGroup,
        *,
        bucket: int = BUCKET,
        first_bucket: int = FIRST_BUCKET,
        gather: str = "after",
        find_unused: bool = False,
        units: Units | None = None,
        hybrid: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None,
    ):
        shards, across = hybrid or (group, None)
        order = FlatOrder(units or [backward_order(parameters)], shards.size())
        broadcast([slot.parameter for slot in order.slots], group)
        buckets = order.buckets(bucket, first_bucket)
        weights = WholeParameters(order, buckets, shards, gather)
        kept: Any = WholeGradients if self.stage == 1 else partial(GradientShards, buckets=buckets)
        store = kept(order, group=shards, across=across)
        super().__init__(order, buckets, group, weights, store, find_unused)

    def step(self) -> None:
        """Update this rank's segments, and get those of the others."""
        self.optimizer.step()
        self.weights.all_gather()

    def wait(self) -> None:
        self.weights.wait()


class Zero2(Zero1):
    """Stage 2: of the gradients, too, a rank keeps its shard alone.

    A gradient exists whole only from its layer's backward until its bucket is full and reduce-scattered: each of several
    micro-batches must send its own.
    """

    stage = 2


class ReducedGradients:
    """Gradients that are reduced to shards in ``group``, bucket by bucket. With hybrid sharding ranks ``across`` groups,
    which have the same shard, add it up once a step: each bucket's as soon as its last reduce-scatter is over. Of these
    so many may be ``in_flight``; a further one waits for the oldest."""

    def __init__(
        self, group: dist.ProcessGroup, across: dist.ProcessGroup | None = None, in_flight: float = 2
    ):
        self.group, self.across, self.in_flight = group, across, in_flight
        self.pending: list[tuple[Bucket, Tensor, Tensor, Tensor, dist.Work]] = []
        self.more = False  # whether what is reduced now may be reduced again in this step
        self.reduced: dict[int, Tensor] = {}  # shards that are still to be added up across groups, by bucket
        self.sums: list[dist.Work] = []

    def _start(self, bucket: Bucket, whole: Tensor, shard: Tensor, fresh: bool = True) -> None:
        """Start a reduce-scatter whose result lands in ``shard`` or, not ``fresh``, beside it, to be added."""
        target = shard if fresh else torch.empty_like(shard)
        work = reduce_scatter(target, whole, self.group, async_op=True)
        self.pending.append((bucket, whole, target, shard, work))
        if len(self.pending) > self.in_flight:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        bucket, _, target, shard, work = self.pending.pop(0)
        work.wait()
        if target is not shard:
            shard.add_(target)
        self.reduced[bucket.index] = shard
        if not self.more:
            self._add_up(bucket.index)

    def _add_up(self, index: int) -> None:
        shard = self.reduced.pop(index)
        if self.across:
            self.sums.append(dist.all_reduce(shard, group=self.across, async_op=True))

    def settle(self, last: bool = False) -> None:
        """Wait for all reduce-scatters; ``last``: of the step."""
        while self.pending:
            self._settle_oldest()
        for index in list(self.reduced) if last else ():
            self._add_up(index)
        wait(self.sums)


class WholeGradients(ReducedGradients):
    """All gradients of a rank in one vector, in which they add up over micro-batches."""

    keep_whole = True

    def __init__(self, order: FlatOrder, group: dist.ProcessGroup, across: dist.ProcessGroup | None = None):
        super().__init__(group, across, in_flight=2 if across else float("inf"))
        self.vector = order.zeros()
        self.views = {slot: slot.view(self.vector) for slot in order.slots}

    def begin(self) -> None:
        """Nothing to forget: what arrives first overwrites what is there."""

    def arrived(self, slot: Slot) -> None:
        slot.keep_gradient_in(self.views[slot])

    def reduce(self, bucket: Bucket, hooks: GradientHooks) -> None:
        """Start a reduce-scatter; this rank's shard of the sum lands where its shard of the gradients was."""
        whole = self.vector[bucket.start : bucket.stop]
        zero_absent(whole, bucket, has_gradient)
        self._start(bucket, whole, self.vector[bucket.shard(self.group.rank())])

    def here(self, slot: Slot) -> bool:
        return has_gradient(slot)

    def of(self, segment: Segment) -> Tensor:
        return segment.of(self.vector)


class GradientShards(ReducedGradients):
    """This rank's shards of all buckets' gradients, in one vector; a whole bucket has memory only until it is sent."""

    keep_whole = False

    def __init__(self, order: FlatOrder, buckets: list[Bucket], group: dist.ProcessGroup, across: Any = None):
        super().__init__(group, across)
        self.buckets = buckets
        self.vector = torch.zeros(order.length // group.size(), dtype=order.dtype, device=order.device)
        self.fresh: set[int] = set()  # buckets whose shard holds nothing of this step yet
        self.buffers: dict[int, Tensor] = {}
        self.step_here: set[Slot] = set()  # arrived in any micro-batch of this step
        self._buckets_of = {slot: [b for b in buckets if slot in b.slots] for slot in order.slots}

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
        # The first micro-batch's sum lands in its place; others come beside it, and are added.
        self._start(bucket, whole, self.vector[bucket.in_shards], bucket.index in self.fresh)
        self.fresh.discard(bucket.index)

    def here(self, slot: Slot) -> bool:
        return slot in self.step_here

    def of(self, segment: Segment) -> Tensor:
        return segment.of_shards(self.vector)


class WholeParameters:
    """All parameters of a rank in one vector, of which they are views; after an update they are all-gathered."""

    def __init__(self, order: FlatOrder, buckets: list[Bucket], group: dist.ProcessGroup, gather: str):
        self.buckets, self.group, self.gather = buckets, group, gather
        # Gathers that go on into the next step must not hold up what it asks for first, the number of its tokens.
        self.gathering = clone_group(group) if gather == "lazily" else group
        self.works: dict[int, dist.Work] = {}  # all-gathers under way, by bucket
        self.vector = order.zeros()
        with torch.no_grad():
            for slot in order.slots:
                slot.view(self.vector).copy_(slot.parameter)
                slot.parameter.data = slot.view(self.vector)

    def leaf(self, segment: Segment) -> Tensor:
        return segment.of(self.vector)

    def all_gather(self) -> None:
        """All-gather the updated segments, in the order in which the forward pass needs them."""
        for bucket in reversed(self.buckets):
            whole, own = self.vector[bucket.start : bucket.stop], self.vector[bucket.shard(self.group.rank())]
            self.works[bucket.index] = all_gather(whole, own, self.gathering, async_op=True)
        if self.gather == "after":
            self.wait()

    def wait(self) -> None:
        for work in self.works.values():
            work.wait()
        self.works.clear()

    def wait_before_use(self, modules: Sequence[nn.Module], parameters: Named) -> None:
        """With ``gather`` lazily: have modules wait for the buckets in which the parameters lie that they use."""
        own = {p for _, p in parameters}
        needed = [b.index for b in self.buckets if any(slot.parameter in own for slot in b.slots)]
        for module in modules:
            module.register_forward_pre_hook(partial(self._wait_for, needed))

    def _wait_for(self, buckets: list[int], *_: Any) -> None:
        for index in buckets:
            if index in self.works:
                self.works.pop(index).wait()
