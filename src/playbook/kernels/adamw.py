"""AdamW for vectors of parameters, gradients and states (Loshchilov & Hutter 2017, arXiv 1711.05101): at step t

    m ← β₁·m + (1 − β₁)·g,   v ← β₂·v + (1 − β₂)·g²
    w ← w·(1 − η·λ) − η/(1 − β₁ᵗ) · m / (sqrt(v)/sqrt(1 − β₂ᵗ) + eps)

where w is the fp32 master weight, of which the parameter is the rounded copy, or a parameter that is in fp32 itself. One
kernel reads and writes everything once.

Bytes per parameter of p bytes with a gradient of g bytes. 16 bits: g, w, m and v are read, the parameter, w, m and v are
written, g + p + 24: 28 with gradients in 16 bits, 30 with gradients in fp32. In fp32, without a master: g + 24 = 28. The
operators of the twin, one after the other, move 92, 86 and 80.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook.kernels.jit import cdiv, kernel, tl
from playbook.kernels.rows import check_shape

#: Numbers of a program: four for each thread of its four warps, 16 bytes of a state in fp32. With eight, a thread would
#: have more than its share of the registers, and 16-bit gradients would pass between threads through shared memory.
BLOCK = 512


@torch.no_grad()
def adamw_torch(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, master: Tensor | None = None, *,
    step: int, lr: float, betas: tuple[float, float], eps: float = 1e-8, weight_decay: float = 0.0,
    loss_scale: float = 1.0,
) -> None:  # fmt: skip
    """The twin in PyTorch."""
    w, g = parameter if master is None else master, gradient.to(first.dtype)
    g = g if loss_scale == 1 else g / loss_scale
    first.lerp_(g, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    scale = second.sqrt() / math.sqrt(1 - betas[1] ** step) + eps
    w.mul_(1 - lr * weight_decay).addcdiv_(first, scale, value=-lr / (1 - betas[0] ** step))
    if master is not None:
        parameter.copy_(w)


@kernel
def adamw_kernel(
    p, g, m, v, master, n, over, kept, rate, beta1, rest1, beta2, rest2, correction, eps, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    gs = tl.load(g + at, mask=inside, other=0.0).to(tl.float32) * over
    ms = tl.load(m + at, mask=inside, other=0.0) * beta1 + gs * rest1
    vs = tl.load(v + at, mask=inside, other=0.0) * beta2 + gs * gs * rest2
    if master is not None:
        ws = tl.load(master + at, mask=inside, other=0.0)
    else:
        ws = tl.load(p + at, mask=inside, other=0.0)
    ws = ws * kept - rate * ms / (tl.sqrt(vs) * correction + eps)
    tl.store(m + at, ms, mask=inside)
    tl.store(v + at, vs, mask=inside)
    tl.store(p + at, ws, mask=inside)
    if master is not None:
        tl.store(master + at, ws, mask=inside)


@torch.no_grad()
def adamw(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, master: Tensor | None = None, *,
    step: int, lr: float, betas: tuple[float, float], eps: float = 1e-8, weight_decay: float = 0.0,
    loss_scale: float = 1.0,
) -> None:  # fmt: skip
    """One step, counted from 1: parameter, both moments (fp32) and master (fp32), of one shape, change in place. The
    gradient is divided by ``loss_scale`` in fp32.

    Raises ShapeError where sizes differ, ConfigError where states are not contiguous fp32, or a 16-bit parameter has no
    master.
    """
    states = {"first": first, "second": second} | ({} if master is None else {"master": master})
    for name, x in {"gradient": gradient, **states}.items():
        check_shape(name, x, parameter.shape, "as the parameter has")
    for name, x in {**states, **({"parameter": parameter} if master is None else {})}.items():
        if x.dtype != torch.float32:
            raise ConfigError(
                f"{name} is {x.dtype}, but must be torch.float32; 16-bit parameters need a master"
            )
    for name, x in {"parameter": parameter, **states}.items():
        if not x.is_contiguous():
            raise ConfigError(
                f"{name} has strides {x.stride()}, but must be contiguous, as it changes in place"
            )
    # What depends on the step is worked out here, in fp64: 1 − 0.999 in fp32 is off by 1e-5 of itself. And numbers with a
    # point do not make a kernel compile anew, where whole numbers can.
    n, (beta1, beta2) = parameter.numel(), betas
    adamw_kernel[(cdiv(n, BLOCK),)](
        parameter, gradient.contiguous(), first, second, master, n,
        float(1 / loss_scale), float(1 - lr * weight_decay), float(lr / (1 - beta1**step)), float(beta1),
        float(1 - beta1), float(beta2), float(1 - beta2), float(1 / math.sqrt(1 - beta2**step)), float(eps), BLOCK=BLOCK,
    )  # fmt: skip
    torch.autograd.graph.increment_version(
        parameter
    )  # what was saved of it for a backward is no longer there


def bytes_step(n: int, p: int, g: int) -> int:
    """Bytes that a step of n parameters of p bytes, with gradients of g bytes, reads and writes."""
    return n * (g + 24 + (p if p < 4 else 0))
