"""All-gather and reduce-scatter of one flat vector, under the names that PyTorch gives them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

# PyTorch 2.13 has renamed them, and warns of the names of before.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(
    whole: Tensor, own: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Any:
    """Fill ``whole`` (N · n,) with the ``own`` (n,) of all N ranks in order. With ``async_op``, the work under way."""
    return _all_gather(whole, own, group=group, async_op=async_op)


def reduce_scatter(
    own: Tensor, whole: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Any:
    """Fill ``own`` (n,) with this rank's chunk of the sum over ranks of ``whole`` (N · n,), which may contain it."""
    return _reduce_scatter(own, whole, group=group, async_op=async_op)
