"""Exercises of the chapter on mixed precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "mixed-precision.skipped",
    "steps that a dynamic loss scale skips in a run",
    praise="twelve until the scale fits, then one after every thousand good steps",
    otherwise="Which scales overflow at first, and how often later?",
    tolerance=1e-6,
)
def skipped() -> tuple[float, dict[float, str]]:
    from playbook.training.loss_scale import LossScale

    scale, right = LossScale(2.0**32, 1000), 0
    for _ in range(10_000):
        right += not scale.update(float("inf") if scale.value > 2.0**20 else 1.0)
    return right, {
        12: "that is until the scale fits; what happens after 1,000 good steps?",
        9: "that is afterwards; how many steps does it take until the scale fits?",
        22: "almost: 1,000 good steps and the one that is skipped are 1,001, and the first steps count, too",
        10: "that is every thousandth step; the scale begins far above the one that fits",
        20: "almost: with a scale of 2^21 the gradients overflow as well",
    }


@exercise(
    "mixed-precision.kahan", "function", "an update of a BF16 weight that loses nothing, with BF16 alone"
)
def kahan(write: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    weight = torch.rand(256, generator=made).add(0.5).bfloat16()
    rest, exact = torch.zeros_like(weight), weight.double()
    for step in range(1, 301):
        update = 1e-4 * (torch.rand(256, generator=made) + 0.5)
        before = weight.clone()
        weight, rest = _pair(write(weight.clone(), rest.clone(), update), step)
        exact += update.double()
        if step == 1 and torch.equal(weight, before) and not rest.any():
            raise NotYet(
                "after an update below half an ulp the weight is the same, as it must be, but so is the rest"
            )
    off = (weight.double() - exact).abs().max().item()
    whole = (weight.double() + rest.double() - exact).abs().max().item()
    if torch.equal(weight, before) or off > 0.02:
        raise NotYet(
            f"after 300 updates a weight is off by {off:.3f}; an ulp is 0.004 to 0.008. Does the next update get the "
            "rest, and with the right sign?"
        )
    if whole > 2e-3:
        raise NotYet(f"weights are right to an ulp, but weight and rest together are off by {whole:.4f}")
    return "weight and rest together have twice the bits of one"


def _pair(given: Any, step: int) -> tuple[Tensor, Tensor]:
    import torch

    if not isinstance(given, tuple | list) or len(given) != 2:
        raise NotYet("return two tensors, the weight and the rest")
    for name, x in zip(("weight", "rest"), given, strict=True):
        if not isinstance(x, torch.Tensor) or x.dtype != torch.bfloat16:
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise NotYet(f"after step {step} the {name} is {kind}; what is kept must be in torch.bfloat16")
    return given[0], given[1]


def _kahan(weight: Tensor, rest: Tensor, update: Tensor, *, carried=1, sign=1) -> tuple[Tensor, Tensor]:
    wide = weight.float() + carried * rest.float() + update
    new = wide.bfloat16()
    return new, (sign * (wide - new.float())).bfloat16()


def _classical(weight: Tensor, rest: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """As numerical analysis writes it, with additions in BF16."""
    y = update.bfloat16() + rest
    new = weight + y
    return new, y - (new - weight)


answers(
    "mixed-precision.kahan",
    right=[_kahan, _classical],
    wrong={
        "the same, as it must be, but so is the rest": partial(_kahan, sign=0),
        "Does the next update get the rest": partial(_kahan, carried=0),
        "with the right sign": partial(_kahan, sign=-1),
        "the weight is torch.float32": lambda weight, rest, update: (weight.float() + update, rest),
        "return two tensors": lambda *given: _kahan(*given)[0],
    },
)


@exercise(
    "mixed-precision.clip", "repair", "a loss scale that is taken out of the gradients after they are clipped"
)
def clip(mended: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    for size, scale, case in (
        (0.01, 1.0, "a small gradient and no scale"),
        (3.0, 1.0, "a large gradient and no scale"),
        (0.01, 1024.0, "a small gradient and a scale of 1,024"),
        (3.0, 1024.0, "a large gradient and a scale of 1,024"),
    ):
        own = [size * torch.randn(shape, generator=made) for shape in ((4, 3), (5,))]
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in own]))
        wanted = [g * (1 / norm).clamp(max=1) for g in own]
        given = [g * scale for g in own]
        told = mended(given, scale, 1.0)
        found = torch.linalg.vector_norm(torch.cat([g.flatten() for g in given]))
        right = torch.linalg.vector_norm(torch.cat([g.flatten() for g in wanted]))
        if any((a - b).abs().max() > 1e-4 * right for a, b in zip(given, wanted, strict=True)):
            raise NotYet(
                f"with {case}, the optimizer gets a gradient of norm {found:.3g}; clipped to 1, that of the loss has "
                f"norm {right:.3g}"
            )
        if abs(float(told) - float(norm)) > 1e-3 * float(norm):
            raise NotYet(
                f"with {case}, the norm is said to be {float(told):.3g}, but that of the loss's gradient is {norm:.3g}"
            )
    return "the scale goes first: then the limit means what it says, whatever the scale is"


def _clipped(
    gradients: list[Tensor], scale: float, limit: float, *, most=1.0, of="own", unscaled=True
) -> float:
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    norms = {"own": norm / scale, "scaled": norm}
    for g in gradients:
        g *= min(most, limit / norms[of]) / (scale if unscaled else 1)
    return norms["own"]


answers(
    "mixed-precision.clip",
    right=[_clipped],
    wrong={
        "with a small gradient and a scale of 1,024, the optimizer gets a gradient of norm 0.00": (
            partial(_clipped, of="scaled")
        ),
        "a scale of 1,024": partial(_clipped, unscaled=False),
        "the norm is said to be": lambda gradients, scale, limit: _clipped(gradients, scale, limit) * scale,
        "with a small gradient and no scale": partial(_clipped, most=math.inf),
    },
)
