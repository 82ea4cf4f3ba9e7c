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

import torch
from torch import Tensor

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.precision.casts import DTYPES, round_to
from playbook.precision.formats import Format, load_format


@dataclass(frozen=True)
class Groups:
    """Which numbers of a matrix share a scale: ``rows`` × ``columns`` neighbours, None being all that there are.

    ``powers``: scales are powers of two.
    """

    name: str
    rows: int | None
    columns: int | None
    powers: bool = False

    def size(self, shape: torch.Size) -> tuple[int, int]:
        """Rows and columns of a group in a matrix of this ``shape``."""
        return self.rows or shape[0], self.columns or shape[1]


#: Ways to share scales by name.
GROUPS = {
    one.name: one
    for one in (
        Groups("tensor", None, None),
        Groups("row", 1, None),
        Groups("tile", 1, 128),
        Groups("block", 128, 128),
        Groups("mx", 1, 32, powers=True),
        Groups("nvfp4", 1, 16),
    )
}


def load_groups(name: str | Groups) -> Groups:
    """The groups of that name; raises ConfigError for an unknown one."""
    if isinstance(name, Groups):
        return name
    if name not in GROUPS:
        raise ConfigError(unknown("groups", str(name), GROUPS))
    return GROUPS[name]


@dataclass(frozen=True)
class Quantized:
    """A matrix (n, m) as ``codes`` (n, m), numbers of a format, and ``scales``, one for each group of ``size``.

    Codes are in PyTorch's dtype of the format or, where it has none, in fp32.
    """

    codes: Tensor
    scales: Tensor
    size: tuple[int, int]

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Codes times their scales: (n, m)."""
        return (self.codes.float() * self.spread()).to(dtype)

    def spread(self) -> Tensor:
        """The scale of each number, (n, m)."""
        return spread(self.scales, self.size, self.codes.shape)


def spread(scales: Tensor, size: tuple[int, int], shape: torch.Size) -> Tensor:
    """Each scale as often as its group has numbers: (n, m). Groups at the edges may have fewer than ``size``."""
    (rows, columns), (n, m) = size, shape
    return scales.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :m]


def amax(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The largest magnitude of each group of a matrix (n, m): (⌈n/rows⌉, ⌈m/columns⌉) in fp32."""
    (rows, columns), (n, m) = size, x.shape
    if n % rows == 0 and m % columns == 0:
        return x.abs().view(n // rows, rows, m // columns, columns).amax((1, 3)).float()
    padded = x.new_zeros(-(-n // rows) * rows, -(-m // columns) * columns)
    padded[:n, :m] = x
    return amax(padded, size)


def scales_of(largest: Tensor, form: Format, *, powers: bool = False) -> Tensor:
    """Scales with which numbers up to ``largest`` are in the range of ``form``; 1 where all are 0.

    As powers of two, 2^(⌊log2 amax⌋ − emax) as the OCP says: a number may then be a little too large, and is cut to the
    largest code.
    """
    if powers:
        # frexp: amax = f · 2^e with f in [1/2, 1)
        exponent = torch.frexp(largest).exponent - torch.frexp(torch.tensor(form.max)).exponent
        scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(-126, 127))
    else:
        scale = largest / form.max
    return torch.where((largest > 0) & (scale > 0), scale, torch.ones_like(scale))


def quantize(
    x: Tensor, form: str | Format, groups: str | Groups = "tensor", *, scales: Tensor | None = None
) -> Quantized:
    """x (n, m) in ``form``, with scales of its own or those given (as delayed scaling does)."""
    form, groups = load_format(form), load_groups(groups)
    size = groups.size(x.shape)
    if scales is None:
        scales = scales_of(amax(x, size), form, powers=groups.powers)
    scaled = x.float() / spread(scales, size, x.shape)
    if form.name in DTYPES:
        return Quantized(scaled.clamp(-form.max, form.max).to(DTYPES[form.name]), scales, size)
    return Quantized(round_to(scaled, form), scales, size)
