"""Wrong answers that readers of the chapter on writing kernels may well give, and what they are told."""

import pytest
import torch
import torch.nn.functional as F
import triton.language as tl

from playbook.kernels.jit import cdiv, kernel
from playbook_book.exercises import grade

ONCE = 8 * 4096 * 4096 * 2 / 3.35e6  # µs


@kernel
def gelu_kernel(x, bias, y, n, width, BLOCK: tl.constexpr, MASK: tl.constexpr, INSIDE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < n) | (not MASK)
    z = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + at % width, mask=inside, other=0.0).to(tl.float32)
    z += b * INSIDE
    result = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    tl.store(y + at, result + b * (1 - INSIDE), mask=inside)


@kernel
def bias_of_row_kernel(x, bias, y, n, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside, other=0.0) + tl.load(bias + at // width, mask=inside, other=0.0)
    tl.store(y + at, 0.5 * z * (1 + tl.erf(z * 0.7071067811865476)), mask=inside)


@kernel
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def fused(x, bias, mask=True, inside=1, y=None):
    y = torch.empty_like(x) if y is None else y
    n, width = x.numel(), x.shape[1]
    gelu_kernel[(cdiv(n, 256),)](x, bias, y, n, width, BLOCK=256, MASK=mask, INSIDE=inside)
    return y


def without_mask(x, bias):
    return fused(x, bias, mask=False)


def bias_outside(x, bias):
    return fused(x, bias, inside=0)


def bias_missing(x, bias):
    return fused(x, torch.zeros_like(bias))


def in_place(x, bias):
    return fused(x, bias, y=x)


def bias_by_rows(x, bias):
    y = torch.empty_like(x)
    bias_of_row_kernel[(cdiv(x.numel(), 256),)](x, bias, y, x.numel(), x.shape[1], BLOCK=256)
    return y


def pytorchs(x, bias):
    return F.gelu(x + bias)


def with_tanh(x, bias):
    fused(x, bias)
    return F.gelu(x + bias, approximate="tanh")


def in_two(x, bias):
    fused(x, bias)
    return fused(x, bias)


def always_fp32(x, bias):
    return fused(x, bias, y=torch.empty(x.shape))


@kernel
def lse_kernel(x, out, width, BLOCK: tl.constexpr, HOW: tl.constexpr):
    row = tl.program_id(0)
    peak, total = float("-inf"), 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        scores = tl.load(x + row * width + at, mask=at < width, other=float("-inf"))
        if HOW == "none":
            peak = 0.0
            total += tl.sum(tl.exp(scores), 0)
        elif HOW == "block":
            peak = tl.max(scores, 0)
            total += tl.sum(tl.exp(scores - peak), 0)
        elif HOW == "not rescaled":
            peak = tl.maximum(peak, tl.max(scores, 0))
            total += tl.sum(tl.exp(scores - peak), 0)
        else:
            higher = tl.maximum(peak, tl.max(scores, 0))
            total = total * tl.exp(peak - higher) + tl.sum(tl.exp(scores - higher), 0)
            peak = higher
    tl.store(out + row, peak + tl.log(total))


def lse(how):
    def logsumexp(x):
        out = torch.empty(len(x))
        lse_kernel[(len(x),)](x, out, x.shape[1], BLOCK=64, HOW=how)
        return out

    return logsumexp


@kernel
def sums_kernel(x, out, columns, apart, beside, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    numbers = tl.load(x + row * apart + at * beside, mask=at < columns, other=0.0)
    tl.store(out + row, tl.sum(numbers, 0))


def sums(strides):
    def row_sums(x):
        out = torch.empty(len(x))
        sums_kernel[(len(x),)](x, out, x.shape[1], *strides(x), BLOCK=16)
        return out

    return row_sums


def nothing(x):
    return None


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("saved", 8 * ONCE, "how long does the one kernel take"),
        ("saved", 6 * ONCE, "the one kernel, too, reads three tensors"),
        ("saved", 2 * ONCE, "a product of two tensors reads both"),
        ("saved", ONCE / 7, "too small"),
        ("saved", 4 * ONCE / 1e6, "count in microseconds"),
        ("saved", 1e9, "Which tensors does each operator read and write"),
        ("bias-gelu", without_mask, "x of 1 × 8 in fp32: a program reads or writes beyond the end"),
        ("bias-gelu", bias_outside, "the bias belongs inside"),
        ("bias-gelu", bias_missing, "the bias is missing"),
        ("bias-gelu", in_place, "x itself was changed"),
        ("bias-gelu", bias_by_rows, "x of 1 × 8 in fp32: off by"),
        ("bias-gelu", pytorchs, "no kernels of Triton were launched"),
        ("bias-gelu", with_tanh, "the approximation with tanh"),
        ("bias-gelu", in_two, "2 kernels of Triton were launched"),
        ("bias-gelu", always_fp32, "x of 5 × 300 in fp16: expected a tensor of (5, 300) in torch.float16"),
        ("maximum", lse("none"), "scores around 1000: the result is inf"),
        ("maximum", lse("block"), "rows of five blocks whose first holds the maximum: off by"),
        ("maximum", lse("not rescaled"), "rows of five blocks: off by"),
        ("maximum", lambda x: torch.logsumexp(x, 1), "no kernel of Triton was launched"),
        ("stride", sums(lambda x: (len(x), 1)), "5 × 7: 4 of 5 sums are wrong"),
        (
            "stride",
            sums(lambda x: (x.shape[1], 1)),
            "the first 8 columns of an 8 × 12 matrix: 7 of 8 sums are wrong",
        ),
        ("stride", sums(lambda x: (x.stride(0), 1)), "the transpose of an 8 × 12 matrix: "),
        ("stride", sums(lambda x: (x.stride(1), x.stride(0))), "8 × 8: 8 of 8 sums are wrong"),
        ("stride", nothing, "8 × 8: no kernel of Triton was launched"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"writing-kernels.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("saved", 4 * ONCE),
        ("bias-gelu", fused),
        ("maximum", lse("running")),
        ("stride", sums(lambda x: x.stride())),
        ("stride", lambda x: sums(lambda x: x.stride())(x.contiguous())),
    ],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"writing-kernels.{name}", answer).right


def test_what_else_goes_wrong_in_a_kernel_is_not_hidden():
    from triton.runtime.errors import InterpreterError

    def divides_by_none(x):
        copy_kernel[(1,)](x, x, None, BLOCK=8)

    with pytest.raises(InterpreterError):
        grade("writing-kernels.stride", divides_by_none)
