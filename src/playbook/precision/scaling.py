"""Numbers of few bits and the scales that bring them into range: per tensor, per row, per tile, per block.

A group of numbers shares one scale s. Stored are s and x/s, rounded to the format; x is about s·round(x/s). With s =
amax/max, amax being the largest magnitude of the group and max that of the format, the largest number becomes the largest
code. The finer the groups, the less one large number costs the others: what is smaller than amax by more than the
format's range becomes 0.

Scales are fp32 (Micikevicius et al. 2022, arXiv 2209.05433, section 3.2; tiles of 1 × 128 and blocks of 128 × 128 as in
DeepSeek-V3, arXiv 2412.19437, section 3.3.2) or, in microscaling formats, powers of two in E8M0 (OCP Microscaling formats
specification 1.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from playbook.precision.casts import DTYPES, round_to
from playbook.precision.formats import Format, load_format
from playbook.precision.recipes import GROUPS, Groups, load_groups
from playbook.registry import lab

__all__ = ["GROUPS", "Quantized", "amax", "load_groups", "quantize", "quantize_torch", "scales_of", "spread"]

#: The first GPUs with FP8 tensor cores.
CAPABILITY = (8, 9)
#: What scales are kept in, by format.
_KEPT = {"fp32": torch.float32, "e8m0": torch.float8_e8m0fnu}


@dataclass(frozen=True)
class Quantized:
    """A matrix (n, m) as ``codes`` (n, m), numbers of a format, and ``scales``, one for each group of ``size``.

    Codes are in PyTorch's dtype of the format or, where it has none, in fp32. ``dtype`` is what was quantised.
    """

    codes: Tensor
    scales: Tensor
    size: tuple[int, int]
    dtype: torch.dtype = torch.float32

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Codes times their scales: (n, m)."""
        scales = self.scales.float()
        if scales.shape[1] > 1 or len(scales) not in (1, len(self.codes)):  # else they spread by themselves
            scales = self.spread()
        return (self.codes.float() * scales).to(dtype)

    def spread(self) -> Tensor:
        """The scale of each number, (n, m)."""
        return spread(self.scales, self.size, self.codes.shape)

    def t(self) -> Quantized:
        """The transpose (m, n), a view."""
        return Quantized(self.codes.t(), self.scales.t(), self.size[::-1], self.dtype)


def spread(scales: Tensor, size: tuple[int, int], shape: torch.Size) -> Tensor:
    """Each scale as often as its group has numbers: (n, m). Groups at the edges may have fewer than ``size``."""
    (rows, columns), (n, m) = size, shape
    return scales.float().repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :m]


def amax(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest magnitude of each group of a matrix (n, m): (⌈n/rows⌉, ⌈m/columns⌉) in fp32."""
    (rows, columns), (n, m) = (max(1, size[0]), max(1, size[1])), x.shape  # no rows, where an expert has none
    if x.numel() and columns >= m and (rows == 1 or rows >= n):  # in one pass
        within = 1 if rows == 1 else (0, 1)
        return torch.linalg.vector_norm(x, float("inf"), dim=within, keepdim=True, dtype=torch.float32)
    if n % rows == 0 and m % columns == 0:
        return x.abs().reshape(n // rows, rows, m // columns, columns).amax((1, 3)).float()
    padded = x.new_zeros(-(-n // rows) * rows, -(-m // columns) * columns)
    padded[:n, :m] = x
    return amax(padded, (rows, columns))


def scales_of(largest: Tensor, form: Format, *, powers: str = "") -> Tensor:
    """Scales with which numbers up to ``largest`` are in the range of ``form``; 1 where all are 0.

    Where the largest is infinite, so is the largest code times its scale: an overflow stays one.

    As powers of two they are rounded "up", or "down" to 2^(⌊log2 amax⌋ − emax) as the OCP says: a number may then be a
    little too large, and is cut to the largest code.
    """
    scale = largest / form.max
    if powers:
        # frexp: a number is f · 2^e with f in [1/2, 1)
        if powers == "down":
            exponent = torch.frexp(largest).exponent - torch.frexp(torch.tensor(form.max)).exponent
        else:
            fraction, exponent = torch.frexp(scale)
            exponent = exponent - (fraction == 0.5).int()
        exponent = exponent.masked_fill(largest.isinf(), 127)
        scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(-126, 127))
    return torch.where((largest > 0) & (scale > 0), scale, torch.ones_like(scale))


def on_fp8_gpu(x: Tensor) -> bool:
    """Whether x has numbers, on a GPU that the book's kernels for FP8 are for."""
    return x.is_cuda and x.numel() > 0 and capability(x.device) >= CAPABILITY


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; asking PyTorch takes as long as some kernels."""
    return torch.cuda.get_device_capability(device)


def has_kernel(form: Format, groups: Groups) -> bool:
    """Whether the book's kernel does it."""
    known = groups.columns is None or (groups.columns == 128 and groups.rows in (1, 128))
    return form.name in ("e4m3", "e5m2") and known and groups.scale == "fp32"


def quantize(
    x: Tensor, form: str | Format, groups: str | Groups = "tensor", *, scales: Tensor | None = None
) -> Quantized:
    """x (n, m) in ``form``, with scales of its own or those given (as delayed scaling does).

    On a GPU the book's kernels do it, tiles and blocks in one pass, others in two: the same codes and scales.
    """
    form, groups = load_format(form), load_groups(groups)
    if on_fp8_gpu(x) and (groups.columns is None or scales is None) and has_kernel(form, groups):
        return lab("fp8", "quantize")(x, form, groups, scales)
    return quantize_torch(x, form, groups, scales=scales)


def quantize_torch(
    x: Tensor, form: str | Format, groups: str | Groups = "tensor", *, scales: Tensor | None = None
) -> Quantized:
    """`quantize` by PyTorch's operators, wherever x is: the twin of the book's kernel."""
    form, groups = load_format(form), load_groups(groups)
    size = groups.size(x.shape)
    if scales is None:
        scales = scales_of(amax(x, size), form, powers=groups.powers)
    each = scales if scales.numel() == 1 or size == (1, x.shape[1]) else spread(scales, size, x.shape)
    scaled = x.float() / each
    kept = scales.to(_KEPT[groups.scale])
    if form.name in DTYPES:
        return Quantized(scaled.clamp(-form.max, form.max).to(DTYPES[form.name]), kept, size, x.dtype)
    return Quantized(round_to(scaled, form), kept, size, x.dtype)
