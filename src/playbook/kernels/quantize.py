"""Quantisation to FP8 in one pass over a matrix: the codes and scales of it, and those of its transpose.

A product that sums over k needs k contiguous, and groups along k. So a layer's input x (n, m) is needed twice: as it
lies for y, and as xᵀ (m, n) for the weight gradient, which sums over rows. A program reads a tile of 128 × 128 and writes
both; PyTorch's operators would read x once for the largest numbers, once for the codes, and again for xᵀ. Scales are
those of `precision.scaling.scales_of`, codes those of `precision.scaling.quantize`, bit for bit.

Scales of tiles lie column by column, so that those of one step of k are contiguous.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook.kernels.jit import cdiv, kernel, tl
from playbook.kernels.rows import rows
from playbook.precision.casts import DTYPES
from playbook.precision.formats import Format, load_format
from playbook.precision.recipes import Groups, load_groups
from playbook.precision.scaling import Quantized, amax

#: Numbers along a row that share a scale, and rows and columns of a program's tile.
TILE = 128
#: Formats that kernels write.
FORMS = ("e4m3", "e5m2")


@kernel
def scale_of(largest, MAX: tl.constexpr, POWERS: tl.constexpr):
    """As `precision.scaling.scales_of`: largest/MAX, as a power of two the next larger one; 1 where all are 0."""
    scale = tl.div_rn(largest, tl.zeros_like(largest) + MAX)
    if POWERS:  # one more in the exponent, if the mantissa has any bit
        bits = scale.to(tl.int32, bitcast=True)
        exponent = (bits >> 23) + tl.where((bits & 0x7FFFFF) > 0, 1, 0)
        exponent = tl.minimum(tl.maximum(exponent, 1), 254)
        scale = tl.where(scale > 0.0, (exponent << 23).to(tl.float32, bitcast=True), 0.0)
    return tl.where(scale > 0.0, scale, 1.0)


@kernel
def codes_of(xs, scales, codes, MAX: tl.constexpr, KNOWN: tl.constexpr):
    """xs/scales in range, rounded as a division; what they are stored to rounds them again. Scales that are of xs leave
    them in range but for a rounding, which a GPU's casts to FP8 take back; ``KNOWN`` before, they do not.

    On a GPU a division takes some fifteen instructions. Here one takes the inverse of a group's scale, and each number
    two steps of Newton's, the last of which rounds as the division would (Markstein 1990, IBM J. Res. Dev. 34-1).
    """
    if codes.dtype.element_ty.primitive_bitwidth == 8:
        up = tl.where(scales < 5e-20, 1.8446744073709552e19, 1.0)  # 2⁶⁴: that no inverse is infinite
        by = scales * up
        inverse = tl.where(by == float("inf"), 0.0, tl.div_rn(tl.zeros_like(by) + 1.0, by))
        by = tl.where(by == float("inf"), 1.0, by)
        if KNOWN:
            xs = tl.clamp(xs, -MAX * scales, MAX * scales, propagate_nan=tl.PropagateNan.ALL)
        xs *= up
        found = xs * inverse
        found = tl.fma(tl.fma(found, -by, xs), inverse, found)
        found = tl.fma(tl.fma(found, -by, xs), inverse, found)
        sign = xs.to(tl.uint32, bitcast=True) & 0x80000000  # that of −0, which a sum with 0 loses
        return (found.to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    else:  # the interpreter, whose fma rounds twice
        return tl.clamp(tl.div_rn(xs, scales), -MAX, MAX, propagate_nan=tl.PropagateNan.ALL)


@kernel
def numbers_of(x, y, rows, columns, across, n, m, x_row, y_row, y_column):
    """What is quantised: rows of x, or the numbers that codes x with scales y stand for. Zeros beyond the edge."""
    inside = (rows[:, None] < n) & (columns[None, :] < m)
    at = rows.to(tl.int64)[:, None]
    xs = tl.load(x + at * x_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if y is not None:
        xs *= tl.load(y + rows * y_row + across * y_column, mask=rows < n, other=0.0)[:, None]
    return xs


@kernel
def store_rows(codes, numbers, rows, columns, n, m):
    """Into a matrix (n, m) that lies row by row."""
    at = codes + rows.to(tl.int64)[:, None] * m + columns[None, :]
    inside = (rows[:, None] < n) & (columns[None, :] < m)
    tl.store(at, numbers.to(codes.dtype.element_ty), mask=inside)


@kernel
def store_turned(turned, even, odd, pairs, columns, n, half, m, PAIRS: tl.constexpr):
    """Numbers of the rows 2·``pairs``, and of the rows after them, into the transposed matrix (m, n). Two codes
    make one number of 16 bits, so that half as many change places; Triton 3.6 packs single ones with registers that it
    never sets, of which ptxas 12.8 has made wrong codes on an H200."""
    form: tl.constexpr = turned.dtype.element_ty
    across = columns.to(tl.int64)[:, None]
    inside = (columns[:, None] < m) & (pairs[None, :] < half)
    if PAIRS:
        cast: tl.constexpr = (
            "cvt.rn.satfinite." + ("e4m3" if form == tl.float8e4nv else "e5m2") + "x2.f32 $0, $2, $1;"
        )
        both = tl.inline_asm_elementwise(cast, "=h,f,f", [even, odd], dtype=tl.uint16, is_pure=True, pack=1)
        at = turned.to(tl.pointer_type(tl.uint16)) + across * half + pairs[None, :]
        tl.store(at, both.T, mask=inside)
    else:
        at = turned + across * n + 2 * pairs[None, :]
        tl.store(at, transposed(even, form), mask=inside)
        tl.store(at + 1, transposed(odd, form), mask=inside & (2 * pairs[None, :] + 1 < n))


@kernel
def transposed(numbers, form: tl.constexpr):
    """Of numbers in range the transposed codes, which on the way take two bytes each (`store_turned`)."""
    if form.primitive_bitwidth == 8:
        wide = numbers.to(form).to(tl.uint8, bitcast=True).to(tl.uint16)
        return wide.T.to(tl.uint8).to(form, bitcast=True)
    else:  # in the interpreter
        return numbers.T


@kernel
def quantize_kernel(
    x, y, codes, scales, turned, turned_scales, n, half, m, x_row, y_row, y_column,
    GROUPS: tl.constexpr, MAX: tl.constexpr, POWERS: tl.constexpr, PAIRS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    across = tl.program_id(0)  # neighbours read the same rows
    down = tl.program_id(1)
    pairs, columns = down * (TILE // 2) + tl.arange(0, TILE // 2), across * TILE + tl.arange(0, TILE)
    rows = 2 * pairs
    even = numbers_of(x, y, rows, columns, across, n, m, x_row, y_row, y_column)  # (TILE / 2, TILE)
    odd = numbers_of(x, y, rows + 1, columns, across, n, m, x_row, y_row, y_column)
    if GROUPS == "tile" or GROUPS == "row":  # those of rows are known before
        if codes is not None:
            at = scales + across.to(tl.int64) * n + rows
            if GROUPS == "row":
                own = tl.load(scales + rows, mask=rows < n, other=1.0)
                next_own = tl.load(scales + rows + 1, mask=rows + 1 < n, other=1.0)
            else:
                own = scale_of(tl.max(tl.abs(even), 1), MAX, POWERS)
                next_own = scale_of(tl.max(tl.abs(odd), 1), MAX, POWERS)
                tl.store(at, own, mask=rows < n)
                tl.store(at + 1, next_own, mask=rows + 1 < n)
            store_rows(codes, codes_of(even, own[:, None], codes, MAX, GROUPS == "row"), rows, columns, n, m)
            store_rows(
                codes, codes_of(odd, next_own[:, None], codes, MAX, GROUPS == "row"), rows + 1, columns, n, m
            )
        if turned is not None:
            if GROUPS == "row":
                own = tl.load(turned_scales + columns, mask=columns < m, other=1.0)
            else:
                own = scale_of(tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 0), MAX, POWERS)
                tl.store(turned_scales + down.to(tl.int64) * m + columns, own, mask=columns < m)
            even = codes_of(even, own[None, :], turned, MAX, GROUPS == "row")
            odd = codes_of(odd, own[None, :], turned, MAX, GROUPS == "row")
            store_turned(turned, even, odd, pairs, columns, n, half, m, PAIRS)
    else:
        if GROUPS == "block":
            scale = scale_of(tl.max(tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 1), 0), MAX, POWERS)
            tl.store(scales + across + down * tl.num_programs(0), scale)
        else:  # known before
            scale = tl.load(scales)
        some = codes if codes is not None else turned
        even, odd = (
            codes_of(even, scale, some, MAX, GROUPS == "tensor"),
            codes_of(odd, scale, some, MAX, GROUPS == "tensor"),
        )
        if codes is not None:
            store_rows(codes, even, rows, columns, n, m)
            store_rows(codes, odd, rows + 1, columns, n, m)
        if turned is not None:
            store_turned(turned, even, odd, pairs, columns, n, half, m, PAIRS)


@kernel
def scales_kernel(largest, scales, count, MAX: tl.constexpr, POWERS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(largest + at, mask=at < count, other=0.0)
    tl.store(scales + at, scale_of(found, MAX, POWERS), mask=at < count)


@kernel
def largest_kernel(x, y, largest, n, m, x_row, y_row, y_column, TILE: tl.constexpr):
    """The largest magnitude of each column of a tile, of the numbers that codes x with scales y stand for."""
    rows = tl.program_id(1) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    found = numbers_of(x, y, rows, columns, 0, n, m, x_row, y_row, y_column)
    at = largest + tl.program_id(1).to(tl.int64) * m + columns
    tl.store(at, tl.max(tl.abs(found), 0), mask=columns < m)


class _Copies:
    """Memory for codes and scales of a matrix (n, m), which is ``x`` or computed from it, and of its transpose."""

    def __init__(
        self, x: Tensor, form: str | Format, groups: Groups, straight: bool = True, turned: bool = True
    ) -> None:
        self.x, self.form, self.groups = rows(x), load_format(form), groups
        if self.form.name not in FORMS:
            raise ConfigError(f"form is {self.form.name!r}, but kernels quantise to {' or '.join(FORMS)}")
        (self.n, self.m), device = self.x.shape, x.device
        self.grid = across, down = cdiv(self.m, TILE), cdiv(self.n, TILE)
        kind = DTYPES[self.form.name]
        self.codes = torch.empty(self.n, self.m, dtype=kind, device=device) if straight else None
        self.turned = torch.empty(self.m, self.n, dtype=kind, device=device) if turned else None
        tiles = groups.name == "tile"
        self.scales = torch.empty((across, self.n) if tiles else (down, across), device=device)
        self.turned_scales = torch.empty(down, self.m, device=device) if tiles else self.scales

    def launch(self, y: Tensor | None = None, along: tuple[int, int] = (0, 0)) -> None:
        """Write what there is memory for, of x or of what codes x with scales y, ``along`` both axes, stand for."""
        if self.n * self.m:
            # Measured on an H200: two small programs on a multiprocessor, of which one loads while the other computes,
            # are up to twice as fast as a large one.
            alone = self.groups.name == "tile" and y is None
            options = {"num_warps": 4 if alone else 8} | ({"maxnreg": 128} if y is not None else {})
            pairs = self.x.device.type != "cpu" and self.n % 2 == 0
            quantize_kernel[self.grid](
                self.x, y, self.codes, self.scales, self.turned, self.turned_scales, self.n, cdiv(self.n, 2), self.m,
                self.x.stride(0), *along, GROUPS=self.groups.name, **self.options, PAIRS=pairs, TILE=TILE, **options,
            )  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        return {"MAX": self.form.max, "POWERS": self.groups.powers == "up"}

    def quantized(self, turned: bool = False) -> Quantized:
        """What was written."""
        codes = self.turned if turned else self.codes
        assert codes is not None
        if self.groups.name == "tile":
            return Quantized(
                codes, (self.turned_scales if turned else self.scales).t(), (1, TILE), self.x.dtype
            )
        size = self.groups.size(codes.shape)
        if self.groups.name == "row":
            return Quantized(codes, self.turned_scales if turned else self.scales, size, self.x.dtype)
        return Quantized(codes, self.scales.t() if turned else self.scales, size, self.x.dtype)


def _among(groups: str | Groups, *names: str) -> Groups:
    """Raises ConfigError for groups of another name, or whose powers of two are rounded down."""
    found = load_groups(groups)
    if found.name not in names or found.powers == "down":
        raise ConfigError(f"groups are {found.name!r}, but these kernels have {' and '.join(names)}")
    return found


def _quantized(
    x: Tensor,
    form: str | Format,
    groups: str | Groups,
    straight: bool,
    turned: bool,
    scales: Tensor | None = None,
) -> _Copies:
    copies = _Copies(x, form, _among(groups, "tile", "block", "tensor", "row"), straight, turned)
    if copies.groups.name == "tensor":
        copies.scales = copies.turned_scales = _of_all(copies.x, copies, scales)
    elif copies.groups.name == "row":
        if straight:
            copies.scales = _of_all(copies.x, copies, scales)
        if turned:
            copies.turned_scales = _of_all(copies.x.t(), copies, scales)
    copies.launch()
    return copies


def _of_all(x: Tensor, copies: _Copies, known: Tensor | None) -> Tensor:
    """The one scale of x, or those of its rows: unless they are known they take a pass of their own."""
    if known is not None:
        return known.contiguous()
    largest = amax(x, copies.groups.size(x.shape)) if x.numel() else x.new_zeros(1, 1).float()
    return scales_by_kernel(largest, copies.form, copies.groups.powers)


def scales_by_kernel(largest: Tensor, form: Format, powers: str = "") -> Tensor:
    """`precision.scaling.scales_of` in one launch, powers of two being rounded up."""
    largest = largest.contiguous()
    scales, count, block = torch.empty_like(largest), largest.numel(), 1024
    if count:
        scales_kernel[(cdiv(count, block),)](
            largest, scales, count, MAX=form.max, POWERS=powers == "up", BLOCK=block
        )
    return scales


def quantize(x: Tensor, form: str | Format, groups: str | Groups, scales: Tensor | None = None) -> Quantized:
    """x (n, m) as `precision.scaling.quantize`; of a transposed matrix the codes lie along its rows, too. ``scales`` may
    be known where they hold for all columns: (1, 1) of the tensor, or (n, 1) of its rows."""
    straight = x.stride(1) == 1 or x.shape[1] == 1
    return _quantized(x if straight else x.t(), form, groups, straight, not straight, scales).quantized(
        turned=not straight
    )


def requantize_columns(x: Quantized, form: str | Format, groups: str | Groups = "tile") -> Quantized:
    """Of x (n, m) in tiles or rows, xᵀ (m, n) in them: what the codes stand for is in registers alone."""
    copies = _Copies(x.codes, form, _among(groups, "tile", "row"), straight=False)
    along = (x.scales.stride(0), x.scales.stride(1) if copies.groups.columns else 0)
    if not copies.groups.columns and x.codes.numel():
        n, m = x.codes.shape
        parts = torch.empty(cdiv(n, TILE), m, device=x.codes.device)
        largest_kernel[(cdiv(m, TILE), len(parts))](
            copies.x, x.scales, parts, n, m, copies.x.stride(0), *along, TILE=TILE, num_warps=8
        )
        copies.turned_scales = scales_by_kernel(parts.amax(0)[:, None], copies.form, copies.groups.powers)
    copies.launch(x.scales, along)
    return replace(copies.quantized(turned=True), dtype=x.dtype)


@kernel
def turn_kernel(codes, turned, n, half, m, codes_row, TILE: tl.constexpr):
    pairs = tl.program_id(1) * (TILE // 2) + tl.arange(0, TILE // 2)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    at = codes + 2 * pairs.to(tl.int64)[:, None] * codes_row + columns[None, :]
    inside = (pairs[:, None] < half) & (columns[None, :] < m)
    low = tl.load(at, mask=inside, other=0).to(tl.uint16)
    high = tl.load(at + codes_row, mask=inside, other=0).to(tl.uint16)
    to = turned + columns.to(tl.int64)[:, None] * half + pairs[None, :]
    tl.store(to, (low | (high << 8)).T, mask=(columns[:, None] < m) & (pairs[None, :] < half))


def turn(codes: Tensor) -> Tensor:
    """The transpose (m, n) of codes (n, m), row by row: as ``codes.t().contiguous()``, two rows at a time."""
    (n, m), codes = codes.shape, rows(codes)
    if n % 2 or not codes.numel():
        return codes.t().contiguous()
    found = torch.empty(m, n, dtype=codes.dtype, device=codes.device)
    turn_kernel[(cdiv(m, TILE), cdiv(n, TILE))](
        codes.view(torch.uint8),
        found.view(torch.uint16),
        n,
        n // 2,
        m,
        codes.stride(0),
        TILE=TILE,
        num_warps=8,
    )
    return found


def quantize_both(
    x: Tensor, form: str | Format = "e4m3", groups: str | Groups = "tile", scales: Tensor | None = None
) -> tuple[Quantized, Quantized]:
    """x (…, m) as a matrix (n, m), and xᵀ (m, n), in groups "tile" (1 × 128), "block" (128 × 128), or "tensor" or "row",
    whose largest numbers take a pass before this one; ``scales`` (1, 1) may be known.

    Raises ConfigError for other groups and formats.
    """
    copies = _quantized(x, form, groups, straight=True, turned=True, scales=scales)
    return copies.quantized(), copies.quantized(turned=True)


def bytes_quantize(n: int, m: int, c: int, groups: str = "tile", copies: int = 2) -> int:
    """Bytes of a matrix (n, m) of numbers of c bytes: read once, codes written for each of one or two ``copies``, and
    scales: with "tensor" the one that is read."""
    across, down = cdiv(m, TILE), cdiv(n, TILE)
    scales = n * across + (m * down if copies == 2 else 0) if groups == "tile" else across * down
    return n * m * (c + copies) + 4 * (1 if groups == "tensor" else scales)
