"""Which operators give a row other bits when others are computed with it: measured, PyTorch's beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook_book.sampling import invariant

Operator = Callable[..., Tensor]


class Case(NamedTuple):
    """An operator, what changes, and the same values computed both ways: by PyTorch, and by ours."""

    name: str
    change: str
    theirs: tuple[Tensor, Tensor]
    ours: tuple[Tensor, Tensor]


def cases(seed: int = 0) -> Iterator[Case]:
    """Sizes of the chapter's model: 64 features, 160 in the MLP, 4 heads of 16."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator)
    x, w, ones = draw(64, 64), draw(160, 64), torch.ones(64)
    product = partial(invariant.product, w=w, chunks=4)
    for n in (1, 2, 4, 16):
        rows = f"{n} row{'s' * (n > 1)} of 64"
        yield Case("x·Wᵀ", rows, *_rows(partial(F.linear, weight=w), product, x, slice(5, 5 + n)))
    norm: dict[str, Any] = {"weight": ones, "eps": 1e-6}
    theirs = partial(F.rms_norm, normalized_shape=(64,), **norm)
    one = slice(5, 6)
    yield Case(
        "RMSNorm", "1 row of 64", *_rows(theirs, partial(invariant.InvariantOps().rms_norm, **norm), x, one)
    )
    softmax = partial(torch.log_softmax, dim=-1)
    yield Case("log softmax", "1 row of 64", *_rows(softmax, invariant.log_softmax, x, one))
    for name, own in (("silu", F.silu), ("gelu", partial(F.gelu, approximate="tanh"))):
        ours = partial(invariant.activate, kind=name)
        yield Case(name, "3 elements at a time", *(_pieces(f, 2 * x.flatten()) for f in (own, ours)))
    q, k, v = draw(3, 1, 4, 64, 16)
    for change, n, m in (("the first 31 of 64 tokens", 0, 31), ("one token, 40 keys cached", 39, 40)):
        yield Case(
            "attention", change, *(_tokens(core, q, k, v, n, m) for core in (_sdpa, invariant.attention))
        )
    sums = (lambda a, b, _: a @ b.t(), sum), (invariant.product, invariant.tree)
    yield Case("sum over ranks", "tp=2 and tp=4", *(_over_ranks(x, w, *how) for how in sums))


def _rows(theirs: Operator, ours: Operator, x: Tensor, some: slice) -> list[tuple[Tensor, Tensor]]:
    return [(one(x)[some], one(x[some].clone())) for one in (theirs, ours)]


def _pieces(operator: Operator, x: Tensor) -> tuple[Tensor, Tensor]:
    return operator(x), torch.cat([operator(some.clone()) for some in x.split(3)])


def _tokens(core: Operator, q: Tensor, k: Tensor, v: Tensor, n: int, m: int) -> tuple[Tensor, Tensor]:
    some = (t.clone() for t in (q[:, :, n:m], k[:, :, :m], v[:, :, :m]))
    return core(q, k, v, causal=True)[:, :, n:m], core(*some, causal=n == 0)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _over_ranks(x: Tensor, w: Tensor, product: Any, add: Any) -> tuple[Tensor, Tensor]:
    """x·Wᵀ, the inner dim cut over 2 ranks, and over 4."""
    two, four = (
        add([product(a, b, 4 // n) for a, b in zip(x.chunk(n, 1), w.chunk(n, 1), strict=True)])
        for n in (2, 4)
    )
    return two, four


def table_of_operators(seed: int = 0) -> list[list[str]]:
    """A row for each case: what it is, what changes, and the share of values with other bits: PyTorch's, by how much
    these differ at most relative to the largest value, and ours."""
    rows = []
    for case in cases(seed):
        a, b = case.theirs
        worst = float((a - b).abs().max() / a.abs().max())
        shares = [f"{float((one != other).float().mean()):.0%}" for one, other in (case.theirs, case.ours)]
        rows.append([case.name, case.change, shares[0], f"{worst:.0e}" if worst else "0", shares[1]])
    return rows
