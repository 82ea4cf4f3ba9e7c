"""Exercises of the chapter on memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor

    from playbook.model.transformer import Transformer
    from playbook.shapes import ModelShape

    Batches = Sequence[tuple[Tensor, Tensor]]


def _saved(shape: ModelShape, batch: int, seq: int) -> int:
    """Bytes that autograd saves in a forward pass."""
    from playbook.layout import Layout
    from playbook.planning.memory import predict

    return predict(shape, Layout(micro_batch=batch), seq=seq).fullest.activations


def _saved_by_a_block(shape: ModelShape, batch: int, seq: int) -> int:
    one, two = (_saved(shape.replace(layers=n), batch, seq) for n in (1, 2))
    return two - one


@number(
    "memory.longest",
    "the longest sample that one RTX 4090 trains Llama 3.2 1B on",
    otherwise="Ask `predict` for the peak, and bisect the number of tokens.",
    tolerance=1e-4,
)
def longest() -> tuple[float, dict[float, str], str]:
    from playbook.hardware import load_accelerator
    from playbook.layout import Layout
    from playbook.planning.memory import predict
    from playbook.shapes import load

    shape, tokens = load("llama3.2-1b"), 1024
    blocks = shape.layers * _saved_by_a_block(shape, 1, tokens) // tokens
    card = load_accelerator("rtx4090").memory_bytes

    def fits(memory: float, **layout: Any) -> int:
        """Tokens of the longest sample whose peak is not above ``memory`` bytes."""
        short, long = 0, 2**15
        while long - short > 1:
            middle = (short + long) // 2
            fit = predict(shape, Layout(**layout), seq=middle).peak <= memory
            short, long = (middle, long) if fit else (short, middle)
        return short

    def estimate(states: int = 16, per_token: int = _saved(shape, 1, tokens) // tokens) -> int:
        """The same for the sum of states and saved activations, which knows no temporary tensors."""
        return int((card - states * shape.num_parameters) // per_token)

    most = fits(card)
    moment = predict(shape, seq=most).fullest.moment.name
    hints: dict[float, str] = {
        estimate(): (
            "that is 16N + A: it leaves out what backward of the loss works with, two more fp32 copies of the logits"
        ),
        estimate(states=14): (
            "14N + A is right about the gradients, which are not there yet at the peak; but two more fp32 copies of the "
            "logits are"
        ),
        estimate(per_token=blocks): (
            "those are the activations of the blocks alone: what do the last norm, the head and the loss save, and what "
            "does backward of the loss work with?"
        ),
        estimate(states=0): "that is without the training states",
        fits(card, grad_acc=2): (
            "that is with gradients there from an earlier micro-batch; this step has one, and at its peak none yet"
        ),
        fits(24e9): "that is for 24·10⁹ bytes: nvidia-smi reports 24,564 MiB, and MiB are binary",
        fits(24 * 2**30): "that is for 24 GiB: nvidia-smi reports 24,564 MiB, a little less",
        fits(24_564e6): "MiB are binary: 2²⁰ bytes each",
        most + 1: "one token too many",
        most - 1: "one token more fits",
    }
    said = f"{most:,} tokens fit, and one more does not: the peak, in {moment}, fills the card"
    return most, hints, said


#: By hand: the card, less weights and states of 2 + 12 bytes, no gradient yet, and rotary angles in fp32, over what a
#: token saves and its two gradients in fp32 in the making, of the log-probabilities and of the logits.
_BY_HAND = (24_564 * 2**20 - 14 * 1_235_814_400 - 2 * 4 * 64 * 131_072) // (1_997_956 + 2 * 4 * 128_256)
answers("memory.longest", right=[_BY_HAND])


@exercise("memory.block", "function", "the bytes that one block of a Llama saves")
def block(write: Callable[..., Any]) -> str:
    from playbook.shapes import load

    for name, title, b, s in (
        ("llama2-7b", "Llama 2 7B", 1, 4096),
        ("llama2-7b", "Llama 2 7B", 2, 1024),
        ("llama3-8b", "Llama 3 8B", 1, 8192),
        ("llama3.2-1b", "Llama 3.2 1B", 1, 4096),
    ):
        shape = load(name)
        right = _saved_by_a_block(shape, b, s)
        kv = (shape.kv_heads or shape.heads) * shape.qk_dim
        got = write(b, s, shape.hidden, kv, shape.ffn_dim, shape.heads)
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise NotYet(f"the answer is a number of bytes, and this is {type(got).__name__} {got!r}")
        if not math.isclose(got, right, rel_tol=0.01):
            before = (
                "" if name == "llama2-7b" else "right for Llama 2 7B, whose keys are as wide as its queries; "
            )
            raise NotYet(
                f"{before}for a block of {title} and {b} × {s:,} tokens, {got / right:.3f} times what autograd saves"
            )
    return "within 1 % of what autograd saves, in three models"


def _tensors(b, s, h, kv, f, a):
    return 2 * b * s * (6 * h + 2 * kv + 4 * f)


answers(
    "memory.block",
    right=[_tensors],
    wrong={
        "for a block of Llama 2 7B and 1 × 4,096 tokens": lambda b, s, h, kv, f, a: 34 * b * s * h,
        "right for Llama 2 7B, whose keys": lambda b, s, h, kv, f, a: _tensors(b, s, h, h, f, a),
        "2 × 1,024 tokens, 0.5": lambda b, s, h, kv, f, a: _tensors(1, s, h, kv, f, a),
        "0.500 times what autograd saves": lambda *sizes: _tensors(*sizes) // 2,
        "4,096 tokens, 0.8": lambda b, s, h, kv, f, a: 2 * b * s * (6 * h + 2 * kv + 3 * f),
        "the answer is a number of bytes": lambda *sizes: "many",
    },
)


@exercise("memory.validation", "repair", "a validation loop that runs out of memory")
def validation(mended: Callable[..., Any]) -> str:
    import torch

    from playbook.model.transformer import Transformer
    from playbook.shapes import load

    model = Transformer(load("tiny").replace(layers=2))
    generator = torch.Generator().manual_seed(0)

    def batches(*samples: int) -> Batches:
        tokens = (torch.randint(256, (n, 33), generator=generator) for n in samples)
        return [(t[:, :-1], t[:, 1:]) for t in tokens]

    uneven = batches(4, 1)
    with torch.no_grad():
        sums = [model.loss(x, y)[0].item() for x, y in uneven]
    right = sum(sums) / (5 * 32)
    answer = mended(model, uneven)
    got = answer.detach().item() if isinstance(answer, torch.Tensor) else float(answer)
    if not math.isclose(got, right, rel_tol=1e-4):
        raise NotYet(
            f"a loss of {got:.4f} for two batches, of 4 samples and of 1, not the mean over all tokens, {right:.4f}"
        )
    four, eight = (_activations(mended, model, batches(*[2] * n)) for n in (4, 8))
    if eight > 1.5 * four:
        raise NotYet(
            f"the loss is right; but with 8 batches autograd keeps {eight / four:.1f} times the activations that it "
            "keeps with 4"
        )
    if eight:
        one = _activations(lambda m, b: m.loss(*b[0]), model, batches(2))
        raise NotYet(
            f"the loss is right, and memory no longer grows with the number of batches; but autograd still keeps "
            f"activations, those of {eight / one:.0f} batches at the peak, for a backward pass that never comes"
        )
    return "the same loss, and autograd keeps no activations"


def _activations(run: Callable[..., Any], model: Transformer, batches: Batches) -> int:
    """Bytes of activations at their peak while ``run(model, batches)`` runs."""
    from playbook.instruments.memory_timeline import MemoryTimeline

    with MemoryTimeline(model) as timeline:
        run(model, batches)
    return max(timeline.curves().bytes["activations"])


def _mean(model, batches, *, grad=False, item=True, of_means=False):
    import torch

    total, tokens = 0.0, 0
    with torch.set_grad_enabled(grad):
        for x, y in batches:
            loss, count = model.loss(x, y)
            loss = loss / count if of_means else loss
            total += loss.item() if item else loss
            tokens += 1 if of_means else count
    return total / tokens


answers(
    "memory.validation",
    right=[_mean, partial(_mean, item=False)],
    wrong={
        "with 8 batches autograd keeps 2.0 times the activations": partial(_mean, grad=True, item=False),
        "those of 2 batches at the peak, for a backward pass that never comes": partial(_mean, grad=True),
        "not the mean over all tokens": partial(_mean, of_means=True),
    },
)
