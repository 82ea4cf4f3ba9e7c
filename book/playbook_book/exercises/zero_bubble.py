"""Exercises of the chapter on zero-bubble schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number


@number(
    "zero-bubble.recomputation",
    "the bubble of ZB-H1 where everything is computed again",
    praise="B is one F longer, and the bubble twice as large",
    otherwise="Which of F, B and W has the forward pass that is computed again?",
)
def recomputation() -> tuple[float, dict[float, str]]:
    p, f, b, w = 8, 1, 1, 1
    return (p - 1) * (f + (b + f) - w), {
        (p - 1) * (f + b - w): "that is ZB-H1 without recomputation: which action grows, and by how much?",
        (p - 1) * (f + b + w): "that is 1F1B without recomputation",
        (p - 1) * (f + b + f + w): "that is 1F1B with recomputation: W may be deferred",
        p * (f + b + f - w): "a rank waits for p − 1 others",
    }


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


answers(
    "zero-bubble.any-times",
    right=[lambda p, f, b, w: (p - 1) * (f + b - min(f, b, w))],
    wrong={
        "where W is the longest, the bubble is too small": lambda p, f, b, w: (p - 1) * (f + b - w),
        "the bubble is too large (cases before it that are right: 0)": lambda p, *times: (p - 1) * sum(times),
        "the bubble is too large (cases before it that are right: 1)": lambda p, f, b, w: (
            (p - 1) * max(f, b, w)
        ),
        "str '3'": lambda *times: "3",
    },
)


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


def _deferred(weight: Any, micro_batches: Any, late: int, *, one_buffer=False, flushes=1, scale=1.0) -> Any:
    x, owed, sent = micro_batches[0][0].clone(), [], []
    for arriving, dy in micro_batches:
        x = x.copy_(arriving) if one_buffer else arriving
        sent.append(dy @ weight)
        owed.append((dy, x))
        if len(owed) > late:
            first, kept = owed.pop(0)
            weight.grad += first.T @ kept * scale
    for dy, kept in owed * flushes:
        weight.grad += dy.T @ kept * scale
    return sent


answers(
    "zero-bubble.late",
    right=[_deferred],
    wrong={
        "right with W at once; with W 1 late, micro-batches 0 to 4 are in the gradient 0, 0, 0, 0, 1": (
            partial(_deferred, one_buffer=True)
        ),
        "in the gradient 1, 1, 1, 1, 0 times": partial(_deferred, flushes=0),
        "in the gradient 1, 1, 1, 1, 2 times": partial(_deferred, flushes=2),
        "with W at once, micro-batches 0 to 4 are in the gradient 0.5": partial(_deferred, scale=0.5),
        "the gradients that B sends on": lambda *given: [0 * dx for dx in _deferred(*given)],
    },
)
