"""Wrong answers that readers of the chapter on fused kernels may well give, and what they are told."""

import pytest
import torch
import torch.nn.functional as F
import triton.language as tl

from playbook.kernels.jit import cdiv, kernel, next_power
from playbook_book.exercises import grade

ONE_PASS = 8192 * 8192 * 2
RIGHT = 3 * 160 * ONE_PASS


@kernel
def relu2_kernel(x, bias, y, n, f, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    xs = tl.load(x + at, mask=inside) + tl.load(bias + at % f, mask=inside)
    positive = tl.maximum(xs, 0.0)
    tl.store(y + at, positive * positive, mask=inside)


@kernel
def unmasked_kernel(x, bias, y, n, f, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    positive = tl.maximum(tl.load(x + at) + tl.load(bias + at % f), 0.0)
    tl.store(y + at, positive * positive)


@kernel
def same_bias_kernel(x, bias, y, n, f, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    xs = tl.load(x + at, mask=inside) + tl.load(bias + at % BLOCK, mask=inside & (at % BLOCK < f), other=0.0)
    tl.store(y + at, tl.maximum(xs, 0.0) * tl.maximum(xs, 0.0), mask=inside)


@kernel
def unwritten_kernel(x, y):
    raise NotImplementedError


def launched(one, x, bias, y, block=1024):
    one[(cdiv(x.numel(), block),)](x, bias, y, x.numel(), len(bias), BLOCK=block)
    return y


def fused(x, bias):
    return launched(relu2_kernel, x, bias, torch.empty_like(x))


def in_place(x, bias):
    return launched(relu2_kernel, x, bias, x)


def unmasked(x, bias):
    return launched(unmasked_kernel, x, bias, torch.empty_like(x), 128)


def same_bias(x, bias):
    return launched(same_bias_kernel, x, bias, torch.empty_like(x), 128)


def operators(x, bias):
    return F.relu(x + bias).square()


def bias_by_an_operator(x, bias):
    return launched(relu2_kernel, x + bias, torch.zeros_like(bias), torch.empty_like(x))


def not_squared(x, bias):
    fused(x, bias)
    return F.relu(x + bias)


def flat(x, bias):
    return fused(x, bias).flatten()


def nothing(x, bias):
    fused(x, bias)


def unwritten(x, bias):
    unwritten_kernel[(1,)](x, torch.empty_like(x))


def norm_of(one):
    def norm(x):
        y = torch.empty_like(x)
        one[(len(x),)](x, y, x.shape[1], 1e-5, BLOCK=next_power(x.shape[1]))
        return y

    return norm


@kernel
def planted_kernel(x, y, h, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * h + at, mask=inside, other=0.0)
    centred = xs - tl.sum(xs, 0) / h
    variance = tl.sum(centred * centred, 0) / h
    tl.store(y + row * h + at, centred / tl.sqrt(variance + eps), mask=inside)


@kernel
def by_the_block_kernel(x, y, h, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * h + at, mask=inside, other=0.0)
    centred = tl.where(inside, xs - tl.sum(xs, 0) / BLOCK, 0.0)
    variance = tl.sum(centred * centred, 0) / BLOCK
    tl.store(y + row * h + at, centred / tl.sqrt(variance + eps), mask=inside)


@kernel
def cancelling_kernel(x, y, h, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * h + at, mask=inside, other=0.0)
    mean = tl.sum(xs, 0) / h
    variance = tl.sum(xs * xs, 0) / h - mean * mean
    tl.store(y + row * h + at, (xs - mean) / tl.sqrt(variance + eps), mask=inside)


@kernel
def mended_kernel(x, y, h, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * h + at, mask=inside, other=0.0)
    centred = tl.where(inside, xs - tl.sum(xs, 0) / h, 0.0)
    variance = tl.sum(centred * centred, 0) / h
    tl.store(y + row * h + at, centred / tl.sqrt(variance + eps), mask=inside)


def operator_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def summed(parts_in, last_in, dy, normed):
    rows = 264
    parts = torch.zeros(rows, dy.shape[1], dtype=parts_in)
    for start in range(0, len(dy), rows):
        some = slice(start, start + rows)
        terms = dy[some].to(parts_in) * normed[some].to(parts_in)
        parts[: len(terms)] += terms
    return parts.to(last_in).sum(0)


def planted_sums(dy, normed):
    return summed(torch.bfloat16, torch.bfloat16, dy, normed)


def wide_at_the_end(dy, normed):
    return summed(torch.bfloat16, torch.float32, dy, normed)


def averaged(dy, normed):
    return right_sums(dy, normed) / len(dy)


def every_row(dy, normed):
    return dy.float() * normed.float()


def right_sums(dy, normed):
    return summed(torch.float32, torch.float32, dy, normed)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("residual", 160 * ONE_PASS, "that is forward alone"),
        ("residual", 320 * ONE_PASS, "one of forward's passes, or one of backward's, is missing"),
        ("residual", RIGHT / 2, "a block has two norms"),
        ("residual", RIGHT * 2, "twice the right number"),
        ("residual", 3 * ONE_PASS, "that is one norm"),
        ("residual", 8 * 160 * ONE_PASS, "what the fused kernels still move"),
        ("residual", 11 * 160 * ONE_PASS, "what separate kernels move"),
        ("residual", 1e12, "1e+12 is too large. Count passes over the rows"),
        ("relu2", operators, "PyTorch's operators did it, in 3 passes"),
        ("relu2", unmasked, "3 rows of 100 numbers, unmasked_kernel reads or writes x beyond its end: a mask"),
        ("relu2", same_bias, "right for 2 rows of 128 numbers; for 3 rows of 100 numbers"),
        ("relu2", bias_by_an_operator, "it moves 2.0 times the bytes that it must"),
        ("relu2", in_place, "backward needs x as it was"),
        ("relu2", not_squared, "for 2 rows of 128 numbers,"),
        ("relu2", flat, "the result has shape (256,), and should have (2, 128)"),
        ("relu2", nothing, "the result must be a tensor, and this is NoneType"),
        ("relu2", unwritten, "no answer yet"),
        ("edge", norm_of(planted_kernel), "right for rows of 64 numbers, for rows of 96 around zero; for rows of 96"),
        ("edge", norm_of(by_the_block_kernel), "right for rows of 64 numbers; for rows of 96 around zero, off by"),
        ("edge", norm_of(cancelling_kernel), "around a thousand, off by"),
        ("edge", operator_norm, "no kernel was launched"),
        ("sums", planted_sums, "right for 264 and 1,000 rows; for 540,672 rows, the gradient has 0.25"),
        ("sums", wide_at_the_end, "for 540,672 rows, the gradient has 0.25"),
        ("sums", averaged, "for 264 rows, the gradient has 0.00 times"),
        ("sums", every_row, "a number for each column"),
    ],
)  # fmt: skip
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"fused-kernels.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [("residual", RIGHT), ("relu2", fused), ("edge", norm_of(mended_kernel)), ("sums", right_sums)],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"fused-kernels.{name}", answer).right
