"""Exercises of the chapter on writing kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers_made, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "writing-kernels.saved",
    "microseconds that a fused gate saves",
    praise="eight passes over memory become four",
    otherwise="Which tensors does each operator read and write?",
    tolerance=5e-3,
)
def saved() -> tuple[float, dict[float, str]]:
    from playbook.hardware import ACCELERATORS

    # µs to read or to write one tensor
    once = 8 * 4096 * 4096 * 2 / ACCELERATORS["h100"].memory_bandwidth * 1e6
    return 4 * once, {
        8 * once: "that is what the three operators take: how long does the one kernel take?",
        6 * once: "the one kernel, too, reads three tensors",
        2 * once: "a product of two tensors reads both, and so does a sum",
        8 * once * 2: "a number in bf16 has two bytes",
        4 * once / 1e6: "almost: count in microseconds",
        4 * once / 1e3: "almost: count in microseconds",
    }


@exercise("writing-kernels.bias-gelu", "function", "a bias and GELU in one kernel")
def bias_gelu(write: Callable[..., Any]) -> str:
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    cases = [
        ((1, 8), torch.float32),
        ((3, 5), torch.float32),
        ((33, 129), torch.float32),
        ((5, 300), torch.float16),
    ]
    for shape, dtype in cases:
        x, bias = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
        case = f"x of {shape[0]} × {shape[1]} in {'fp32' if dtype == torch.float32 else 'fp16'}"
        before, exact = x.clone(), x.double() + bias.double()
        y, started = _run(write, case, x, bias)
        if not torch.equal(x, before):
            raise NotYet(f"{case}: x itself was changed, and others may still need it")
        if started != 1:
            raise NotYet(f"{case}: {started or 'no'} kernels of Triton were launched, and one can do it all")
        _like(y, x, case)
        off = _off(y, F.gelu(exact))
        if off <= (1e-5 if dtype == torch.float32 else 2e-3):
            continue
        for wrong, hint in (
            (
                F.gelu(exact, approximate="tanh"),
                "that is the approximation with tanh; here GELU has the error function",
            ),
            (F.gelu(x.double()) + bias.double(), "the bias belongs inside: GELU is of the sum"),
            (F.gelu(x.double()), "the bias is missing"),
        ):
            if _off(y, wrong) <= 1e-5:
                raise NotYet(f"{case}: {hint}")
        raise NotYet(f"{case}: off by {off:.1e} of the largest number")
    return "one read of x, one write of y, in fp32 and fp16, at the edges too"


@answers_made("writing-kernels.bias-gelu")
def _gelus() -> tuple[list[Any], dict[str, Any]]:
    import torch

    from playbook_book.exercises.writing_kernels_kernels import fused, with_tanh

    return [fused], {
        "x of 1 × 8 in fp32: a program reads or writes beyond the end": partial(fused, mask=False),
        "the bias belongs inside": partial(fused, inside=0),
        "the bias is missing": lambda x, bias: fused(x, bias * 0),
        "x itself was changed": lambda x, bias: fused(x, bias, y=x),
        "x of 1 × 8 in fp32: off by": partial(fused, by_row=True),
        "no kernels of Triton were launched": lambda x, bias: torch.nn.functional.gelu(x + bias),
        "the approximation with tanh": with_tanh,
        "2 kernels of Triton were launched": lambda x, bias: [fused(x, bias) for _ in range(2)],
        "x of 5 × 300 in fp16: expected a tensor of (5, 300) in torch.float16": (
            lambda x, bias: fused(x, bias).float()
        ),
    }


@exercise("writing-kernels.stride", "repair", "sums of rows that are right on square matrices")
def stride(mended: Callable[..., Any]) -> str:
    import torch

    torch.manual_seed(0)
    whole = torch.randn(8, 12)
    cases = {
        "8 × 8": whole[:, :8].contiguous(),
        "5 × 7": whole[:5, :7].contiguous(),
        "7 × 5": whole[:7, :5].contiguous(),
        "the first 8 columns of an 8 × 12 matrix": whole[:, :8],
        "the transpose of an 8 × 12 matrix": whole.T,
    }
    for name, x in cases.items():
        found, started = _run(mended, name, x)
        if not started:
            raise NotYet(f"{name}: no kernel of Triton was launched")
        _like(found, x[:, 0], name)
        wrong = (found.double() - x.double().sum(1)).abs() > 1e-5
        if rows := int(wrong.sum()):
            raise NotYet(
                f"{name}: {rows} of {len(x)} sums are wrong. How far apart are two rows, and two columns?"
            )
    return "rows begin where the tensor says that they do"


@answers_made("writing-kernels.stride")
def _sums_of_rows() -> tuple[list[Any], dict[str, Any]]:
    from playbook_book.exercises.writing_kernels_kernels import sums

    return [sums, lambda x: sums(x.contiguous())], {
        "5 × 7: 4 of 5 sums are wrong": partial(sums, strides=lambda x: (len(x), 1)),
        "the first 8 columns of an 8 × 12 matrix: 7 of 8": partial(sums, strides=lambda x: (x.shape[1], 1)),
        "the transpose of an 8 × 12 matrix: ": partial(sums, strides=lambda x: (x.stride(0), 1)),
        "8 × 8: 8 of 8 sums are wrong": lambda x: sums(x.t().contiguous()),
        "8 × 8: no kernel of Triton was launched": lambda x: None,
    }


def _run(function: Callable[..., Any], case: str, *given: Tensor) -> tuple[Any, int]:
    """What ``function`` returns, and how many kernels it launched; NotYet where one leaves its tensors."""
    from triton.runtime.errors import InterpreterError

    from playbook.kernels.jit import launches
    from playbook_book.kernels.sectors import Sectors

    try:
        with launches() as started, Sectors():
            return function(*given), len(started)
    except InterpreterError as error:
        if "LookupError" not in str(error):
            raise
        raise NotYet(f"{case}: a program reads or writes beyond the end of a tensor") from error


def _like(y: Any, x: Tensor, case: str) -> None:
    from torch import Tensor

    if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
        told = f"{tuple(y.shape)} in {y.dtype}" if isinstance(y, Tensor) else repr(y)
        raise NotYet(f"{case}: expected a tensor of {tuple(x.shape)} in {x.dtype}, got {told}")


def _off(y: Tensor, right: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    off = float((y.double() - right).abs().max() / right.abs().max())
    return off if math.isfinite(off) else math.inf
