"""Exercises of the chapter on gradient accumulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakSet

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

#: Samples of 4 096 tokens in a step of 2²⁰.
_SAMPLES = 2**20 // 4096


@number(
    "gradient-accumulation.plan",
    "micro-batches of a step of exactly 2²⁰ tokens on one H100",
    otherwise="mbs × grad_acc is the number of samples in a step",
)
def plan() -> tuple[float, dict[float, str], str]:
    fitting = [m for m in range(1, 17) if _peak(m) <= _card()]
    most = max(m for m in fitting if _SAMPLES % m == 0)
    hints: dict[float, str] = {}
    for m in range(1, 17):
        if m < most:
            hint = "that fits, but larger micro-batches would fit, too"
        elif m in fitting:
            hint = f"micro-batches of {m} fit, but {_SAMPLES} is not a multiple of {m}: a step has exactly 2²⁰ tokens"
        else:
            hint = (
                f"micro-batches of {m} do not fit: states and saved activations are not all, backward of the loss works "
                "with two more fp32 copies of the logits"
            )
        if m != most:
            hints |= dict.fromkeys((_SAMPLES // m, _SAMPLES / m, -(-_SAMPLES // m)), hint)
    hints |= {2**20 / most: "count samples: each has 4 096 tokens"}
    hints |= {most: "that is the micro-batch; how many of them make a step?"}
    said = f"mbs {most} × grad_acc {_SAMPLES // most}: exact, and the largest whose peak fits"
    return _SAMPLES / most, hints, said


def _peak(micro_batch: int) -> int:
    """Bytes of Llama 3.2 1B at the fullest moment of a step that has several micro-batches."""
    from playbook.layout import Layout
    from playbook.planning.memory import predict
    from playbook.shapes import load

    layout = Layout(micro_batch=micro_batch, grad_acc=2)
    return predict(load("llama3.2-1b"), layout, seq=4096, recipe="bf16-mixed-fp32-grads").peak


def _card() -> int:
    from playbook.hardware import load_accelerator

    return load_accelerator("h100").memory_bytes


#: By hand: 20 bytes a parameter are there all the time; per token, what is saved and two fp32 gradients of the logits.
_BY_HAND = (81_559 * 2**20 - 20 * 1_235_814_400) // (4096 * (1_997_956 + 2 * 4 * 128_256))
answers("gradient-accumulation.plan", right=[_SAMPLES / _BY_HAND])


@exercise("gradient-accumulation.stream", "function", "the mean over tokens that are counted as they come")
def stream(write: Callable[..., Any]) -> str:
    passed = ""
    for name, rows, counts in _STREAMS:
        _compare(write, name, rows, counts, passed)
        passed = f"right for {name}; "
    most = _most_alive(write)
    if most is not None:
        raise NotYet(
            f"the gradient is right, but when micro-batch {most} is asked for, activations of an earlier one are still "
            "in memory, which grows with the batch"
        )
    return "the mean over all tokens, whatever their number, with the memory of one micro-batch"


@exercise("gradient-accumulation.default", "repair", "a mean over each micro-batch's own tokens")
def default(mended: Callable[..., Any]) -> str:
    passed = ""
    for name, rows, counts in _STREAMS:
        _compare(lambda model, pieces: mended(model, list(pieces)), name, rows, counts, passed)
        passed = f"right for {name}; "
    return "a token weighs the same wherever it stands"


#: What a batch consists of: its name, rows of each micro-batch, tokens that count in each row.
_STREAMS = (
    ("one micro-batch", (4,), (16, 16, 16, 16)),
    ("equal micro-batches", (2, 2), (16, 16, 16, 16)),
    ("a smaller last micro-batch", (3, 1), (16, 16, 16, 16)),
    ("rows with different numbers of tokens", (2, 2), (16, 12, 3, 1)),
    ("a micro-batch in which no token counts", (2, 1, 1), (16, 5, 0, 7)),
)


def _model() -> Any:
    from playbook.model.transformer import Transformer
    from playbook.shapes import load

    small = load("tiny").replace(layers=1, hidden=32, heads=2, kv_heads=2, head_dim=16, ffn=48, vocab=64)
    return Transformer(small)


def _batch(counts: tuple[int, ...]) -> tuple[Any, Any]:
    """Inputs and targets, of which the first few of each row count."""
    import torch

    from playbook.model.transformer import IGNORE

    tokens = torch.randint(64, (len(counts), 17), generator=torch.Generator().manual_seed(0))
    x, y = tokens[:, :-1], tokens[:, 1:].clone()
    for row, count in enumerate(counts):
        y[row, count:] = IGNORE
    return x, y


def _pieces(rows: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    x, y = _batch(counts)
    yield from zip(x.split(list(rows)), y.split(list(rows)), strict=True)


def _compare(
    accumulate: Callable[..., Any], name: str, rows: tuple[int, ...], counts: tuple[int, ...], passed: str
) -> None:
    """Raise NotYet unless the gradient of the micro-batches is that of the whole batch's mean token."""
    from playbook_book.instruments.parity import gradient_vector, relative_error

    whole, mine = _model(), _model()
    total, tokens = whole.loss(*_batch(counts))
    (total / tokens).backward()
    accumulate(mine, _pieces(rows, counts))
    right, got = gradient_vector(whole), gradient_vector(mine)
    if got.norm() == 0:
        raise NotYet(f"{passed}for {name}, there is no gradient at all")
    if got.isnan().any():
        raise NotYet(f"{passed}for {name}, the gradient is not a number: was something divided by zero?")
    if relative_error(got, right) > 1e-5:
        raise NotYet(f"{passed}for {name}, {_difference(got, right, rows, counts)}")


