"""Where the memory of a training step goes, allocation by allocation, on CPU and on CUDA alike.

A dispatch mode sees every operation that PyTorch runs, forward and backward; each storage that appears is noted with the
moment it is born and the moment it dies. What it was *for* is often known only later (a tensor is an activation once
autograd saves it, a gradient once it is accumulated), so the category is a label put on a storage, and the curves are
drawn at the end. Workspace that a kernel allocates for itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

#: The operator by which ``parallel.zero3`` resizes a storage in place.
RESIZE = "playbook::resize_storage"
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporary")


@dataclass
class Allocation:
    """A storage: its size, its life in ticks (one tick per birth or death), and what it was for."""

    bytes: int
    born: int
    category: str = "temporary"
    died: int | None = None


@dataclass(frozen=True)
class Curves:
    """``bytes[category][i]`` bytes alive after event ``i``; ``marks`` are (event, label) where a phase began."""

    bytes: dict[str, list[int]]
    marks: list[tuple[int, str]]

    @property
    def total(self) -> list[int]:
        return [sum(at) for at in zip(*self.bytes.values(), strict=True)]

    @property
    def peak(self) -> int:
        """Largest sum over all categories, in bytes."""
        return max(self.total)

    def at_peak(self) -> dict[str, int]:
        """Bytes of each category at the moment of the peak."""
        total = self.total
        i = total.index(max(total))
        return {category: values[i] for category, values in self.bytes.items()}


class MemoryTimeline(TorchDispatchMode):
    """Records every allocation while the ``with`` block runs.

    with MemoryTimeline(model, optimizer) as timeline:
        timeline.mark("forward");   loss = …
        timeline.mark("backward");  loss.backward()
        timeline.mark("optimizer"); optimizer.step()
    timeline.curves().peak

    ``tensors`` are more that are there when it begins, by category: flat vectors of gradients, shares of parameters.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler at the first operation, which takes seconds

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        tensors: Mapping[str, Iterable[Tensor]] | None = None,
    ):
        super().__init__()
        self.model, self.optimizer = model, optimizer
        self.tensors = tensors or {}
        self.allocations: list[Allocation] = []
        self.marks: list[tuple[int, str]] = []
        self._tick = 0
        self._live: dict[int, Allocation] = {}  # by address of the storage

    def mark(self, label: str) -> None:
        """Name the phase that begins now."""
        self._label_optimizer()
        self.marks.append((self._tick, label))

    def __enter__(self) -> MemoryTimeline:
        for t in [*self.model.parameters(), *self.model.buffers()]:
            self._note(t, "parameters")
        for p in self.model.parameters():
            if p.grad is not None:
                self._note(p.grad, "gradients")
        self._label_optimizer()
        for category, given in self.tensors.items():
            for t in given:
                self._note(t, category)
        self.tensors = {}  # last step's gradients shall be free to die
        self._handles = [
            p.register_post_accumulate_grad_hook(self._gradient)
            for p in self.model.parameters()
            if p.requires_grad
        ]
        self._saved = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self._saved.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._saved.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._label_optimizer()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name == RESIZE:
            return self._resize(func, args[0], args[1])
        given = {_address(t) for t in _tensors((*args, *kwargs.values()))}
        out = func(*args, **kwargs)
        for t in _tensors(out):
            # A view of a storage that was there before the recording began is nobody's allocation.
            if _address(t) not in given:
                self._note(t)
        return out

    def _note(self, t: Tensor, category: str | None = None) -> None:
        storage = t.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or t.device.type == "meta":
            return
        known = self._live.get(address)
        if known is None:
            known = Allocation(size, self._next())
            self._live[address] = known
            self.allocations.append(known)
            weakref.finalize(storage, self._died, address, known).atexit = False
        if category is not None:
            known.category = category

    def _resize(self, func, t: Tensor, size: int) -> None:
        """A storage whose memory is given back and taken again: that of weights which ZeRO-3 gathers."""
        address = _address(t)
        if known := self._live.get(address):
            self._died(address, known)
        func(t, size)
        self._note(t, "parameters")

    def _died(self, address: int, allocation: Allocation) -> None:
        if allocation.died is None:
            allocation.died = self._next()
            if self._live.get(address) is allocation:
                del self._live[address]

    def _next(self) -> int:
        self._tick += 1
        return self._tick

    def _pack(self, t: Tensor) -> Tensor:
        known = self._live.get(_address(t))
        if known is not None and known.category == "temporary":
            known.category = "activations"
        return t.detach()

    def _gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._note(parameter.grad, "gradients")

    def _label_optimizer(self) -> None:
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        for state in states:
            for value in state.values():
                if isinstance(value, Tensor):
                    self._note(value, "optimizer")

    def curves(self) -> Curves:
        """The recorded history as one curve per category."""
        now = self._tick  # garbage collection may end more storages while they are counted here
        steps = {category: [0] * (now + 1) for category in CATEGORIES}
        for a in self.allocations:
            steps[a.category][a.born] += a.bytes
            if a.died is not None and a.died <= now:
                steps[a.category][a.died] -= a.bytes
        return Curves(
            {category: _running_sum(values) for category, values in steps.items()}, list(self.marks)
        )


def _tensors(found: Any) -> Iterator[Tensor]:
    """Tensors among an operation's arguments or results. PyTorch's ``tree_iter`` finds them, too, in twice the time."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            if isinstance(one, Tensor):
                yield one
            elif isinstance(one, (list, tuple, dict)):
                yield from _tensors(one)
    elif isinstance(found, dict):
        yield from _tensors(tuple(found.values()))


def _address(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _running_sum(values: list[int]) -> list[int]:
    total, out = 0, []
    for value in values:
        total += value
        out.append(total)
    return out


@dataclass
class PeakBytes:
    """Result of ``peak_bytes``: filled in when the block ends."""

    bytes: int = 0
    categories: dict[str, int] = field(default_factory=dict)


@contextmanager
def peak_bytes(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    tensors: Mapping[str, Iterable[Tensor]] | None = None,
) -> Iterator[PeakBytes]:
    """Largest number of bytes alive at once in the block: CUDA's own counter on a GPU, the timeline elsewhere."""
    result = PeakBytes()
    device = next(model.parameters()).device
    if device.type == "cuda":
        del tensors  # last step's gradients shall be free to die
        torch.cuda.reset_peak_memory_stats(device)
        yield result
        result.bytes = torch.cuda.max_memory_allocated(device)
        return
    timeline = MemoryTimeline(model, optimizer, tensors)
    del tensors  # last step's gradients shall be free to die
    with timeline:
        yield result
    curves = timeline.curves()
    result.bytes, result.categories = curves.peak, curves.at_peak()
