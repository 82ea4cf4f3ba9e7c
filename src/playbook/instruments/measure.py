"""What operations of PyTorch read and write, and the end of what a device was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def storage(t: Tensor) -> int:
    """What tells the memory behind a tensor from any other's."""
    # The storage object, not the address of its bytes: meta and fake tensors have no bytes.
    return t.untyped_storage()._cdata


@dataclass(frozen=True)
class Operation:
    """One operation of PyTorch that touches memory: its name, and the bytes that it reads and writes."""

    name: str
    read: int
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


def operations(function: Callable[[], Any]) -> list[Operation]:
    """The operations of ``function`` that read or write memory, in order, backward included.

    Each operation is taken to read every input once and to write every output once; views move nothing. What a kernel
    moves beyond that, and what a cache saves, is not seen: a count for comparing, not a measurement. Tensors may be on
    the device "meta", where nothing is computed.
    """
    counter = _Traffic()
    with counter:
        function()
    return counter.found


def count_traffic(function: Callable[[], Any]) -> int:
    """Bytes that the `operations` of ``function`` read and write."""
    return sum(one.bytes for one in operations(function))


_ATEN = torch.ops.aten
#: Arguments, by number, that are not read: what is overwritten, and log-probabilities of which a row's one is picked.
_UNREAD = {_ATEN.copy_: 0, _ATEN.fill_: 0, _ATEN.zero_: 0, _ATEN.nll_loss_backward: 1}
_UNREAD[_ATEN.nll_loss_forward] = 0


class _Traffic(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler at the first operation, which takes seconds

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        written = [t for t in tree_iter(out) if isinstance(t, Tensor)]
        known = {storage(t) for t in given}
        view = not func._schema.is_mutable and all(storage(t) in known for t in written)
        name = func.overloadpacket.__name__
        if not view and not name.startswith("empty"):
            unread = _UNREAD.get(func.overloadpacket)
            read = {id(t): t for t in given if unread is None or t is not args[unread]}  # x·x reads x once
            self.found.append(Operation(name, sum(map(_moved, read.values())), sum(map(_moved, written))))
        return out


def _moved(t: Tensor) -> int:
    # An expanded tensor has more elements than bytes behind it.
    return min(t.numel() * t.element_size(), t.untyped_storage().nbytes())


def synchronize(device: torch.device | str = "cpu") -> None:
    """Wait until the device has done all that was asked of it; nothing to wait for on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
