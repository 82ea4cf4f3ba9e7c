"""Tensors in four bits: E2M1 numbers, two in a byte, scales of their blocks, rounding at random, Hadamard's matrix.

A block of numbers shares a scale s_b in 8 bits, a tensor one scale s in fp32: x is about s · s_b · E2M1. In nvfp4 (NVIDIA
2025, arXiv 2509.25149, appendix B.1) s maps the tensor's largest magnitude to 6 · 448, what E2M1 and E4M3 can say
together, and s_b is the block's largest over 6 s, rounded to E4M3. In mxfp4 (OCP Microscaling formats specification 1.0)
s_b is a power of two, and there is no s.

Where rounding is random, its noise is a hash of where a number stands: in which step, sample, position, layer and column
(`Noise`). No state is drawn from, so that the same number is rounded alike on whatever rank it is, and once more when it
is computed again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from playbook.precision.formats import FORMATS
from playbook.precision.four_bits import FP4Recipe
from playbook.precision.recipes import Groups
from playbook.precision.scaling import scales_of
from playbook.seeding import derive_seed

_E2M1, _E4M3 = FORMATS["e2m1"], FORMATS["e4m3"]
#: The largest magnitude of a tensor over its scale.
LARGEST = _E2M1.max * _E4M3.max
#: What each code stands for: the sign is its fourth bit.
VALUES = torch.tensor([_E2M1.decode(code) for code in range(16)])


@dataclass(frozen=True)
class FourBits:
    """A matrix (n, m) as ``codes`` (n, m/2), two numbers of a row in a byte, the first in its low bits.

    ``scales`` are those of blocks of ``size``, in E4M3 or E8M0, ``whole`` is the tensor's, a scalar in fp32, or None.
    """

    codes: Tensor
    scales: Tensor
    whole: Tensor | None
    size: tuple[int, int]

    @property
    def shape(self) -> torch.Size:
        n, half = self.codes.shape
        return torch.Size((n, 2 * half))

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers, (n, m)."""
        numbers = _pairs(self.codes.device).index_select(0, self.codes.flatten().int()).view(self.shape)
        scales = self.scales.float() if self.whole is None else self.whole * self.scales.float()
        return (_blocks(numbers, self.size) * scales[:, None, :, None]).view(self.shape).to(dtype)


