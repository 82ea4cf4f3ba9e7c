"""Exercises of the chapter on activation recomputation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number


# The published count has the head's share a little different from 6/8: half a per cent is close enough.
@number(
    "recomputation.mfu",
    "the MFU of a run whose count has the second forward pass in it",
    praise="three parts of four: what the hardware does, without what it does twice",
    otherwise="Which of the four parts of a step are repetition?",
    tolerance=5e-3,
)
def mfu() -> tuple[float, dict[float, str]]:
    hfu = 140e12 / 312e12
    return hfu * 6 / 8, {
        100 * hfu * 6 / 8: "as a fraction of 1, not in per cent",
        hfu: "that is the HFU: the repeated operations are still in it",
        hfu * 8 / 6: "the hardware computes more than the model needs: MFU is below HFU",
        hfu * 2 / 3: "forward is one part, backward two: how many parts are computed, and how many needed?",
        hfu / 4: "that is what the repetition takes, not what the model needs",
        140 * 6 / 8: "those are the TFLOP/s that the model needs; utilisation is a share of the peak",
        140e12 * 6 / 8: "those are the FLOP/s that the model needs; utilisation is a share of the peak",
    }


@exercise("recomputation.peak", "function", "the peak of a model whose blocks differ in size")
def peak(write: Callable[..., Any]) -> str:
    cases: dict[str, tuple[list[int], list[int], int]] = {
        "with eight blocks alike, one to a segment": ([2] * 8, [34] * 8, 1),
        "with eight blocks alike, two to a segment": ([2] * 8, [34] * 8, 2),
        "with eight blocks alike, three to a segment": ([2] * 8, [34] * 8, 3),
        "with blocks that grow": ([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], 2),
        "with blocks that shrink": ([6, 5, 4, 3, 2, 1], [60, 50, 40, 30, 20, 10], 2),
        "with a large block in the middle": ([4] * 7, [8, 8, 8, 90, 8, 8, 8], 1),
        "with inputs larger than what is inside": ([9] * 5, [1] * 5, 1),
        "with one segment for all": ([2, 3, 4], [30, 20, 10], 5),
    }
    passed: list[str] = []
    for name, (entering, inside, size) in cases.items():
        got, right = write(list(entering), list(inside), size), _peak(entering, inside, size)
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise NotYet(f"the answer is a number of bytes, and this is {type(got).__name__}")
        if abs(got - right) > 1e-9 * right:
            so_far = f"right {passed[-1]}; " if passed else ""
            raise NotYet(f"{so_far}{name}, {got / right:.2f} times the peak of such a step")
        passed.append(name)
    return "an input for each segment that backward has not left, and the activations inside one segment"


def _peak(entering: Sequence[int], inside: Sequence[int], size: int) -> int:
    """A step is walked through: forward keeps inputs, backward makes a segment's insides, then frees both."""
    starts = range(0, len(inside), size)
    held = sum(entering[start] for start in starts)
    most = 0
    for start in reversed(starts):
        most = max(most, held + sum(inside[start : start + size]))
        held -= entering[start]
    return most


def _parts(inside: Sequence[int], size: int) -> list[int]:
    return [sum(inside[start : start + size]) for start in range(0, len(inside), size)]


def _each_in_turn(entering, inside, size):
    inputs = entering[::size]
    return max(sum(inputs[: i + 1]) + part for i, part in enumerate(_parts(inside, size)))


answers(
    "recomputation.peak",
    right=[_each_in_turn],
    wrong={
        "right with eight blocks alike, two to a segment; with eight blocks alike, three": (
            lambda entering, inside, size: len(inside) / size * entering[0] + size * inside[0]
        ),
        "two to a segment, 1.11 times the peak": (
            lambda entering, inside, size: sum(entering) + max(_parts(inside, size))
        ),
        "three to a segment, 1.02 times the peak": (
            lambda entering, inside, size: sum(entering[::size]) + max(_parts(inside, size))
        ),
        "one to a segment, 0.32 times the peak": lambda entering, inside, size: sum(entering[::size]),
        "this is NoneType": lambda *_: None,
    },
)


