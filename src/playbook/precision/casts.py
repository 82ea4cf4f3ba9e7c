"""Tensors in the formats of `formats`: rounded to numbers that a format has, and kept in the dtype that they came in."""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.precision.formats import Format, load_format

#: PyTorch's own dtypes for formats, whose casts are faster than arithmetic.
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
}


def round_to(
    x: Tensor, form: str | Format, *, saturate: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """``x`` with each number rounded to one that ``form`` has, in the dtype of x: ties to even or, with a ``generator``,
    up with the probability of the rest (stochastic rounding).

    ``saturate`` keeps what is too large at the largest number; else it becomes what `Format.encode` makes of it.
    """
    form = load_format(form)
    wide = x.double()  # so that a unit in the last place and its multiples are exact, subnormal ones too
    exponent = (torch.frexp(wide).exponent - 1).clamp(min=form.least)
    unit = torch.ldexp(torch.ones_like(wide), exponent - form.mantissa)
    units = wide / unit
    if generator is None:
        whole = units.round()
    else:
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        whole = (units + noise).floor()
    found = whole * unit
    if saturate or form.specials == "none":
        found = found.clamp(-form.max, form.max)
    else:
        beyond = float("inf") if form.infinity is not None else float("nan")
        found = torch.where(found.abs() > form.max, found.sign() * beyond, found)
    return found.copysign(wide).to(x.dtype)