def _difference(got: Any, right: Any, rows: tuple[int, ...], counts: tuple[int, ...]) -> str:
    import torch

    from playbook_book.instruments.parity import gradient_vector

    if torch.cosine_similarity(got, right, dim=0) > 0.9999:
        return f"the gradient has the right direction and {float(got.norm() / right.norm()):.3g} times the length"
    last = _model()
    for x, y in _pieces(rows, counts):
        last.zero_grad()
        last.loss(x, y)[0].backward()
    if torch.cosine_similarity(got, gradient_vector(last), dim=0) > 0.9999:
        return "the gradient has the direction of the last micro-batch's: where are the others?"
    return "the gradient points in a different direction from the whole batch's: does every token weigh the same?"


def _most_alive(write: Callable[..., Any]) -> int | None:
    """The first micro-batch that is asked for while tensors which autograd saved for an earlier one are alive."""
    import torch

    class Kept:
        def __init__(self, tensor: Any):
            self.tensor = tensor

    alive: WeakSet[Kept] = WeakSet()
    found: list[int] = []

    def keep(tensor: Any) -> Kept:
        kept = Kept(tensor)
        alive.add(kept)
        return kept

    def watched() -> Iterator[tuple[Any, Any]]:
        for i, piece in enumerate(_pieces((1, 1, 1, 1), (16, 16, 16, 16)), 1):
            if len(alive):
                found.append(i)
            yield piece

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        write(_model(), watched())
    return found[0] if found else None


def _streamed(model, pieces, *, own=False, afresh=False, over=lambda y, count: count):
    """Gradients of sums, or each of its ``own`` mean, divided in the end by the sum of ``over``."""
    whole = 0
    for x, y in pieces:
        if afresh:
            model.zero_grad()
        loss, count = model.loss(x, y)
        (loss / count.clamp(min=1) if own else loss).backward()
        whole += over(y, count)
    for p in model.parameters():
        p.grad /= whole or 1


def _by_tokens_so_far(model, pieces):
    tokens = 0
    for x, y in pieces:
        loss, count = model.loss(x, y)
        (loss / tokens).backward()
        tokens += int(count)


def _all_at_once(model, pieces):
    losses, counts = zip(*(model.loss(x, y) for x, y in pieces), strict=True)
    (sum(losses) / sum(counts)).backward()


_undivided = partial(_streamed, over=lambda y, count: 0)

answers(
    "gradient-accumulation.stream",
    right=[_streamed],
    wrong={
        "for one micro-batch, the gradient has the right direction and 64 times": _undivided,
        "the gradient has the right direction and 2 times": partial(_undivided, own=True),
        "for a smaller last micro-batch": partial(_streamed, own=True, over=lambda y, count: 1),
        "for rows with different numbers of tokens": partial(_streamed, over=lambda y, count: y.numel()),
        "the gradient has the direction of the last": partial(_undivided, own=True, afresh=True),
        "for one micro-batch, the gradient is not a number": _by_tokens_so_far,
        "the gradient is right, but when micro-batch 2 is asked for": _all_at_once,
        "there is no gradient at all": lambda model, pieces: list(pieces),
    },
)


def _means(model, pieces, share=lambda targets: (targets >= 0).sum()):
    from torch.nn.functional import cross_entropy

    whole = sum(share(y) for _, y in pieces)
    for x, y in pieces:
        (cross_entropy(model(x).flatten(0, 1), y.flatten()) * share(y) / whole).backward()


answers(
    "gradient-accumulation.default",
    right=[_means],
    wrong={
        "right for equal micro-batches; for a smaller last": partial(_means, share=lambda targets: 1),
        "for rows with different numbers of tokens": partial(_means, share=len),
        "for one micro-batch, the gradient has the right direction and 64 times": _undivided,
    },
)