@exercise("recomputation.dropout", "repair", "a checkpoint under which dropout differs the second time")
def dropout(mended: Any) -> str:
    """``mended(function, x)`` against ``function(x)``: output, gradients, the generator afterwards, bytes kept.

    ``mended`` is such a function, or the pair (forward, backward) of an autograd function.
    """
    if isinstance(mended, tuple):
        mended = _autograd_function(*mended)
    for p, where in ((0.0, "without dropout"), (0.5, "with dropout")):
        plain, mine = _step(lambda function, x: function(x), p), _step(mended, p)
        so_far = "right without dropout; " if p else ""
        if mine["loss"] != plain["loss"]:
            raise NotYet(f"{so_far}{where}, the loss is not that of the plain step")
        if mine["gradient"] is None:
            raise NotYet(f"{so_far}{where}, a parameter or the input gets no gradient")
        error = float((mine["gradient"] - plain["gradient"]).norm() / plain["gradient"].norm())
        if not error < 1e-5:
            size = "more than a tenth" if error > 0.1 else "less than a tenth"
            raise NotYet(
                f"{so_far}{where}, the loss is right, and the gradient is off by {size} of its length"
            )
        if p and mine["next"] != plain["next"]:
            raise NotYet(
                "gradients are right, with dropout too; but the first random number after the step is not the one that "
                "a plain step leaves: the next step would draw masks that were used before"
            )
        if mine["bytes"] > plain["input bytes"] * _LAYERS:
            raise NotYet(
                f"gradients are right, but {mine['bytes'] / (plain['input bytes'] * _LAYERS):.0f} times the bytes of "
                "the inputs are kept for backward"
            )
    return "the same masks in both passes, and the generator is left where it was"


_LAYERS = 2


def _step(checkpoint: Callable[..., Any], p: float) -> dict[str, Any]:
    """Two layers, each under a checkpoint: the loss of a step, its gradient, bytes kept, the next random number."""
    import torch

    from playbook_book.instruments.measured import SavedActivations

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
            for _ in range(_LAYERS))
        )  # fmt: skip
        start = torch.randn(8, 16, requires_grad=True)
        with SavedActivations(layers) as kept:
            x = start * 1
            for layer in layers:
                x = checkpoint(lambda t, layer=layer: torch.dropout(layer(t), p, True), x)
        loss = x.sum()
        loss.backward()
        gradients = [t.grad for t in (start, *layers.parameters())]
        found = [g.flatten() for g in gradients if g is not None]
        return {
            "loss": loss.item(),
            "gradient": torch.cat(found) if len(found) == len(gradients) else None,
            "next": torch.rand(()).item(),
            "bytes": kept.bytes,
            "input bytes": start.numel() * start.element_size(),
        }


def _autograd_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    from torch.autograd import Function

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    apply: Callable[..., Any] = type("Mended", (Function,), methods).apply  # type: ignore[attr-defined]
    return apply


@answers_made("recomputation.dropout")
def _checkpoints() -> tuple[list[Any], dict[str, Any]]:
    import torch

    from playbook.model.recompute import checkpoint

    def pair(*, noted="before", given_back=True, seeded=False):
        """Forward and backward; the generator's state is noted before or behind the first pass, or not at all."""

        def forward(ctx, function, x):
            ctx.function = function
            ctx.save_for_backward(x)
            if seeded:
                torch.manual_seed(7)
            ctx.state = torch.get_rng_state()
            with torch.no_grad():
                out = function(x)
            if noted == "behind":
                ctx.state = torch.get_rng_state()
            return out

        def backward(ctx, gradient):
            found = torch.get_rng_state()
            if noted:
                torch.set_rng_state(ctx.state)
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                ctx.function(x).backward(gradient)
            if given_back:
                torch.set_rng_state(found)
            return None, x.grad

        return forward, backward

    return [checkpoint, pair()], {
        "with dropout, the loss is right, and the gradient": pair(noted="", given_back=False),
        "the loss is right, and the gradient is off by": pair(noted="behind"),
        "the next step would draw masks that were used before": pair(given_back=False),
        "with dropout, the loss is not that of the plain step": pair(seeded=True),
        "times the bytes of the inputs": lambda function, x: function(x),
        "gets no gradient": lambda function, x: function(x.detach()),
    }
