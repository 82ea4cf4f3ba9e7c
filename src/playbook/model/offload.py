"""What blocks keep for backward, in CPU memory: ``recompute="offload"``, or full+offload for the inputs of whole blocks.

Rajbhandari et al. 2021 (ZeRO-Infinity, arXiv 2104.07857, section 5.1.2) for the inputs of recomputed blocks. Each piece
of memory goes there once, when forward saves it, and comes back once, when backward asks for it, however many operations
share it. On a GPU it waits in pinned memory; copies are queued with the computation, which hides none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Copied:
    """The bytes of a tensor's storage in CPU memory; they come back together for all that ``asked`` to keep them."""

    def __init__(self, tensor: Tensor):
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        self.device, on_gpu = tensor.device, tensor.is_cuda
        self.bytes = torch.empty(whole.shape, dtype=torch.uint8, pin_memory=on_gpu)
        self.bytes.copy_(whole, non_blocking=on_gpu)
        self.asked, self.back = 0, torch.empty(0, dtype=torch.uint8)

    def again(self) -> Tensor:
        """The bytes, where they came from."""
        if not len(self.back):
            self.back = self.bytes.to(self.device, copy=True, non_blocking=True)
        found, self.asked = self.back, self.asked - 1
        if self.asked <= 0:
            self.back = self.back[:0].clone()
        return found


class Packed(NamedTuple):
    """A tensor, as it lies in a storage."""

    copied: Copied
    dtype: torch.dtype
    place: tuple[int | torch.SymInt, torch.Size, tuple[int, ...]]


@contextmanager
def in_cpu_memory(model: nn.Module, block: nn.Module, *others: Any) -> Iterator[None]:
    """Have what ``block`` saves for backward wait there, but for weights, the model's buffers, and ``others``."""
    fixed = {t.untyped_storage().data_ptr() for t in (*model.buffers(), *others) if isinstance(t, Tensor)}
    gone: dict[int, tuple[Copied, Tensor]] = {}  # with the tensors: nothing else gets their places meanwhile

    def pack(tensor: Tensor) -> Tensor | Packed:
        at = tensor.untyped_storage().data_ptr()
        weights = (
            p.untyped_storage().data_ptr() for p in block.parameters()
        )  # under ZeRO-3 these come and go
        if at in fixed or at in weights:
            return tensor
        if at not in gone:
            gone[at] = Copied(tensor), tensor
        gone[at][0].asked += 1
        return Packed(gone[at][0], tensor.dtype, (tensor.storage_offset(), tensor.shape, tensor.stride()))

    def unpack(packed: Tensor | Packed) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        whole = packed.copied.again()
        return torch.empty(0, dtype=packed.dtype, device=whole.device).set_(
            whole.untyped_storage(), *packed.place
        )

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
