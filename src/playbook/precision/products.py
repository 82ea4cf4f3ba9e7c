"""The product of two quantised matrices, a·bᵀ: both lie along the dimension that is summed over.

That is the one form that FP8 tensor cores of Hopper take. Where a device has none, codes are multiplied by their scales
again and the product is one of fp32: codes are exact there, and so are products of two of them, so that only the sums are
rounded, as in a kernel that adds up in fp32 (`by_groups` does so group by group, as kernels do).
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.precision.scaling import Quantized


def product(a: Quantized, b: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """a·bᵀ of a (m, k) and b (n, k): (m, n) in ``dtype``."""
    with torch.autocast(a.codes.device.type, enabled=False):
        wide = torch.promote_types(dtype, torch.float32)
        return (a.dequantized(wide) @ b.dequantized(wide).t()).to(dtype)


def by_groups(a: Quantized, b: Quantized, dtype: torch.dtype = torch.float32, step: int = 128) -> Tensor:
    """The same, ``step`` numbers of k at a time: each sum of codes is exact or nearly, then scaled and added in fp32.

    Groups must not be cut by a step (DeepSeek-AI 2024, section 3.3.2, promotes sums to fp32 like this).
    """
    total = torch.zeros(len(a.codes), len(b.codes), device=a.codes.device)
    left, right = a.spread(), b.spread()
    for k in range(0, a.codes.shape[1], step):
        some = slice(k, k + step)
        total += (
            (a.codes[:, some].float() @ b.codes[:, some].float().t()) * left[:, k, None] * right[None, :, k]
        )
    return total.to(dtype)
