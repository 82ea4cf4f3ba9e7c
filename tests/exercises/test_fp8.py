"""Wrong answers that readers of the chapter on FP8 may well give, and what they are told."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from playbook.precision.scaling import Quantized, quantize
from playbook_book.exercises import grade

NUMBERS = 8192 * 14336
RIGHT = NUMBERS + NUMBERS // 32


def right_tiles(x):
    found = quantize(x, "e4m3", "tile")
    return found.codes, found.scales


def by_hand(x, rows=None):
    groups = x.view(len(x), -1, 128)
    largest = groups.abs().amax(-1, keepdim=True)
    scales = torch.where(largest > 0, largest / 448, 1.0)
    return (groups / scales).view_as(x).to(torch.float8_e4m3fn), scales.squeeze(-1)


def zero_over_zero(x):
    groups = x.view(len(x), -1, 128)
    scales = groups.abs().amax(-1, keepdim=True) / 448
    return (groups / scales).view_as(x).to(torch.float8_e4m3fn), scales.squeeze(-1)


def inverse_scales(x):
    codes, scales = right_tiles(x)
    return codes, 1 / scales


def one_scale(x):
    found = quantize(x, "e4m3")
    return found.codes, found.scales


def one_scale_repeated(x):
    codes, scales = one_scale(x)
    return codes, scales.expand(len(x), x.shape[1] // 128)


def no_scales(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn), torch.ones(len(x), x.shape[1] // 128)


def codes_alone(x):
    return right_tiles(x)[0]


def in_fp32(x):
    codes, scales = right_tiles(x)
    return codes.float(), scales


def planted(history, step, x):
    amax = history[step % len(history)].clone()
    history[step % len(history)] = x.abs().amax()
    return torch.where(amax > 0, amax / 448, 1.0)


def zero_at_first(history, step, x):
    scale = history.amax() / 448
    history[step % len(history)] = x.abs().amax()
    return scale


def of_this_step(history, step, x):
    return x.abs().amax() / 448


def written_first(history, step, x):
    history[step % len(history)] = x.abs().amax()
    return history.amax() / 448


def last_alone(history, step, x):
    amax = history[(step - 1) % len(history)].clone() if step else x.abs().amax()
    history[step % len(history)] = x.abs().amax()
    return amax / 448


def never_forgets(history, step, x):
    here = x.abs().amax()
    largest = history.amax().clone() if step else here
    history[0] = torch.maximum(history[0], here)
    return largest / 448


def right_history(history, step, x):
    here = x.abs().amax()
    amax = history.amax() if step else here
    history[step % len(history)] = here
    return amax / 448


def planted_transpose(q):
    return Quantized(q.codes.t(), q.scales.t(), q.size, q.dtype)


def sizes_turned(q):
    return q.t()


def scales_as_they_were(q):
    return Quantized(q.codes.t(), q.scales, q.size, q.dtype)


def not_transposed(q):
    return q


def back_in_fp32(q):
    return dataclasses.replace(q.t(), codes=q.codes.t().float())


def one_for_all(q):
    return quantize(q.dequantized().t(), "e4m3")


def rounded_again(q):
    return quantize(q.dequantized().t() * 1.03, "e4m3", "block" if q.size[0] > 1 else "tile")


def right_transpose(q):
    if q.size[0] == q.size[1]:
        return q.t()
    return quantize(q.dequantized().t(), "e4m3", "tile")


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("kept", NUMBERS, "those are the codes"),
        ("kept", 2 * NUMBERS, "what it keeps in bf16"),
        ("kept", 2 * RIGHT, "a code has eight bits"),
        ("kept", NUMBERS + NUMBERS // 128, "these scales are numbers of fp32"),
        ("kept", NUMBERS + NUMBERS // 64, "these scales are numbers of fp32"),
        ("kept", NUMBERS + 4 * NUMBERS // 128**2, "as weights have"),
        ("kept", NUMBERS + 4 * NUMBERS // 32, "for every 32 numbers"),
        ("kept", NUMBERS + 4 * 8192, "one scale for each row"),
        ("kept", 3 * NUMBERS, "too large. Count the codes"),
        ("tiles", zero_over_zero, "a tile of zeros: some codes are no numbers"),
        ("tiles", inverse_scales, "random numbers: codes times scales are off by"),
        ("tiles", one_scale, "scales have shape (1, 1), and should have (4, 3)"),
        ("tiles", one_scale_repeated, "one outlier: codes times scales are off by"),
        ("tiles", no_scales, "tiles of different sizes: codes times scales are off by"),
        ("tiles", codes_alone, "return two tensors"),
        ("tiles", in_fp32, "codes must be float8_e4m3fn"),
        ("history", planted, "gradients around 1e-6: in step 0 the scale is 1"),
        ("history", zero_at_first, "in step 0 the scale is 0"),
        ("history", of_this_step, "it waits for this step's own tensor"),
        ("history", written_first, "it waits for this step's own tensor"),
        ("history", last_alone, "that is the step before alone"),
        ("history", never_forgets, "it remembers more than four steps"),
        (
            "transposed",
            planted_transpose,
            "right for blocks of 128 × 128; for tiles of 1 × 128: scales have shape",
        ),
        ("transposed", sizes_turned, "groups of the transpose have 128 × 1 numbers"),
        ("transposed", scales_as_they_were, "blocks of 128 × 128: scales have shape (2, 3)"),
        ("transposed", not_transposed, "the codes have shape (256, 384)"),
        ("transposed", back_in_fp32, "no longer in FP8"),
        ("transposed", one_for_all, "groups of the transpose have 384 × 256 numbers"),
        ("transposed", rounded_again, "nothing needs to be rounded again"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"fp8.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("kept", RIGHT),
        ("tiles", right_tiles),
        ("tiles", by_hand),
        ("history", right_history),
        ("transposed", right_transpose),
    ],
)
def test_right_answers_are_right(name, answer):
    verdict = grade(f"fp8.{name}", answer)
    assert verdict.right, verdict.text
