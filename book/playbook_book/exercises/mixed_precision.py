"""Exercises of the chapter on mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@exercise("mixed-precision.skipped", "number", "steps that a dynamic loss scale skips in a run")
def skipped(answer: Any) -> str:
    from playbook.training.loss_scale import LossScale

    scale, right = LossScale(2.0**32, 1000), 0
    for _ in range(10_000):
        right += not scale.update(float("inf") if scale.value > 2.0**20 else 1.0)
    hints: dict[float, str] = {
        12: "that is until the scale fits; what happens after 1,000 good steps?",
        9: "that is afterwards; how many steps does it take until the scale fits?",
        22: "almost: 1,000 good steps and the one that is skipped are 1,001, and the first steps count, too",
        10: "that is every thousandth step; the scale begins far above the one that fits",
        20: "almost: with a scale of 2^21 the gradients overflow as well",
    }
    number(
        answer, right, hints, otherwise="Which scales overflow at first, and how often later?", tolerance=1e-6
    )
    return "twelve until the scale fits, then one after every thousand good steps"


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


@exercise("mixed-precision.decay", "repair", "weight decay that never reaches the weights")
def decay(mended: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    master = torch.randn(200, generator=made)
    begin, weight, exact = master.clone(), master.bfloat16(), master.double()
    for step in range(1, 401):
        direction = torch.randn(200, generator=made)
        mended(weight, master, direction, 1e-2, 0.1)
        exact = exact * (1 - 1e-2 * 0.1) - 1e-2 * direction.double()
        if not torch.equal(weight, master.bfloat16()):
            raise NotYet(f"after step {step} a weight is not its master, rounded to BF16")
    off = float((master.double() - exact).norm() / exact.norm())
    if off > 1e-4:
        free = begin.double()
        generator = torch.Generator().manual_seed(0)
        torch.randn(200, generator=generator)
        for _ in range(400):
            free -= 1e-2 * torch.randn(200, generator=generator).double()
        if float((master.double() - free).norm() / free.norm()) < 1e-4:
            raise NotYet("after 400 steps masters are where they would be without any decay")
        raise NotYet(
            f"after 400 steps masters are off by {off:.1e}: each step multiplies by 1 − lr·decay, then subtracts lr "
            "times the direction, all of it in fp32"
        )
    return "what is smaller than an ulp of the weight is for the master to remember"
