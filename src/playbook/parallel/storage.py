"""Give a tensor's memory back, and take it again, while views of it stay what they are."""

from __future__ import annotations

import torch
from torch import Tensor

# An operator of PyTorch's dispatcher, so that instruments see it (``instruments.memory_timeline``).
_LIBRARY = torch.library.Library("playbook", "DEF")
_LIBRARY.define("resize_storage(Tensor(a!) x, int bytes) -> ()")


def _resize(x: Tensor, bytes: int) -> None:
    x.untyped_storage().resize_(bytes)


_LIBRARY.impl("resize_storage", _resize, "CompositeExplicitAutograd")


def resize_storage(x: Tensor, bytes: int) -> None:
    """Let the storage of ``x`` have so many bytes; 0 gives its memory back.

    What autograd saved of ``x`` or of a view of it is right again as soon as the same values are: that is how ZeRO-3 can
    forget weights between forward and backward (as PyTorch's FSDP does). Nobody may read ``x`` while it has none.
    """
    torch.ops.playbook.resize_storage(x, bytes)
