"""Wrong answers that readers of the chapter on first steps may well give, and what they are told."""

import pytest
from torch.nn.functional import cross_entropy

from playbook_book.exercises import grade


def planted(model, windows):
    inputs, targets = windows[:, :-1], windows[:, 1:]
    logits = model(inputs)
    logits, targets = logits[:, :-1], targets[:, 1:]
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def unshifted(model, windows):
    return cross_entropy(model(windows).flatten(0, 1), windows.flatten())


def backwards(model, windows):
    return cross_entropy(model(windows[:, 1:]).flatten(0, 1), windows[:, :-1].flatten())


def without_the_last(model, windows):
    inputs, targets = windows[:, :-1], windows[:, 1:]
    return cross_entropy(model(inputs)[:, :-1].flatten(0, 1), targets[:, :-1].flatten())


def summed(model, windows):
    logits = model(windows[:, :-1])
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")


def detached(model, windows):
    return cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).item()


def shifted_inside(model, windows):
    """Right: shifted once, in the other place."""
    return cross_entropy(model(windows)[:, :-1].flatten(0, 1), windows[:, 1:].flatten())


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("steps", 3e12 / (1024 * 8192), "the whole run at the larger batch"),
        ("steps", 3e12 / (512 * 8192), "the whole run at the smaller batch"),
        ("steps", 0.2e12 / 512 + 2.8e12 / 1024, "a batch is given in samples here"),
        ("steps", 3e12 / (768 * 8192), "the plain mean of both batches"),
        ("steps", 3e12 / ((0.2 * 512 + 2.8 * 1024) / 3 * 8192), "steps add up, batches do not"),
        ("steps", 2.8e12 / (1024 * 8192), "the second part of the run alone"),
        ("steps", 1, "1 is too small. Each part takes"),
        ("luck", lambda inputs, targets: targets == ord("e"), "nats on your suspects"),
        ("luck", lambda inputs, targets: inputs == ord(" "), "nats on your suspects"),
        (
            "luck",
            lambda inputs, targets: (targets == inputs) & (targets == ord(" ")),
            "you are on to something",
        ),
        ("luck", lambda inputs, targets: targets, "a boolean mask of shape (64, 64)"),
        ("luck", lambda inputs, targets: targets == targets, "a mask of all or of none singles nothing out"),
        ("shift", planted, "nats, not 0.00; one that is certain of the token after the next scores 0.00"),
        ("shift", unshifted, "nats, not 0.00; one that repeats its input scores 0.00"),
        ("shift", backwards, "scores 20.00 nats, not 0.00"),
        ("shift", without_the_last, "does each prediction count"),
        ("shift", summed, "divide it by the number of predictions"),
        ("shift", detached, "a scalar tensor with a gradient"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"first-steps.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_right_answers_are_right_however_they_are_written():
    assert grade("first-steps.steps", round(0.2e12 / (512 * 8192) + 2.8e12 / (1024 * 8192))).right
    assert grade("first-steps.luck", lambda inputs, targets: targets == inputs).right
    assert grade("first-steps.shift", shifted_inside).right
