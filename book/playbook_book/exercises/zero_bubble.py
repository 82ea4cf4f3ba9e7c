"""Exercises of the chapter on zero-bubble schedules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


@exercise("zero-bubble.recomputation", "number", "the bubble of ZB-H1 where everything is computed again")
def recomputation(answer: Any) -> str:
    p, f, b, w = 8, 1, 1, 1
    right = (p - 1) * (f + (b + f) - w)
    hints: dict[float, str] = {
        (p - 1) * (f + b - w): "that is ZB-H1 without recomputation: which action grows, and by how much?",
        (p - 1) * (f + b + w): "that is 1F1B without recomputation",
        (p - 1) * (f + b + f + w): "that is 1F1B with recomputation: W may be deferred",
        p * (f + b + f - w): "a rank waits for p − 1 others",
    }
    number(answer, right, hints, otherwise="Which of F, B and W has the forward pass that is computed again?")
    return "B is one F longer, and the bubble twice as large"


@exercise("zero-bubble.any-times", "function", "the bubble of ZB-H1 for any times of F, B and W")
def any_times(write: Callable[..., Any]) -> str:
    from playbook.schedules.catalogue import make
    from playbook.schedules.timeline import Times, simulate

    cases = 0
    for p, f, b, w in product((2, 4, 8), (1, 4, 7), (2, 4, 6), (1, 3, 5, 9)):
        line = simulate(make("zb-h1", p, 3 * p), Times(f, b, w))
        right, said = line.makespan - line.ideal, write(p, f, b, w)
        if isinstance(said, bool) or not isinstance(said, int | float):
            raise NotYet(f"the function returns a number, and this is {type(said).__name__} {said!r}")
        if abs(said - right) > 1e-9:
            size = "large" if said > right else "small"
            longest = max((w, "W"), (f, "F"), (b, "B"))[1]
            raise NotYet(
                f"for p = {p}, f = {f}, b = {b}, w = {w}, where {longest} is the longest, the bubble is too {size} "
                f"(cases before it that are right: {cases})"
            )
        cases += 1
    return f"the bubble of {cases} simulated steps"


#: How late W may be in the repair, and micro-batches.
_LATE, _COUNT = (0, 1, 2), 5


@exercise("zero-bubble.late", "repair", "weight gradients that are right only if they are not deferred")
def late(mended: Callable[..., Any]) -> str:
    import torch

    generator = torch.Generator().manual_seed(0)
    for deferred in _LATE:
        at_once = "with W at once" if not deferred else f"right with W at once; with W {deferred} late"
        counts = _counts(mended, deferred)
        if any(abs(n - 1) > 1e-4 for n in counts):
            said = ", ".join(f"{n:.3g}" for n in counts)
            raise NotYet(f"{at_once}, micro-batches 0 to {_COUNT - 1} are in the gradient {said} times")
        weight = torch.randn(3, 4, generator=generator)
        weight.grad = torch.zeros(3, 4)
        pairs = [
            (torch.randn(6, 4, generator=generator), torch.randn(6, 3, generator=generator)) for _ in range(5)
        ]
        sent = mended(weight, pairs, deferred)
        if len(sent) != len(pairs) or any(
            not torch.allclose(dx, dy @ weight, atol=1e-5) for dx, (_, dy) in zip(sent, pairs, strict=True)
        ):
            raise NotYet(f"{at_once}, the gradients that B sends on are not those of the inputs")
        right = torch.stack([dy.T @ x for x, dy in pairs]).sum(0)
        if not torch.allclose(weight.grad, right, atol=1e-4):
            off = float(weight.grad.norm() / right.norm())
            raise NotYet(f"{at_once}, the gradient of the weight has {off:.2f} times the norm of autograd's")
    return "every micro-batch once, however late"


def _counts(mended: Callable[..., Any], deferred: int) -> list[float]:
    """How often each micro-batch is in the gradient: each has an entry of the matrix to itself."""
    import torch

    weight, one = torch.zeros(_COUNT, _COUNT), torch.eye(_COUNT)
    weight.grad = torch.zeros(_COUNT, _COUNT)
    mended(weight, [(one[i : i + 1], one[i : i + 1]) for i in range(_COUNT)], deferred)
    return [float(weight.grad[i, i]) for i in range(_COUNT)]
