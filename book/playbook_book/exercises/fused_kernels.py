"""Exercises of the chapter on fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers_made, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "fused-kernels.residual",
    "bytes that fusing residuals with norms saves in a step of Llama 3 70B",
    praise="one pass fewer in forward and two in backward, for each of 160 norms",
    otherwise="Count passes over the rows: separate and fused, forward and backward.",
)
def residual() -> tuple[float, dict[float, str]]:
    from playbook.shapes import load

    llama = load("llama3-70b")
    one_pass = 8192 * llama.hidden * 2
    norms = 2 * llama.layers
    right = 3 * norms * one_pass
    return right, {
        norms * one_pass: "that is forward alone: in backward, two gradients meet where the sum was",
        2 * norms * one_pass: "almost: one of forward's passes, or one of backward's, is missing",
        right / 2: "half: a block has two norms, and a number in bf16 has two bytes",
        right * 2: "twice the right number: a number in bf16 has two bytes",
        right / norms: "that is one norm; the model has two in each of its blocks",
        8 * norms * one_pass: "that is what the fused kernels still move, in both directions",
        11 * norms * one_pass: "that is what separate kernels move, in both directions",
    }


@exercise("fused-kernels.relu2", "function", "a bias and a squared ReLU in one kernel")
def relu2(write: Callable[..., Any]) -> str:
    import torch

    passed: list[str] = []
    for n, f in ((2, 128), (3, 100), (5, 1030), (32, 256)):
        made = torch.Generator().manual_seed(f)
        x, bias = torch.randn(n, f, generator=made), torch.randn(f, generator=made)
        case = f"{n} rows of {f} numbers"
        y, moved = _counted(write, x, bias, case)
        right = (x + bias).clamp(min=0).square()
        if y.shape != right.shape:
            raise NotYet(
                f"{case}: the result has shape {tuple(y.shape)}, and should have {tuple(right.shape)}"
            )
        wrong = int((~torch.isclose(y, right, atol=1e-6)).sum())
        if wrong:
            lead = f"right for {' and '.join(passed)}; for " if passed else "for "
            raise NotYet(f"{lead}{case}, {wrong} of {n * f} numbers are wrong")
        passed.append(case)
    least = 4 * (2 * n * f + f)  # of the last case, whose sizes fill whole sectors
    if moved > 1.02 * least:
        raise NotYet(
            f"all numbers are right, but for {case} it moves {moved / least:.1f} times the bytes that it must"
        )
    return "each number is read once and written once, whatever happens to it on the chip"


def _counted(write: Callable[..., Any], x: Tensor, bias: Tensor, case: str) -> tuple[Tensor, int]:
    """What ``write`` makes of x and bias, and the bytes that its kernels and PyTorch's operators move."""
    import torch
    from triton.runtime.errors import InterpreterError

    from playbook.instruments.measure import operations
    from playbook_book.kernels.sectors import Sectors

    given, sizes = x.clone(), (x.to("meta"), bias.to("meta"))
    try:
        with Sectors() as counted:
            y = write(x, bias)
    except InterpreterError as error:
        cause = error.__cause__
        if isinstance(cause, LookupError):
            raise NotYet(f"for {case}, {cause}: a mask is missing") from None
        raise (cause or error) from None
    if not isinstance(y, torch.Tensor):
        raise NotYet(f"the result must be a tensor, and this is {type(y).__name__}")
    others = operations(lambda: write(*sizes))  # kernels do not run there
    if not counted.requests:
        raise NotYet(f"no kernel was launched: PyTorch's operators did it, in {len(others)} passes")
    if not torch.equal(x, given):
        raise NotYet("the right place for the result is a new tensor: backward needs x as it was")
    return y, counted.dram.total + sum(one.bytes for one in others)


@answers_made("fused-kernels.relu2")
def _relu2s() -> tuple[list[Any], dict[str, Any]]:
    from torch.nn.functional import pad

    from playbook_book.exercises.fused_kernels_kernels import relu2, unwritten

    return [relu2], {
        "PyTorch's operators did it, in 3 passes": lambda x, bias: (x + bias).relu().square(),
        "3 rows of 100 numbers, relu2_kernel reads or writes x beyond its end: a mask": partial(
            relu2, mask=False
        ),
        "right for 2 rows of 128 numbers; for 3 rows of 100 numbers": (
            lambda x, bias: relu2(x, pad(bias, (0, 128 - len(bias))))
        ),
        "it moves 2.0 times the bytes that it must": lambda x, bias: relu2(x + bias, bias * 0),
        "backward needs x as it was": lambda x, bias: relu2(x, bias, y=x),
        "for 2 rows of 128 numbers, 1": lambda x, bias: relu2(x, bias).sqrt(),
        "the result has shape (256,), and should have (2, 128)": lambda x, bias: relu2(x, bias).flatten(),
        "the result must be a tensor, and this is list": lambda x, bias: [relu2(x, bias)],
        "no answer yet": unwritten,
    }


@exercise("fused-kernels.edge", "repair", "a LayerNorm that is right for some lengths of rows")
def edge(mended: Callable[..., Any]) -> str:
    import torch
    import torch.nn.functional as F

    from playbook.kernels.jit import launches

    passed: list[str] = []
    for h, mean, case in (
        (64, 3.0, "rows of 64 numbers"),
        (96, 0.0, "rows of 96 around zero"),
        (96, 3.0, "rows of 96 around three"),
        (100, 1000.0, "rows of 100 around a thousand"),
    ):
        x = torch.randn(3, h, generator=torch.Generator().manual_seed(h), dtype=torch.float64)
        x = (x - x.mean(-1, keepdim=True) + mean).float()
        with launches() as found:
            y = mended(x.clone())
        if not found:
            raise NotYet("no kernel was launched, and the kernel is what is to be mended")
        off = float((y - F.layer_norm(x.double(), (h,), eps=1e-5)).norm()) / (3 * h) ** 0.5
        if not off < 1e-3:
            lead = f"right for {', for '.join(passed)}; for " if passed else "for "
            why = "; mean(x²) − mean(x)² cancels there" if mean == 1000 else ""
            raise NotYet(f"{lead}{case}, off by {off:.0%} of a standard deviation{why}")
        passed.append(case)
    return "whatever the length of a row, only its own numbers count"


@answers_made("fused-kernels.edge")
def _norms() -> tuple[list[Any], dict[str, Any]]:
    from playbook_book.exercises.fused_kernels_kernels import norm

    return [norm], {
        "right for rows of 64 numbers, for rows of 96 around zero; for rows of 96": partial(
            norm, how="planted"
        ),
        "right for rows of 64 numbers; for rows of 96 around zero, off by": partial(norm, how="of a block"),
        "around a thousand, off by": partial(norm, how="cancelling"),
        "no kernel was launched": lambda x: (x - x.mean(1, True)) / x.std(1, correction=0, keepdim=True),
    }
