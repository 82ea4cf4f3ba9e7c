"""The product of two quantised matrices, a·bᵀ: both lie along the dimension that is summed over.

That is the one form that FP8 tensor cores of Hopper take. Where there are none, codes are multiplied by their scales
again and the product is one of fp32: codes are exact there, and so are products of two of them, so that only the sums
are rounded, as in a kernel that adds up in fp32 (`by_groups` does so group by group, as kernels do).
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.precision.scaling import Quantized, on_fp8_gpu
from playbook.registry import lab


def product(a: Quantized, b: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """a·bᵀ of a (m, k) and b (n, k): (m, n) in ``dtype``."""
    found = _on_tensor_cores(a, b, dtype) if on_fp8_gpu(a.codes) and b.codes.numel() else None
    return product_torch(a, b, dtype) if found is None else found


def product_torch(a: Quantized, b: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same without FP8 tensor cores, wherever a and b are: a product in fp32 of numbers that are dequantised."""
    with torch.autocast(a.codes.device.type, enabled=False):
        wide = torch.promote_types(dtype, torch.float32)
        return (a.dequantized(wide) @ b.dequantized(wide).t()).to(dtype)


def _on_tensor_cores(a: Quantized, b: Quantized, dtype: torch.dtype) -> Tensor | None:
    """The product in FP8: PyTorch's where scales hold for all of k, else the book's kernel; None where neither can."""
    a, b = (Quantized(_along_k(q.codes), q.scales, q.size, q.dtype) for q in (a, b))
    (m, k), n = a.codes.shape, len(b.codes)
    of_tensors = a.scales.numel() == b.scales.numel() == 1
    of_rows = a.scales.shape == (m, 1) and b.scales.shape == (n, 1)
    if (of_tensors or of_rows) and not (m % 16 or n % 16 or k % 16):
        flat = a.scales.reshape(-1), b.scales.reshape(-1)
        scales = (flat[0][:, None], flat[1][None]) if not of_tensors else (flat[0].view(()), flat[1].view(()))
        if of_tensors or dtype == torch.bfloat16:
            return torch._scaled_mm(a.codes, b.codes.t(), *scales, out_dtype=dtype, use_fast_accum=False)
        # With scales of rows PyTorch gives bf16 and nothing else: what is wanted in fp32 is scaled afterwards.
        one = flat[0].new_ones(())
        codes = torch._scaled_mm(
            a.codes, b.codes.t(), one, one, out_dtype=torch.float32, use_fast_accum=False
        )
        return (codes * scales[0] * scales[1]).to(dtype)
    if all(q.scales.dtype == torch.float32 and q.size[1] in (128, k) for q in (a, b)):
        return lab("fp8", "product")(a, b, dtype=dtype)
    return None


def _along_k(codes: Tensor) -> Tensor:
    """The same, row by row."""
    if codes.is_contiguous():
        return codes
    return lab("fp8", "turn")(codes.t()) if codes.t().is_contiguous() else codes.contiguous()


def by_groups(a: Quantized, b: Quantized, dtype: torch.dtype = torch.float32, step: int = 128) -> Tensor:
    """The same, ``step`` numbers of k at a time: each sum of codes is exact or nearly, then scaled and added in fp32.

    Groups must not be cut by a step (DeepSeek-AI 2024, section 3.3.2, promotes sums to fp32 like this).
    """
    total = torch.zeros(len(a.codes), len(b.codes), device=a.codes.device)
    left, right = a.spread(), b.spread()
    for k in range(0, a.codes.shape[1], step):
        some = slice(k, k + step)
        factors = left[:, k, None] * right[None, :, k]
        total += (a.codes[:, some].float() @ b.codes[:, some].float().t()) * factors
    return total.to(dtype)
