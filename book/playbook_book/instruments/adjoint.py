"""A test of any linear function over ranks that knows nothing of its code: is its backward pass its transpose?

⟨A·x, y⟩ = ⟨x, Aᵀ·y⟩ for all x and y, inner products being over the whole machine. A tensor of which every rank has a copy
is one tensor, and counts once; tensors of which each rank has its own count each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


def inner_products(
    function: Callable[[Tensor, dist.ProcessGroup], Tensor],
    group: dist.ProcessGroup,
    size: tuple[int, ...],
    *,
    copied_in: bool = False,
    copied_out: bool = False,
    device: str = "cpu",
) -> tuple[float, float]:
    """⟨A·x, y⟩ and ⟨x, Aᵀ·y⟩ for A = ``function`` and random x of ``size`` and y, in double precision. A collective.

    ``copied_in`` and ``copied_out`` say that what goes in, or comes out, is one tensor that all ranks have a copy of.
    """
    x = _random(size, 0 if copied_in else 1 + group.rank(), device).requires_grad_()
    out = function(x, group)
    y = _random(tuple(out.shape), 1000 if copied_out else 1001 + group.rank(), device)
    out.backward(y)
    assert x.grad is not None
    return _inner(out.detach(), y, group, copied_out), _inner(x.detach(), x.grad, group, copied_in)


def _random(size: tuple[int, ...], seed: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(device)


def _inner(a: Tensor, b: Tensor, group: dist.ProcessGroup, copied: bool) -> float:
    total = (a * b).sum()
    if not copied:
        dist.all_reduce(total, group=group)
    return total.item()
