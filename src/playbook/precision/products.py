"""The product of two quantised matrices, a·bᵀ: both lie along the dimension that is summed over.

That is the one form that FP8 tensor cores of Hopper take. Where there are none, codes are multiplied by their scales
again and the product is one of fp32: codes are exact there, and so are products of two of them, so that only the sums
are rounded, as in a kernel that adds up in fp32 (`by_groups` does so group by group, as kernels do).

And an optimizer's states at rest in few bits (`narrow`): FP8-LM keeps the first moment in E4M3 and the second, by whose
square root is divided, in FP16, with a scale per tensor (Peng et al. 2023, arXiv 2310.18313, section 2); DeepSeek-V3
keeps both in BF16, which has the range of fp32 (arXiv 2412.19437, section 3.3.3). Scales are powers of two, so that all
but a tensor's smallest numbers are rounded alike whatever the scale is: that ZeRO's shards have their own hardly matters.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.precision.casts import DTYPES
from playbook.precision.formats import FORMATS, load_format
from playbook.precision.scaling import Quantized, capability, on_fp8_gpu, scales_of
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
    """The product in FP8: PyTorch's where it has it, else the book's kernel; None where neither can."""
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
    if any(q.scales.dtype != torch.float32 or q.size[1] not in (128, k) for q in (a, b)):
        return None
    if dtype == torch.bfloat16 and a.size == (1, 128) and takes_blocks(a, b):
        return scaled_by_blocks(a.codes, b.codes, a.scales, b.scales)
    return lab("fp8", "product")(a, b, dtype=dtype)


def takes_blocks(a: Quantized, b: Quantized) -> bool:
    """Whether PyTorch multiplies tiles by tiles or blocks here: from CUDA 12.9 on, on GPUs of compute capability 9.0."""
    (m, k), n = a.codes.shape, len(b.codes)
    known = hasattr(F, "scaled_mm") and a.codes.is_cuda and capability(a.codes.device) == (9, 0)
    return known and not (m % 16 or n % 16 or k % 128) and (torch.version.cuda or "0") >= "12.9"


def scaled_by_blocks(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
    """a·bᵀ in bf16 by cuBLAS, of codes (m, k) with scales of 1 × 128 and codes (n, k) with scales of 1 × 128 or of
    128 × 128. It wants scales of tiles column by column, and those of blocks turned, of steps of k a multiple of 4."""
    kinds: Any = F.ScalingType
    tiles = len(of_b) == len(b)
    if tiles:
        of_b = of_b.t().contiguous().t()
    else:
        missing = -of_b.shape[1] % 4
        of_b = (F.pad(of_b, (0, missing)) if missing else of_b.contiguous()).t()
    kind = kinds.BlockWise1x128 if tiles else kinds.BlockWise128x128
    return F.scaled_mm(
        a, b.t(), of_a.t().contiguous().t(), kinds.BlockWise1x128, of_b, kind, output_dtype=torch.bfloat16
    )


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


def narrow(kind: str, x: Tensor, form: str) -> dict[str, Tensor]:
    """A state of this ``kind`` in ``form``: {kind: numbers} and, where the range is narrower than that of fp32,
    {kind_scale: a scalar} that they are multiplied by.

    Raises ConfigError for an unknown format, and KeyError for one that PyTorch has no dtype for.
    """
    found = load_format(form)
    if found.exponent == FORMATS["fp32"].exponent:
        return {kind: x.to(DTYPES[form])}
    largest = x.abs().amax() if x.numel() else x.new_zeros(())
    scale = scales_of(largest, found, powers="up")
    return {kind: (x / scale).to(DTYPES[form]), f"{kind}_scale": scale}