def _blocks(x: Tensor, size: tuple[int, int]) -> Tensor:
    """x (n, m) with its blocks in dims 1 and 3."""
    return x.reshape(x.shape[0] // size[0], size[0], x.shape[1] // size[1], size[1])


@cache
def _pairs(device: torch.device) -> Tensor:
    """What the two numbers of each byte stand for, (256, 2)."""
    return torch.stack([VALUES.repeat(16), VALUES.repeat_interleave(16)], 1).to(device)


def quantize_fp4(
    x: Tensor,
    groups: Groups,
    size: tuple[int, int],
    largest: Tensor | None = None,
    noise: Tensor | None = None,
) -> FourBits:
    """x (n, m) in whole blocks of ``size`` whose scales are as ``groups`` says.

    ``largest`` is the magnitude that its one scale is of, by default that of x; with ``noise`` (n, m) from [0, 1) numbers
    are rounded up with the probability of the rest, else to the nearest, of two to the even one.
    """
    blocks = _blocks(x.float(), size)
    of_blocks = blocks.abs().amax((1, 3))
    if groups.scale == "e8m0":
        scales = scales_of(of_blocks, _E2M1, powers=groups.powers)
        kept, whole = torch.where(of_blocks.isnan(), of_blocks, scales).to(torch.float8_e8m0fnu), None
        each = 1 / kept.float()
    else:
        largest = of_blocks.amax() if largest is None else largest
        whole = torch.where(largest > 0, largest / LARGEST, 1.0)
        kept = (of_blocks / _E2M1.max / whole).clamp(_E4M3.min_normal, _E4M3.max).to(torch.float8_e4m3fn)
        each = 1 / whole / kept.float()
    codes = _rounded((blocks * each[:, None, :, None]).view(x.shape), noise)
    return FourBits(codes[:, 0::2] | codes[:, 1::2] << 4, kept, whole, size)


def _rounded(x: Tensor, noise: Tensor | None) -> Tensor:
    """Codes of numbers, uint8: those beyond ±6 become ±6. NaN has no code, and is seen in the scale."""
    size = x.abs().clamp(max=_E2M1.max)
    # Neighbours are 1/2 apart up to 2, then 1 up to 4, then 2: three lines, of which the lowest is the code.
    lines = torch.minimum(torch.minimum(2 * size, size + 2), size / 2 + 4)
    whole = lines.round() if noise is None else (lines + noise).floor_().clamp_(max=7)
    return torch.where(x < 0, whole + 8, whole).nan_to_num(7).to(torch.uint8)


def hadamard(x: Tensor, width: int) -> Tensor:
    """Each ``width`` neighbouring rows of x (n, m), n a multiple, times a random Hadamard matrix: an orthogonal one, so
    that what two factors are multiplied by cancels in their product.

    Signs are random, but always the same; sums are those of a fast Walsh–Hadamard transform, in one order.
    """
    n, m = x.shape
    x = x.float().reshape(-1, width, m) * _signs(width, x.device)
    step = 1
    while step < width:
        a, b = x.view(n // (2 * step), 2, step, m).unbind(1)
        x = torch.stack([a + b, a - b], 1)
        step *= 2
    return x.view(n, m)


@cache
def _signs(width: int, device: torch.device) -> Tensor:
    """Random signs over √width, (width, 1)."""
    generator = torch.Generator().manual_seed(derive_seed(0, f"signs of Hadamard's matrix of {width}"))
    signs = 1.0 - 2.0 * torch.randint(2, (width, 1), generator=generator)
    return (signs / math.sqrt(width)).to(device)


def by_rows(
    x: Tensor, recipe: FP4Recipe, largest: Tensor | None = None, noise: Tensor | None = None
) -> FourBits:
    """x (n, m) in blocks along its rows: for products that sum over m."""
    return quantize_fp4(x, recipe.groups, (1, recipe.block), largest, noise)


def by_columns(
    x: Tensor, recipe: FP4Recipe, largest: Tensor | None = None, noise: Tensor | None = None
) -> FourBits:
    """x (n, m) in blocks down its columns, for products that sum over n; what `turned` has made of it."""
    return quantize_fp4(x, recipe.groups, (recipe.block, 1), largest, noise)


def turned(x: Tensor, recipe: FP4Recipe) -> Tensor:
    """x (n, m) as a weight's gradient reads it: times Hadamard's matrix, if the recipe has one. A last block of rows
    that is not whole is filled up with zeros."""
    if rest := -len(x) % recipe.block:
        x = torch.cat([x, x.new_zeros(rest, x.shape[1])])
    return hadamard(x, recipe.block) if recipe.hadamard else x


# ---- noise


def mixed(x: Tensor) -> Tensor:
    """32 bits whose every bit depends on every bit of x (int32): xor, shift, multiply (the constants of C. Wellons' hash
    prospector, 2018). Products wrap around; a shift brings copies of the sign, which are masked."""
    x = (x ^ ((x >> 16) & 0xFFFF)).mul_(0x7FEB352D)
    x = x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(0x846CA68B))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def _signed(bits: int) -> int:
    """32 bits as an int32 reads them."""
    return bits - (bits >> 31 << 32)


@dataclass(frozen=True)
class Noise:
    """Random numbers for the rows (n,) of a matrix by their ``keys`` (int32): the same whoever asks for them."""

    keys: Tensor

    @classmethod
    def of(cls, seed: int, purpose: str, *coordinates: Tensor) -> Noise:
        """Keys from whole numbers that tell rows apart, each (n,)."""
        keys = torch.full_like(coordinates[0], _signed(derive_seed(seed, purpose)), dtype=torch.int32)
        for numbers in coordinates:
            keys = mixed(keys + numbers.int() * _signed(0x9E3779B1))
        return cls(keys)

    def uniform(self, columns: int, first: int = 0) -> Tensor:
        """(n, columns) from [0, 1), of the columns from ``first`` on."""
        at = torch.arange(first + 1, first + 1 + columns, device=self.keys.device, dtype=torch.int32)
        return (mixed(self.keys[:, None] ^ mixed(at)) >> 8).bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)
