"""Wrong answers that readers of the chapter on gradient accumulation may well give, and what they are told."""

import pytest
import torch
import torch.nn.functional as F

from playbook.hardware import load_accelerator
from playbook.instruments.fake import saved_without_memory
from playbook.model.transformer import IGNORE
from playbook.planning.states import training_bytes_per_parameter
from playbook.shapes import load
from playbook_book.exercises import grade


def forgotten_division(model, pieces):
    for x, y in pieces:
        model.loss(x, y)[0].backward()


def own_mean(model, pieces):
    for x, y in pieces:
        total, count = model.loss(x, y)
        (total / count).backward()


def by_pieces(model, pieces):
    n = 0
    for x, y in pieces:
        total, count = model.loss(x, y)
        (total / count.clamp(min=1)).backward()
        n += 1
    for p in model.parameters():
        p.grad /= n


def all_at_once(model, pieces):
    total, tokens = 0, 0
    for x, y in pieces:
        loss, count = model.loss(x, y)
        total, tokens = total + loss, tokens + count
    (total / tokens).backward()


def by_tokens_so_far(model, pieces):
    tokens = 0
    for x, y in pieces:
        loss, count = model.loss(x, y)
        (loss / torch.tensor(tokens)).backward()
        tokens += int(count)


def a_list_first(model, pieces):
    pieces = [(x, y, *model.loss(x, y)) for x, y in pieces]
    tokens = sum(count for *_, count in pieces)
    for *_, loss, _ in pieces:
        (loss / tokens).backward()


def by_padded_tokens(model, pieces):
    tokens = 0
    for x, y in pieces:
        model.loss(x, y)[0].backward()
        tokens += y.numel()
    for p in model.parameters():
        p.grad /= tokens


def cleared(model, pieces):
    for x, y in pieces:
        model.zero_grad()
        total, count = model.loss(x, y)
        (total / count.clamp(min=1)).backward()


def planted(model, pieces):
    for x, y in pieces:
        logits = model(x).flatten(0, 1)
        loss = F.cross_entropy(logits, y.flatten(), ignore_index=IGNORE)
        (loss / len(pieces)).backward()


def by_rows(model, pieces):
    rows = sum(len(x) for x, _ in pieces)
    for x, y in pieces:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        (loss * len(x) / rows).backward()


def by_tokens_of_means(model, pieces):
    tokens = sum((y != IGNORE).sum() for _, y in pieces)
    for x, y in pieces:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        (loss * (y != IGNORE).sum() / tokens).backward()


def sums(model, pieces):
    for x, y in pieces:
        logits = model(x).flatten(0, 1)
        F.cross_entropy(logits, y.flatten(), ignore_index=IGNORE, reduction="sum").backward()


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("plan", 256, "that fits, but larger micro-batches would fit, too"),
        ("plan", 128, "that fits, but larger micro-batches would fit, too"),
        ("plan", 32, "micro-batches of 8 do not fit: states and saved activations are not all"),
        ("plan", 37, "micro-batches of 7 do not fit"),
        ("plan", 51.2, "micro-batches of 5 do not fit"),
        ("plan", 16, "micro-batches of 16 do not fit"),
        ("plan", 4, "that is the micro-batch"),
        ("plan", 262_144, "count samples"),
        ("plan", 65, "65 is too large"),
        (
            "stream",
            forgotten_division,
            "for one micro-batch, the gradient has the right direction and 64 times",
        ),
        ("stream", own_mean, "for equal micro-batches, the gradient has the right direction and 2 times"),
        (
            "stream",
            by_pieces,
            "right for equal micro-batches; for a smaller last micro-batch, the gradient points",
        ),
        ("stream", by_padded_tokens, "for rows with different numbers of tokens, the gradient has the right"),
        ("stream", cleared, "for equal micro-batches, the gradient has the direction of the last"),
        ("stream", by_tokens_so_far, "for one micro-batch, the gradient is not a number"),
        ("stream", all_at_once, "the gradient is right, but when micro-batch 2 is asked for"),
        ("stream", a_list_first, "the gradient is right, but when micro-batch 2 is asked for"),
        ("stream", lambda model, pieces: list(pieces), "there is no gradient at all"),
        (
            "default",
            planted,
            "right for equal micro-batches; for a smaller last micro-batch, the gradient points",
        ),
        (
            "default",
            by_rows,
            "right for a smaller last micro-batch; for rows with different numbers of tokens",
        ),
        ("default", sums, "for one micro-batch, the gradient has the right direction and 64 times"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"gradient-accumulation.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_gradients_rescaled_at_the_end_pass():
    def rescaled(model, pieces):
        tokens = 0
        for x, y in pieces:
            loss, count = model.loss(x, y)
            loss.backward()
            tokens += count
        torch._foreach_div_([p.grad for p in model.parameters()], tokens)

    assert grade("gradient-accumulation.stream", rescaled).right


def test_means_weighted_by_their_tokens_pass():
    assert grade("gradient-accumulation.default", by_tokens_of_means).right


def test_the_plan_is_the_largest_micro_batch_whose_peak_fits():
    """20 bytes a parameter are there all the time; per sample, what is saved and two fp32 gradients of the logits."""
    shape, memory = load("llama3.2-1b"), load_accelerator("h100").memory_bytes
    per_sample = saved_without_memory(shape, 1, 4096).bytes + 2 * 4 * 4096 * shape.vocab
    states = shape.num_parameters * training_bytes_per_parameter("bf16-mixed-fp32-grads").total
    assert states + 4 * per_sample < memory < states + 5 * per_sample
    assert grade("gradient-accumulation.plan", 256 / 4).right
