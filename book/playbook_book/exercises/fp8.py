"""Exercises of the chapter on FP8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor

    from playbook.precision.scaling import Quantized


@number(
    "fp8.kept",
    "bytes that a layer of Llama 3 8B keeps of its input in FP8",
    praise="three per cent for the scales, and just over half of bf16",
    otherwise="Count the codes, then the scales.",
    tolerance=1e-5,
)
def kept() -> tuple[float, dict[float, str]]:
    from playbook.shapes import load

    numbers = 8192 * load("llama3-8b").ffn_dim
    right = numbers + 4 * numbers // 128
    return right, {
        numbers: "almost: those are the codes, and nobody can read them without their scales",
        2 * numbers: "that is what it keeps in bf16",
        2 * right: "twice the right number: a code has eight bits",
        numbers + numbers // 128: "almost: these scales are numbers of fp32",
        numbers + 2 * numbers // 128: "almost: these scales are numbers of fp32",
        numbers + numbers // 4096: "almost: that is a scale for each block of 128 × 128, as weights have",
        numbers + 4 * numbers // 32: "that is a scale of four bytes for every 32 numbers",
        numbers + 4 * 8192: "that is one scale for each row",
    }


@exercise("fp8.tiles", "function", "numbers in E4M3 with a scale for each tile")
def tiles(write: Callable[..., Any]) -> str:
    import torch

    from playbook.precision.scaling import quantize

    for name, x in _tensors().items():
        found = write(x.clone())
        if not isinstance(found, tuple) or len(found) != 2:
            raise NotYet("return two tensors: the codes and the scales")
        codes, scales = found
        right = quantize(x, "e4m3", "tile")
        if codes.dtype != torch.float8_e4m3fn or codes.shape != x.shape:
            raise NotYet(
                f"codes must be float8_e4m3fn of shape {tuple(x.shape)}, not {codes.dtype} of {tuple(codes.shape)}"
            )
        if scales.shape != right.scales.shape:
            raise NotYet(
                f"{name}: scales have shape {tuple(scales.shape)}, and should have {tuple(right.scales.shape)}"
            )
        if not bool(torch.isfinite(codes.float()).all()):
            raise NotYet(f"{name}: some codes are no numbers")
        back = codes.float() * scales.float().repeat_interleave(128, 1)
        _compare(back, right.dequantized(), x, name)
    return "each tile has the scale of its largest number, and a tile of zeros keeps them"


def _compare(back: Tensor, right: Tensor, x: Tensor, name: str) -> None:
    norm = float(x.norm()) or 1.0
    off, best = float((back - x).norm()) / norm, float((right - x).norm()) / norm
    if not off <= 1.3 * best + 1e-6:
        gone = float(((back == 0) & (x != 0)).float().mean())
        why = f", and {gone:.0%} of the numbers became 0" if gone > 0.01 else ""
        raise NotYet(
            f"{name}: codes times scales are off by {off:.1%} of the norm of x, where {best:.1%} is possible{why}"
        )


def _tensors() -> dict[str, Tensor]:
    import torch

    made = torch.Generator().manual_seed(0)
    plain = torch.randn(4, 384, generator=made)
    outlier = plain.clone()
    outlier[1, 200] = 1e6
    zeros = plain.clone()
    zeros[2, :128] = 0
    return {
        "random numbers": plain,
        "tiles of different sizes": plain * torch.tensor([1e-6, 1.0, 1e4]).repeat_interleave(128),
        "one outlier": outlier,
        "a tile of zeros": zeros,
    }


def _tiles(x: Tensor, *, width=128, of_zeros=1.0) -> tuple[Tensor, Tensor]:
    import torch

    groups = x.view(len(x), -1, width)
    scales = groups.abs().amax(-1, keepdim=True) / 448
    scales = scales.masked_fill(scales == 0, of_zeros)
    return (groups / scales).view_as(x).to(torch.float8_e4m3fn), scales.squeeze(-1)


def _one_scale(x: Tensor, *, repeated=False) -> tuple[Tensor, Tensor]:
    codes, scale = _tiles(x.view(1, -1), width=x.numel())
    return codes.view_as(x), scale.expand(4, 3) if repeated else scale


def _codes_in_fp32(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = _tiles(x)
    return codes.float(), scales


answers(
    "fp8.tiles",
    right=[_tiles],
    wrong={
        "a tile of zeros: some codes are no numbers": partial(_tiles, of_zeros=0.0),
        "random numbers: codes times scales are off by": lambda x: (_tiles(x)[0], 1 / _tiles(x)[1]),
        "scales have shape (1, 1), and should have (4, 3)": _one_scale,
        "one outlier: codes times scales are off by": partial(_one_scale, repeated=True),
        "return two tensors": lambda x: _tiles(x)[0],
        "codes must be float8_e4m3fn": _codes_in_fp32,
    },
)


@exercise("fp8.transposed", "repair", "transposed scales that are right for square blocks")
def transposed(mended: Callable[..., Any]) -> str:
    import torch

    from playbook.precision.scaling import quantize

    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    x *= torch.logspace(-3, 3, 256)[:, None]  # tokens differ
    passed = ""
    for groups, name in (("block", "blocks of 128 × 128"), ("tile", "tiles of 1 × 128")):
        given = quantize(x, "e4m3", groups)
        got: Quantized = mended(given)
        if got.codes.shape != (384, 256):
            raise NotYet(f"{name}: the codes have shape {tuple(got.codes.shape)}, and should have (384, 256)")
        if got.codes.dtype != torch.float8_e4m3fn:
            raise NotYet(f"{name}: the codes are {got.codes.dtype}, so they are no longer in FP8")
        if got.size != given.size:
            rows, columns = got.size
            raise NotYet(
                f"{passed}{name}: groups of the transpose have {rows} × {columns} numbers. Each row of xᵀ is summed over "
                "tokens, so its scales must hold for 128 tokens"
            )
        shape = (-(-384 // got.size[0]), -(-256 // got.size[1]))
        if got.scales.shape != shape:
            raise NotYet(
                f"{passed}{name}: scales have shape {tuple(got.scales.shape)}, and should have {shape}"
            )
        off = float(
            (
                (got.dequantized() - given.dequantized().t()).abs() / given.dequantized().t().abs().amax(0)
            ).max()
        )
        norm = float((got.dequantized() - given.dequantized().t()).norm() / given.dequantized().norm())
        if not norm < 0.05:
            raise NotYet(f"{passed}{name}: what it stands for is off by {norm:.1%} of its norm")
        if groups == "block" and off > 0:
            raise NotYet(
                f"{name}: a square block is the same in the transpose, so nothing needs to be rounded again"
            )
        passed = f"right for {name}; for "
    return "square blocks turn with their matrix; tiles have to be made again, along the tokens"


def _transposed(q: Quantized, *, groups="", times=1.0) -> Quantized:
    from playbook.precision.scaling import quantize

    square = q.size[0] == q.size[1]
    if square and times == 1 and not groups:
        return q.t()
    return quantize(q.dequantized().t() * times, "e4m3", groups or ("block" if square else "tile"))


answers(
    "fp8.transposed",
    right=[_transposed],
    wrong={
        "right for blocks of 128 × 128; for tiles of 1 × 128: scales have shape": (
            lambda q: replace(q, codes=q.codes.t(), scales=q.scales.t())
        ),
        "groups of the transpose have 128 × 1 numbers": lambda q: q.t(),
        "blocks of 128 × 128: scales have shape (2, 3)": lambda q: replace(q, codes=q.codes.t()),
        "the codes have shape (256, 384)": lambda q: q,
        "no longer in FP8": lambda q: replace(q.t(), codes=q.codes.t().float()),
        "groups of the transpose have 384 × 256 numbers": partial(_transposed, groups="tensor"),
        "nothing needs to be rounded again": partial(_transposed, times=1.03),
    },
)
