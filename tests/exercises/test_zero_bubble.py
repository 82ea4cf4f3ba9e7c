"""Wrong answers that readers of the chapter on zero-bubble schedules may well give, and what they are told."""

import pytest
import torch

from playbook_book.exercises import grade


def planted(weight, micro_batches, late):
    x, owed, sent = torch.empty_like(micro_batches[0][0]), [], []
    for arriving, dy in micro_batches:
        x.copy_(arriving)
        sent.append(dy @ weight)
        owed.append((dy, x))
        if len(owed) > late:
            weight.grad += torch.mm(owed[0][0].T, owed.pop(0)[1])
    for dy, kept in owed:
        weight.grad += dy.T @ kept
    return sent


def deferred(weight, micro_batches, late, *, flush=1, scale=1):
    owed, sent = [], []
    for x, dy in micro_batches:
        sent.append(dy @ weight)
        owed.append((dy, x))
        if len(owed) > late:
            dy, x = owed.pop(0)
            weight.grad += dy.T @ x * scale
    for dy, x in owed * flush:
        weight.grad += dy.T @ x * scale
    return sent


def never_flushed(weight, micro_batches, late):
    return deferred(weight, micro_batches, late, flush=0)


def flushed_twice(weight, micro_batches, late):
    return deferred(weight, micro_batches, late, flush=2)


def halved(weight, micro_batches, late):
    return deferred(weight, micro_batches, late, scale=0.5)


def nothing_sent(weight, micro_batches, late):
    return [0 * dx for dx in deferred(weight, micro_batches, late)]


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("recomputation", 7, "without recomputation: which action grows"),
        ("recomputation", 21, "that is 1F1B without"),
        ("recomputation", 28, "1F1B with recomputation"),
        ("recomputation", 16, "waits for p − 1 others"),
        ("recomputation", 100, "100 is too large. Which of F, B and W"),
        (
            "any-times",
            lambda p, f, b, w: (p - 1) * (f + b - w),
            "where W is the longest, the bubble is too small",
        ),
        ("any-times", lambda p, f, b, w: (p - 1) * (f + b + w), "the bubble is too large"),
        ("any-times", lambda p, f, b, w: (p - 1) * max(f, b, w), "the bubble is too"),
        ("any-times", lambda *times: "3", "str '3'"),
        (
            "late",
            planted,
            "right with W at once; with W 1 late, micro-batches 0 to 4 are in the gradient 0, 0, 0, 0, 1",
        ),
        ("late", never_flushed, "in the gradient 1, 1, 1, 1, 0 times"),
        ("late", flushed_twice, "in the gradient 1, 1, 1, 1, 2 times"),
        ("late", halved, "with W at once, micro-batches 0 to 4 are in the gradient 0.5"),
        ("late", nothing_sent, "the gradients that B sends on"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"zero-bubble.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("recomputation", 14),
        ("any-times", lambda p, f, b, w: (p - 1) * (f + b - min(f, b, w))),
        ("late", deferred),
    ],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"zero-bubble.{name}", answer).right
