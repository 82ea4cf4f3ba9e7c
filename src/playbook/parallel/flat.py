"""Parameters in one vector (``layout/flat.py``), and hooks that tell when a bucket's gradients are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from playbook.errors import ConfigError
from playbook.layout import flat

#: Parameters with their names.
Named = list[tuple[str, nn.Parameter]]
#: Lists of parameters, each of which lies together in the vector.
Units = Sequence[Named]
#: Parameters to whose gradients somebody listens (``GradientHooks``).
_taken = WeakTensorKeyDictionary()


@dataclass(eq=False)
class Slot(flat.Slot):
    """The place ``start:stop`` of a parameter in the vector."""

    name: str
    parameter: nn.Parameter
    shape: torch.Size

    def keep_gradient_in(self, view: Tensor) -> None:
        """Move a new gradient to ``view``, in a vector. From the next micro-batch on autograd adds to it there."""
        p = self.parameter
        if p.grad is not None and p.grad is not view:
            view.copy_(p.grad)
            p.grad = view

    def view(self, vector: Tensor, begin: int = 0) -> Tensor:
        """The slot's part of a vector that holds the elements from ``begin`` on, in the shape of the parameter."""
        return vector[self.start - begin : self.stop - begin].view(self.shape)


Bucket: TypeAlias = flat.Bucket[Slot]
Segment: TypeAlias = flat.Segment[Slot]


