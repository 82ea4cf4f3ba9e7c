"""Wrong answers that readers of the chapter on mixed precision may well give, and what they are told."""

import pytest
import torch

from playbook_book.exercises import grade


def test_the_right_number_of_skipped_steps():
    assert grade("mixed-precision.skipped", 21).right


def kahan(weight, rest, update):
    wide = weight.float() + rest.float() + update
    new = wide.bfloat16()
    return new, (wide - new.float()).bfloat16()


def classical(weight, rest, update):
    """As numerical analysis writes it, with additions in BF16."""
    y = update.bfloat16() + rest
    new = weight + y
    return new, y - (new - weight)


def forgets(weight, rest, update):
    return (weight.float() + update).bfloat16(), rest


def keeps_but_does_not_add(weight, rest, update):
    wide = weight.float() + update
    new = wide.bfloat16()
    return new, (wide - new.float()).bfloat16()


def wrong_sign(weight, rest, update):
    wide = weight.float() + rest.float() + update
    new = wide.bfloat16()
    return new, (new.float() - wide).bfloat16()


def in_fp32(weight, rest, update):
    return weight.float() + update, rest


def one_tensor(weight, rest, update):
    return kahan(weight, rest, update)[0]


@pytest.mark.parametrize("write", [kahan, classical])
def test_kahan(write):
    verdict = grade("mixed-precision.kahan", write)
    assert verdict.right, verdict.text


def total(gradients):
    return torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))


def scale_first(gradients, scale, limit):
    for g in gradients:
        g /= scale
    norm = total(gradients)
    for g in gradients:
        g *= (limit / norm).clamp(max=1)
    return norm


def at_once(gradients, scale, limit):
    norm = total(gradients) / scale
    for g in gradients:
        g *= (limit / norm).clamp(max=1) / scale
    return norm


def planted(gradients, scale, limit):
    norm = total(gradients)
    for g in gradients:
        g *= (limit / norm).clamp(max=1)
    for g in gradients:
        g /= scale
    return norm


def scaled_limit_twice(gradients, scale, limit):
    norm = total(gradients)
    for g in gradients:
        g *= (limit * scale / norm).clamp(max=1)
    return norm / scale


def scaled_norm(gradients, scale, limit):
    return scale_first(gradients, scale, limit) * scale


def not_clamped(gradients, scale, limit):
    norm = total(gradients) / scale
    for g in gradients:
        g *= limit / norm / scale
    return norm


@pytest.mark.parametrize("mended", [scale_first, at_once])
def test_clip(mended):
    assert grade("mixed-precision.clip", mended).right


def decays(weight, master, direction, lr, decay):
    master.mul_(1 - lr * decay)
    master.sub_(lr * direction)
    weight.copy_(master)


def planted_decay(weight, master, direction, lr, decay):
    weight.mul_(1 - lr * decay)
    master.sub_(lr * direction)
    weight.copy_(master)


def after_the_copy(weight, master, direction, lr, decay):
    master.sub_(lr * direction)
    weight.copy_(master)
    weight.mul_(1 - 10 * lr * decay)


def master_from_weight(weight, master, direction, lr, decay):
    master.copy_(weight)
    decays(weight, master, direction, lr, decay)


def narrow_factor(weight, master, direction, lr, decay):
    master.mul_(torch.tensor(1 - lr * decay).bfloat16())
    master.sub_(lr * direction)
    weight.copy_(master)


def of_the_weight(weight, master, direction, lr, decay):
    master.sub_(lr * decay * direction + lr * direction)
    weight.copy_(master)


def test_decay():
    assert grade("mixed-precision.decay", decays).right


@pytest.mark.parametrize(
    ("what", "answer", "hint"),
    [
        ("skipped", 12, "what happens after 1,000 good steps"),
        ("skipped", 9, "until the scale fits"),
        ("skipped", 22, "1,000 good steps and the one that is skipped are 1,001"),
        ("skipped", 10, "every thousandth step"),
        ("skipped", 20, "2^21"),
        ("skipped", 100, "100 is too large"),
        ("skipped", 3, "3 is too small"),
        ("kahan", forgets, "the same, as it must be, but so is the rest"),
        ("kahan", keeps_but_does_not_add, "Does the next update get the rest"),
        ("kahan", wrong_sign, "with the right sign"),
        ("kahan", in_fp32, "the weight is torch.float32"),
        ("kahan", one_tensor, "return two tensors"),
        (
            "clip",
            planted,
            "with a small gradient and a scale of 1,024, the optimizer gets a gradient of norm",
        ),
        ("clip", scaled_limit_twice, "a scale of 1,024"),
        ("clip", scaled_norm, "the norm is said to be"),
        ("clip", not_clamped, "with a small gradient and no scale"),
        ("decay", planted_decay, "without any decay"),
        ("decay", after_the_copy, "not its master"),
        ("decay", master_from_weight, "masters are off by"),
        ("decay", narrow_factor, "without any decay"),
        ("decay", of_the_weight, "masters are off by"),
    ],
)
def test_wrong_answers_get_their_hint(what, answer, hint):
    verdict = grade(f"mixed-precision.{what}", answer)
    assert not verdict.right
    assert hint in verdict.text
