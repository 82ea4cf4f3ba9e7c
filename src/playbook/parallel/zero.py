"""ZeRO: data parallelism in which each rank keeps a share of what replicas would hold in common (arXiv 1910.02054).

Stage 1 shares the optimizer states, stage 2 the gradients as well, stage 3 (``zero3.py``) the parameters too. All rest on
one idea: an all-reduce is a reduce-scatter and an all-gather, and between the two each rank has the whole sum of *its*
share. So it updates its share alone, with the optimizer states of its share alone, and then shares the new weights.

Parameters lie in one flat vector, cut into buckets; a bucket is cut into as many shares as there are ranks. AdamW works
element by element, so that it does not mind where a share begins: what lies in a share of a parameter is a tensor of its
own to it (a *segment*), and the result is what it would be for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.errors import ConfigError
from playbook.parallel.data import (
    BUCKET,
    FIRST_BUCKET,
    broadcast_parameters,
    has_gradient,
    wait,
    zero_absent,
)
from playbook.parallel.flat import (
    Arrivals,
    Bucket,
    FlatOrder,
    Segment,
    Slot,
    Units,
    UsedParameters,
    backward_order,
)
from playbook.parallel.mesh import beside
from playbook.parallel.shards import Shards
from playbook.parallel.single import all_gather, reduce_scatter
from playbook.training.optimizer import MakeOptimizer

GATHER = ("after", "lazily")


class Zero1:
    """Stage 1: whole parameters and gradients on every rank, a share of the optimizer states.

    A step: gradients add up in a flat vector over all micro-batches; during the last backward each full bucket is
    reduce-scattered; the optimizer updates this rank's segments; the new parameters are all-gathered, at once ("after")
    or bucket by bucket while the next forward pass goes on ("lazily"). ``make`` makes the optimizer of a list of tensors
    (``training.optimizer.adamw``); ``units`` are parameters by name that no bucket mixes with others. Per step
    2(N − 1)/N bytes for each byte of parameters, as an all-reduce.
    """

    stage = 1

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        make: MakeOptimizer,
        *,
        bucket: int = BUCKET,
        first_bucket: int = FIRST_BUCKET,
        gather: str = "after",
        find_unused: bool = False,
        units: Units | None = None,
    ):
        if gather not in GATHER:
            raise ConfigError(f"gather is {gather!r}, but must be one of {', '.join(GATHER)}")
        self.model, self.group, self.gather = model, group, gather
        self.find_unused = find_unused
        # Gathers that go on into the next step must not hold up what it asks for first, the number of its tokens.
        self.gathering = beside(group) if gather == "lazily" else group
        order = FlatOrder(units or [backward_order(model)], group.size())
        self._set_up(order, order.cut(bucket, first_bucket), make)
        self._handles = list(self._wait_before_use()) if gather == "lazily" else []

    def _set_up(self, order: FlatOrder, buckets: list[Bucket], make: MakeOptimizer) -> None:
        broadcast_parameters(self.model, self.group)
        self.order, self.buckets = order, buckets
        self.parameters = self._make_parameters()
        self.shards = Shards(order, buckets, self.group, self._weights, make)
        self.used = UsedParameters([slot.name for slot in order.slots], self.group, self.find_unused)
        self.arrivals = Arrivals(buckets, self._arrived, self._complete)
        self.unused: set[Slot] = set()  # without a gradient on any rank, in this step
        self.works: list[dist.Work] = []
        self.gathers: dict[int, dist.Work] = {}  # all-gathers under way, by bucket
        self._make_gradients()

    @torch.no_grad()
    def _make_parameters(self) -> Tensor:
        """Move the parameters into one vector, of which they become views."""
        vector = self.order.vector()
        for slot in self.order.slots:
            slot.view(vector).copy_(slot.parameter)
            slot.parameter.data = slot.view(vector)
        return vector

    def _weights(self, segment: Segment) -> Tensor:
        return segment.of(self.parameters)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this rank's segments."""
        return self.shards.optimizer

    def share(self, bucket: Bucket) -> slice:
        """Where this rank's share of a bucket lies in the flat vector."""
        return slice(*bucket.share(self.group.rank(), self.group.size()))

    # ---- gradients

    def _make_gradients(self) -> None:
        self.gradients = self.order.vector()
        self.views = {slot: slot.view(self.gradients) for slot in self.order.slots}

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for slot in self.order.slots:
            slot.parameter.grad = None
        self.shards.forget_gradients()

    def no_sync(self) -> AbstractContextManager[None]:
        """A backward pass after which there will be another: gradients stay here, and add up."""
        return self.arrivals.paused()

    #: Whether whole gradients stay on this rank until the last micro-batch.
    keeps_gradients = True

    def hold(self) -> None:
        """Gradients will be handed over by `deliver`, and not by hooks."""
        self.arrivals.hold(collect=self.keeps_gradients)

    def deliver(self, parameters: Iterable[nn.Parameter]) -> None:
        """These gradients are complete, or what stage 2 keeps of them until now: what can be sent is."""
        self.arrivals.deliver(parameters)

    def _arrived(self, slot: Slot) -> None:
        slot.keep_gradient_in(self.views[slot])

    def _complete(self, bucket: Bucket) -> None:
        """Start a reduce-scatter; this rank's share of the sum lands where its share of the addends was."""
        whole = self.gradients[bucket.start : bucket.stop]
        zero_absent(whole, bucket, has_gradient)
        own = self.gradients[self.share(bucket)]
        self.works.append(reduce_scatter(own, whole, self.group, async_op=True))

    def finish(self) -> None:
        """After the last backward pass of a step: this rank has the sum over all ranks of its share."""
        here = [has_gradient(slot) for slot in self.order.slots]
        self.arrivals.finish()
        wait(self.works)
        self._hand_over(here, lambda segment: segment.of(self.gradients))

    def _hand_over(self, here: list[bool], gradient: Callable[[Segment], Tensor]) -> None:
        """Give the optimizer the gradients of the segments whose parameters got one on any rank."""
        anywhere = self.used.agree(here, self.order.device)
        self.unused = {slot for slot, used in zip(self.order.slots, anywhere, strict=True) if not used}
        self.arrivals.skip(self.used.never(self.order.slots))
        self.shards.take_gradients(lambda s: None if s.slot in self.unused else gradient(s))

    def clip(self, limit: float) -> Tensor:
        """The norm of the whole gradient; where it is above ``limit``, gradients are scaled down to it."""
        return self.shards.clip(limit)

    # ---- parameters

    def step(self) -> None:
        """Update this rank's segments, and get those of the others."""
        self.shards.step()
        for bucket in reversed(self.buckets):  # in the order in which the forward pass needs them
            whole, own = self.parameters[bucket.start : bucket.stop], self.parameters[self.share(bucket)]
            work = all_gather(whole, own, self.gathering, async_op=True)
            self.gathers[bucket.index] = work
        if self.gather == "after":
            self.wait()

    def wait(self) -> None:
        """Wait until all parameters are up to date."""
        for work in self.gathers.values():
            work.wait()
        self.gathers.clear()

    def _wait_before_use(self) -> Iterator[Any]:
        """Hooks that have each module wait for the buckets in which its own parameters lie."""
        within: dict[nn.Parameter, list[int]] = {}
        for bucket in self.buckets:
            for slot in bucket.slots:
                within.setdefault(slot.parameter, []).append(bucket.index)
        for module in self.model.modules():
            # The first column-parallel layer of a region runs all of them; learned positions are read without a call.
            users = [module, *getattr(getattr(module, "region", None), "columns", [])]
            if module is getattr(self.model, "embedding", None) and self.model.position_embedding is not None:
                users.append(self.model.position_embedding)
            needed = {i for m in users for p in m.parameters(recurse=False) if p in within for i in within[p]}
            if needed:
                yield module.register_forward_pre_hook(partial(self._wait_for, sorted(needed)))

    def _wait_for(self, buckets: list[int], *_: Any) -> None:
        for index in buckets:
            if index in self.gathers:
                self.gathers.pop(index).wait()

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer as one device would save them, on every rank. A collective: all ranks must call it."""
        self.wait()
        return {"model": copies(self.model.state_dict()), "optimizer": self.shards.state_dict(self.model)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state_dict`` gave, or a single device saved: each rank its share of it."""
        self.wait()
        self.model.load_state_dict(state["model"])
        self.shards.load_state_dict(self.model, state["optimizer"])

    def gradients_whole(self) -> dict[str, Tensor | None]:
        """The whole gradient by parameter name, as ``clip`` left it; None where there is none. A collective."""
        whole = self.shards.gather(lambda s: self.shards.leaves[s].grad, self.order.dtype)
        unused = {slot.name for slot in self.unused}
        return {name: None if name in unused else gradient for name, gradient in whole.items()}

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        dist.all_reduce(value, group=self.group)
        return value

    def owned(self) -> list[tuple[str, Tensor]]:
        """The gradients of this rank's segments, with the names of their parameters."""
        return [(s.slot.name, leaf.grad) for s, leaf in self.shards.leaves.items() if leaf.grad is not None]

    def copies(self, name: str) -> int:
        """On how many ranks of the norm's groups each element of a parameter is."""
        return 1

    def norm_groups(self) -> list[dist.ProcessGroup]:
        """Ranks that own other segments."""
        return [self.group]

    def groups(self) -> list[dist.ProcessGroup]:
        """Process groups in which it talks."""
        return [self.group] if self.gathering is self.group else [self.group, self.gathering]

    def tensors(self) -> dict[str, list[Tensor]]:
        """What this rank keeps between steps, by kind."""
        return {
            "parameters": [self.parameters],
            "gradients": [self.gradients],
            "optimizer": self.shards.tensors(),
        }


def copies(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that later steps do not change."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}