class FlatOrder(flat.FlatVector[tuple[str, nn.Parameter], Slot]):
    """That of units of (name, parameter). Raises ConfigError unless all parameters have one dtype and one device."""

    def __init__(self, units: Iterable[Iterable[tuple[str, nn.Parameter]]], ranks: int = 1):
        super().__init__(
            units, ranks, lambda at, named: Slot(at, at + named[1].numel(), *named, named[1].shape)
        )
        self.dtype, self.device = self._one("dtype"), self._one("device")

    def _one(self, attribute: str):
        found = {getattr(slot.parameter, attribute): slot.name for slot in self.slots}
        if len(found) != 1:
            told = ", ".join(f"{name} has {value}" for value, name in found.items()) or "there are none"
            raise ConfigError(f"parameters must be of one {attribute} to lie in one vector, but {told}")
        return next(iter(found))

    def zeros(self) -> Tensor:
        """A new vector."""
        return torch.zeros(self.length, dtype=self.dtype, device=self.device)

    def buckets(self, size: int, first: int | None = None) -> list[Bucket]:
        """Buckets of at most ``size`` bytes, the first of at most ``first``."""
        itemsize = self.dtype.itemsize
        return self.cut(size // itemsize, (first or size) // itemsize)


def backward_order(parameters: nn.Module | Named) -> Named:
    """Parameters that learn, in the order in which backward is done with them: the reverse of how they were made.

    ``parameters`` are a model's, or a list in the order of a model's. Raises ConfigError where somebody listens to their
    gradients already: two of them would each add up the ranks.
    """
    named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
    learning = [(name, p) for name, p in named if p.requires_grad]
    for name, p in learning:
        if p in _taken:
            raise ConfigError(f"parameter {name!r} is in the hands of another engine: make a new model")
    return learning[::-1]


class GradientHooks:
    """Hooks on parameters that tell when the gradients of a bucket are complete.

    ``arrived(slot)`` is called when a parameter's ``.grad`` has this backward pass in it, ``complete(bucket)`` once this
    holds for all slots of a bucket. Buckets complete *in their order*, whatever the order of gradients: collectives must
    be started in the same order on every rank. Raises ConfigError when a parameter's gradient comes twice in one pass.
    """

    def __init__(
        self, buckets: list[Bucket], arrived: Callable[[Slot], None], full: Callable[[Bucket], None]
    ):
        self.buckets, self.arrived, self.complete = buckets, arrived, full
        self.slots = list({slot: None for bucket in buckets for slot in bucket.slots})
        self.here: set[Slot] = set()  # in this backward pass
        self.unused: set[Slot] = set()  # known never to get a gradient: not waited for
        self._next = 0
        self._paused = False
        self._listens: bool | None = None
        self._marked: set[Slot] = set()
        self._sent: set[Bucket] = set()
        self._within: dict[Slot, list[Bucket]] = {slot: [] for slot in self.slots}
        for bucket in buckets:
            for slot in bucket.slots:
                self._within[slot].append(bucket)
        self._missing = self._counts()
        for slot in self.slots:
            slot.parameter.register_post_accumulate_grad_hook(partial(self._hook, slot))
            _taken[slot.parameter] = True

    def skip(self, unused: Iterable[Slot]) -> None:
        """From the next pass on, do not wait for these, which never get a gradient."""
        self.unused = set(unused)
        self._missing = self._counts()

    def _counts(self) -> list[int]:
        return [sum(slot not in self.unused for slot in bucket.slots) for bucket in self.buckets]

    def defer_sync(self, collect: bool) -> None:
        """From now on no backward pass completes anything: `mark_ready` does. In a pipeline many stand side by side.

        With ``collect`` gradients go on arriving (``arrived``) as they come; without, when they are marked.
        """
        self._listens = collect

    def mark_ready(self, parameters: Iterable[nn.Parameter]) -> None:
        """The gradients of these parameters are complete: so are the buckets of which they were the last.

        Ranks must mark in the same order.
        """
        wanted = set(parameters)
        slots = [slot for slot in self.slots if slot.parameter in wanted]
        self._marked.update(slots)
        for slot in slots:
            if slot.parameter.grad is not None:
                self.here.add(slot)
                self.arrived(slot)
        for bucket in dict.fromkeys(bucket for slot in slots for bucket in self._within[slot]):
            if self._marked.issuperset(bucket.slots):
                self._send(bucket)
        self._marked.difference_update([s for s in slots if self._sent.issuperset(self._within[s])])
        self.here.difference_update(slots)

    def _send(self, bucket: Bucket) -> None:
        self._sent.add(bucket)
        self.complete(bucket)

    def _hook(self, slot: Slot, _: Tensor) -> None:
        if self._listens is not None:
            if self._listens:
                self.arrived(slot)
            return
        if slot in self.here:
            raise ConfigError(
                f"parameter {slot.name!r} got its gradient in two parts: it is used by two checkpoints, or backward "
                "ran twice before finish()"
            )
        self.here.add(slot)
        self.arrived(slot)
        if slot not in self.unused:
            for bucket in self._within[slot]:
                self._missing[bucket.index] -= 1
        self._complete_ready()

    def _complete_ready(self) -> None:
        while not self._paused and self._next < len(self.buckets) and self._missing[self._next] == 0:
            bucket = self.buckets[self._next]
            self._next += 1
            self.complete(bucket)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gradients arrive, but no bucket completes: there will be another micro-batch."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self._reset()

    def finish(self) -> None:
        """Complete the buckets that still wait for gradients which have not come, and be ready for the next pass."""
        if self._listens is not None:
            for bucket in self.buckets:
                if bucket not in self._sent:
                    self._send(bucket)
            self._sent.clear()
            self._marked.clear()
            self.here.clear()
            return
        self._missing = [0] * len(self.buckets)
        self._complete_ready()
        self._reset()

    def _reset(self) -> None:
        self.here.clear()
        self._next, self._missing = 0, self._counts()


class UsedParameters:
    """Which of ``names`` get a gradient on some rank of the group.

    A parameter that gets none anywhere must stay without: an optimizer would let weight decay eat a weight whose gradient
    is zero, and skips one that has none. The ranks ask each other in the first step, a byte for each parameter, and in
    every step where ``each_step``. Raises ConfigError when it is not what it was in the first step.
    """

    def __init__(self, names: Sequence[str], group: dist.ProcessGroup, each_step: bool = False):
        self.names, self.group, self.each_step = list(names), group, each_step
        self._first: list[bool] = []
        self._anywhere: list[bool] = []

    def agree(self, here: Sequence[bool], device: torch.device) -> list[bool]:
        """Whether each parameter got a gradient on some rank, given whether it did ``here``."""
        if not self._first or self.each_step:
            flags = torch.tensor(here, dtype=torch.uint8, device=device)
            dist.all_reduce(flags, dist.ReduceOp.MAX, self.group)
            self._first, self._anywhere = list(here), [bool(flag) for flag in flags.tolist()]
        for name, before, now in zip(self.names, self._first, here, strict=True):
            if before != now:
                first, second = ("a", "none") if before else ("no", "one")
                raise ConfigError(
                    f"parameter {name!r} got {first} gradient in the first step and {second} in this one: with "
                    "find_unused=True ranks ask each other in every step"
                )
        return self._anywhere

    def never(self, slots: Iterable[Slot]) -> set[Slot]:
        """Of ``slots``, one for each name, those that no step gives a gradient: none is known where ``each_step``."""
        if self.each_step:
            return set()
        return {slot for slot, used in zip(slots, self._anywhere, strict=True) if not used}
