"""What a kernel asks of a GPU's memory, counted without one: the interpreter's every load and store, address by address.

    with Sectors() as counted:
        rms_norm(x, weight)
    counted.dram.read, counted.requested.read, counted.efficiency

Memory moves in *sectors* of 32 bytes. The 32 threads of a warp ask together, each for up to 16 bytes that lie side by
side; Triton gives neighbouring addresses to neighbouring threads. A request of a warp costs the sectors that it touches,
whatever it needs of them. ``requested`` counts these; ``dram`` counts each sector once for a launch, as if caches kept
all that a launch reads again: what must come from memory at least.
"""

from __future__ import annotations

import playbook.kernels.jit  # noqa: F401 - first: it says so where there is no Triton

# isort: split
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from playbook.kernels.jit import Launch, launches
from playbook_book.kernels.warps import SECTOR, WARP

#: The most bytes that a thread asks for at once.
VECTOR = 16


@dataclass
class Moved:
    """Bytes in both directions."""

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written


@dataclass
class Sectors:
    """Counts while it is entered, for launches on CPU tensors.

    ``needed`` are bytes of the elements that are asked for, ``requests`` those of warps; ``tensors`` is ``dram`` by
    kernel and argument.
    """

    dram: Moved = field(default_factory=Moved)
    requested: Moved = field(default_factory=Moved)
    needed: Moved = field(default_factory=Moved)
    requests: int = 0
    tensors: dict[tuple[str, str], Moved] = field(default_factory=lambda: defaultdict(Moved))

    @property
    def efficiency(self) -> float:
        """Bytes that are needed, of those in the sectors that are asked for: 1 where all accesses are coalesced."""
        return self.needed.total / max(self.requested.total, 1)

    @property
    def sectors_per_request(self) -> float:
        """Four where each thread of a warp wants a float beside its neighbour's; 32 where these are far apart."""
        return self.requested.total / SECTOR / max(self.requests, 1)

    def __enter__(self) -> Sectors:
        self._stack = ExitStack()
        self._launches = self._stack.enter_context(launches())
        self._touched: dict[tuple[int, str, str], list[np.ndarray]] = defaultdict(list)
        load, store = interpreter_builder.create_masked_load, interpreter_builder.create_masked_store

        def counting_load(pointers: Any, mask: Any, *others: Any, **named: Any) -> Any:
            self._note("read", pointers.data, mask.data)
            return load(pointers, mask, *others, **named)

        def counting_store(pointers: Any, value: Any, mask: Any, *others: Any, **named: Any) -> Any:
            self._note("written", pointers.data, mask.data)
            return store(pointers, value, mask, *others, **named)

        interpreter_builder.create_masked_load = counting_load
        interpreter_builder.create_masked_store = counting_store
        self._stack.callback(delattr, interpreter_builder, "create_masked_load")
        self._stack.callback(delattr, interpreter_builder, "create_masked_store")
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        for (index, name, way), found in self._touched.items():
            count = SECTOR * len(np.unique(np.concatenate(found)))
            for moved in (self.dram, self.tensors[self._launches[index].kernel.fn.__name__, name]):
                setattr(moved, way, getattr(moved, way) + count)
        self._touched.clear()

    def _note(self, way: str, pointers: np.ndarray, mask: np.ndarray) -> None:
        addresses = np.sort(pointers[np.broadcast_to(mask, pointers.shape).astype(bool)].reshape(-1))
        if not addresses.size:
            return
        name, offsets, size = _in_tensor(self._launches[-1], addresses)
        each = WARP * _vector(offsets, size)
        sectors = offsets // SECTOR
        warps = np.arange(len(sectors)) // each
        another = _begins(sectors)  # all are in order
        asked = SECTOR * int((another | _begins(warps)).sum())
        self.requests += int(warps[-1]) + 1
        for moved, count in ((self.requested, asked), (self.needed, int(_begins(offsets).sum()) * size)):
            setattr(moved, way, getattr(moved, way) + count)
        self._touched[len(self._launches) - 1, name, way].append(sectors[another])


def _begins(ordered: np.ndarray) -> np.ndarray:
    """Where another number begins."""
    return np.append(True, ordered[1:] != ordered[:-1])


def _in_tensor(launch: Launch, addresses: np.ndarray) -> tuple[str, np.ndarray, int]:
    """The argument that ``addresses`` are in, their bytes from its beginning, and the size of its elements.

    What is interpreted in fp32 in the place of bf16 counts as what it stands for.
    """
    first, last = int(addresses[0]), int(addresses[-1])
    for name, x in launch.memory.items():
        storage, argument = x.untyped_storage(), launch.arguments[name]
        end = storage.data_ptr() + storage.nbytes()
        if storage.data_ptr() <= first < end:
            if last >= end:  # found before anything is read or written there
                raise LookupError(f"{launch.kernel.fn.__name__} reads or writes {name} beyond its end")
            assert isinstance(argument, Tensor)
            size = argument.element_size()
            return name, (addresses - storage.data_ptr()) // x.element_size() * size, size
    raise LookupError(f"{launch.kernel.fn.__name__} reads or writes outside of its arguments, at {first:#x}")


def _vector(offsets: np.ndarray, size: int) -> int:
    """How many elements a thread asks for at once: as many as lie side by side, up to 16 bytes."""
    if len(offsets) < 2 or (np.diff(offsets) != size).sum() * 2 > len(offsets):
        return 1
    return max(1, VECTOR // size)
