"""Exercises of the chapter on four bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor

#: The magnitudes of E2M1.
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@number(
    "four-bits.kept",
    "bytes that a layer of Llama 3 8B keeps of its input in NVFP4",
    praise="an eighth more for the scales of blocks, and 28 % of bf16",
    otherwise="Count the codes, the scales of blocks, and that of the tensor.",
    tolerance=1e-9,
)
def kept() -> tuple[float, dict[float, str]]:
    from playbook.shapes import load

    numbers = 8192 * load("llama3-8b").ffn_dim
    right = numbers // 2 + numbers // 16 + 4
    return right, {
        right - 4: "almost: the tensor has a scale of its own, in fp32",
        right - 3: "almost: the scale of the tensor is in fp32",
        numbers // 2: "almost: those are the codes, and nobody can read them without their scales",
        numbers // 2 + 4: "almost: each block of 16 has a scale, too",
        numbers + numbers // 16 + 4: "two codes fit into a byte",
        numbers // 2 + numbers // 32: "that is MXFP4: blocks of 32, and no scale of the tensor",
        numbers // 2 + numbers // 32 + 4: "blocks of NVFP4 have 16 numbers",
        numbers // 2 + numbers // 4 + 4: "the scales of blocks are in E4M3: a byte each",
        numbers // 2 + numbers // 256 + 4: "square blocks are those of weights",
        2 * numbers: "that is what it keeps in bf16",
    }


@exercise("four-bits.stochastic", "function", "numbers rounded at random to E2M1")
def at_random(write: Callable[..., Any]) -> str:
    """Over all of ``noise`` the mean is the number; each result is a neighbour of it."""
    import torch

    x = torch.tensor([0.5, 0.1, 0.8, 1.3, 2.25, 2.9, 3.5, 4.4, 5.0, 5.9, 6.0, 0.0])
    x = torch.cat([x, -x])
    noise = (torch.arange(1000) + 0.5) / 1000
    table = torch.tensor(SIZES)
    found = write(x.expand(1000, -1).clone(), noise[:, None].expand(-1, len(x)).clone())
    if not isinstance(found, torch.Tensor) or found.shape != (1000, len(x)):
        raise NotYet("return a tensor of the shape of x")
    for i, one in enumerate(x.tolist()):
        got = found[:, i].double()
        if odd := [value for value in got.unique().tolist() if abs(value) not in SIZES]:
            raise NotYet(f"{one:g} became {odd[0]:g}, which is none of the sixteen numbers")
        if bool((got * one < 0).any()):
            raise NotYet(f"{one:g} became {-one:g} or the like: the sign is lost")
        below = float(table[table <= abs(one) + 1e-6].max())
        above = float(table[table >= abs(one) - 1e-6].min())
        if odd := [value for value in got.unique().tolist() if not below <= abs(value) <= above]:
            raise NotYet(
                f"{one:g} became {odd[0]:g}, and its neighbours are {below:g} and {above:g} (with its sign)"
            )
        if abs(float(got.mean()) - one) > 0.01:
            alike = (
                "the same whatever the noise is"
                if len(got.unique()) == 1
                else f"{float(got.mean()):.2f} on average"
            )
            raise NotYet(f"{one:g} became {alike}: up with the probability of how far it is on its way up")
    return "each number is one of its two neighbours, and right on average"


def _at_random(
    x: Tensor, noise: Tensor, *, spacing: float | None = None, shift: float | None = None
) -> Tensor:
    import torch

    size = x.abs()
    unit = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0)) if spacing is None else spacing
    steps = (size / unit + (noise if shift is None else shift)).floor()
    return ((steps * unit).clamp(max=6)).copysign(x)


def _by_table(x: Tensor, noise: Tensor) -> Tensor:
    import torch

    table = torch.tensor(SIZES)
    place = (torch.searchsorted(table, x.abs(), right=True) - 1).clamp(max=6)
    below, above = table[place], table[place + 1]
    return torch.where(noise < (x.abs() - below) / (above - below), above, below).copysign(x)


answers(
    "four-bits.stochastic",
    right=[_at_random, _by_table],
    wrong={
        "which is none of the sixteen numbers": partial(_at_random, spacing=0.5),
        "the same whatever the noise is": partial(_at_random, shift=0.5),
        "0.5 became 0": lambda x, noise: _at_random(x, 0 * noise - 0.5),
        "the sign is lost": lambda x, noise: _at_random(x, noise).abs(),
        "return a tensor of the shape of x": lambda x, noise: x.tolist(),
        "on average: up with the probability": lambda x, noise: _at_random(x, noise**2),
    },
)


@exercise("four-bits.scales", "repair", "the two scales of NVFP4, right for gradients as well")
def scales(mended: Callable[..., Any]) -> str:
    import torch

    from playbook.precision.four_bits import nvfp4
    from playbook.precision.fp4 import by_rows

    made = torch.Generator().manual_seed(0)
    plain = torch.randn(4, 64, generator=made)
    empty = plain.clone()
    empty[1, 16:32] = 0
    cases = {
        "numbers around 1": plain,
        "gradients around 1e-6": plain * 1e-6,
        "numbers around 1e7": plain * 1e7,
        "a block of zeros": empty,
    }
    for name, x in cases.items():
        given = mended(x.clone())
        if not isinstance(given, tuple) or len(given) != 2:
            raise NotYet("return two tensors: the tensor's scale and those of the blocks")
        whole, of_blocks = given
        if of_blocks.dtype != torch.float8_e4m3fn or of_blocks.shape != (4, 4):
            raise NotYet(
                f"scales of blocks must be float8_e4m3fn of shape (4, 4), not {of_blocks.dtype} of "
                f"{tuple(of_blocks.shape)}"
            )
        each = (whole * of_blocks.float()).repeat_interleave(16, 1)
        scaled = x / each
        if not bool(scaled.isfinite().all()):
            raise NotYet(f"{name}: numbers over their scales are not finite: a scale is 0")
        near = torch.tensor(SIZES)[(scaled.abs()[..., None] - torch.tensor(SIZES)).abs().argmin(-1)]
        off = float((near.copysign(x) * each - x).norm() / x.norm())
        best = float((by_rows(x, nvfp4()).dequantized() - x).norm() / x.norm())
        if off > 1.2 * best:
            gone = float(((near == 0) & (x != 0)).float().mean())
            why = f", and {gone:.0%} of the numbers became 0" if gone > 0.3 else ""
            raise NotYet(f"{name}: off by {off:.0%} of the norm, where {best:.0%} is possible{why}")
    return "the tensor's scale is in fp32 and takes any size; a block's is in E4M3, and never 0"


def _scales(
    x: Tensor, *, of_whole: bool = False, of_blocks: bool = True, six: float = 6.0
) -> tuple[Tensor, Tensor]:
    import torch

    whole = x.abs().amax() / (six * 448)
    if of_whole:
        whole = whole.clamp(2**-6, 448)
    each = x.view(len(x), -1, 16).abs().amax(-1) / 6 / whole
    if of_blocks:
        each = each.clamp(2**-6, 448)
    return whole, each.to(torch.float8_e4m3fn)


answers(
    "four-bits.scales",
    right=[_scales],
    wrong={
        "gradients around 1e-6: off by 100%": partial(_scales, of_whole=True),
        "a block of zeros: numbers over their scales are not finite": partial(_scales, of_blocks=False),
        "return two tensors": lambda x: _scales(x)[1],
        "scales of blocks must be float8_e4m3fn": lambda x: (_scales(x)[0], _scales(x)[1].float()),
        "numbers around 1: off by": lambda x: (1 / _scales(x)[0], _scales(x)[1]),
    },
)
