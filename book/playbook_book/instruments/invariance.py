"""Which operators give a row other bits when others are computed with it: measured, PyTorch's beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.training import invariant

Operator = Callable[[Tensor], Tensor]


def _matrices(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(64, 64, generator=generator), torch.randn(160, 64, generator=generator)


def pairs(seed: int = 0) -> Iterator[tuple[Any, ...]]:
    """What is computed, what changes, and the same values computed both ways: by PyTorch, then by batch-invariant
    operators."""
    generator = torch.Generator().manual_seed(seed)
    x, w = _matrices(generator)
    ops = invariant.InvariantOps()

    def product(rows: Tensor) -> Tensor:
        return invariant.product(rows, w, 4)

    for n in (1, 2, 4, 16):
        some = f"{n} row{'s' * (n > 1)} of 64"
        yield "x·Wᵀ", some, *_both(lambda rows: F.linear(rows, w), x, n), *_both(product, x, n)
    ones = torch.ones(64)
    ours: Operator = lambda rows: ops.rms_norm(rows, ones, 1e-6)  # noqa: E731
    yield (
        "RMSNorm",
        "1 row of 64",
        *_both(lambda r: F.rms_norm(r, (64,), ones, 1e-6), x, 1),
        *_both(ours, x, 1),
    )
    odd = x.flatten()[:1003]
    for name, theirs in (("silu", F.silu), ("gelu", lambda t: F.gelu(t, approximate="tanh"))):
        mine: Operator = lambda t, name=name: invariant.activate(t, name)  # noqa: E731
        yield name, "the last 7 of 1,003", *_last(theirs, odd), *_last(mine, odd)
    yield (
        "log softmax",
        "1 row of 64",
        *_both(lambda r: r.log_softmax(-1), x, 1),
        *_both(invariant.log_softmax, x, 1),
    )
    q, k, v = torch.randn(3, 1, 4, 64, 16, generator=generator)
    for name, n, m in (("the first 31 of 64 tokens", 0, 31), ("one token, 40 keys cached", 39, 40)):
        found = [part for core in (_sdpa, invariant.attention) for part in _some(core, q, k, v, n, m)]
        yield "attention", name, *found
    parts = torch.stack([a @ b.t() for a, b in zip(x.chunk(4, 1), w.chunk(4, 1), strict=True)])
    halves = torch.stack([a @ b.t() for a, b in zip(x.chunk(2, 1), w.chunk(2, 1), strict=True)])
    exact = [invariant.tree([invariant.product(a, b, 4 // n) for a, b in zip(x.chunk(n, 1), w.chunk(n, 1), strict=True)])
             for n in (2, 4)]  # fmt: skip
    yield "sum over ranks", "tp = 2 and 4", halves.sum(0), parts.sum(0), *exact


def _both(operator: Operator, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return operator(x)[5 : 5 + n], operator(x[5 : 5 + n].clone())


def _last(operator: Operator, x: Tensor) -> tuple[Tensor, Tensor]:
    return operator(x)[-7:], operator(x[-7:].clone())


def _some(
    core: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, n: int, m: int
) -> tuple[Tensor, Tensor]:
    whole = core(q, k, v, causal=True)[:, :, n:m]
    return whole, core(*(t.clone() for t in (q[:, :, n:m], k[:, :, :m], v[:, :, :m])), causal=not n)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def table_of_operators(seed: int = 0) -> list[list[str]]:
    """A row for each operator: what it is, what changes, and the share of values with other bits: PyTorch's, by how much
    these differ at most relative to the largest value, and ours."""
    rows = []
    for name, change, a, b, ours, also in pairs(seed):
        worst = float((a - b).abs().max() / a.abs().max())
        rows.append([name, change, _share(a, b), f"{worst:.0e}" if worst else "0", _share(ours, also)])
    return rows


def _share(a: Tensor, b: Tensor) -> str:
    return f"{float((a != b).float().mean()):.0%}"
