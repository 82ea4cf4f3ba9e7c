"""RMSNorm's kernels beside their twins, in the interpreter; compiled for GPUs that are not here; their bytes counted."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import beside_twin, check_compiles, kept_bytes, on_meta, paired
from torch import Tensor

from playbook.errors import ShapeError
from playbook.kernels import rmsnorm as kernels
from playbook.kernels.rmsnorm import add_rms_norm, add_rms_norm_torch, rms_norm, rms_norm_torch
from playbook.model.norms import RMSNorm
from playbook_book.kernels.sectors import Sectors

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rows_of(h: int, *shape: int, dtype: torch.dtype, step: int) -> Tensor:
    """Random rows; single numbers away from zero, where what is left of their norm's gradient is rounding alone."""
    torch.manual_seed(h)
    x = torch.randn(*shape, step * h, dtype=dtype)
    return (x.abs() + 1 if h == 1 else x)[..., ::step]


def both(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return torch.stack(add_rms_norm(x, residual, weight))


def both_torch(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return torch.stack(add_rms_norm_torch(x, residual, weight))


@pytest.mark.usefixtures("device")
@paired(rows=[(1,), (7,), (2, 3)], h=[1, 63, 65, 257], dtype=DTYPES, step=[1, 2])
def test_equals_its_twin(rows, h, dtype, step):
    beside_twin(rms_norm, rms_norm_torch, rows_of(h, *rows, dtype=dtype, step=step), torch.randn(h))


@pytest.mark.usefixtures("device")
@paired(h=[1, 63, 65, 257], dtype=DTYPES, step=[1, 2])
def test_with_a_residual_equals_its_twin(h, dtype, step):
    x, residual = rows_of(h, 2, 3, dtype=dtype, step=step)
    beside_twin(both, both_torch, x, residual, torch.randn(h))


@pytest.mark.usefixtures("device")
def test_rows_beyond_the_programs_of_backward(monkeypatch):
    monkeypatch.setattr(kernels, "programs", lambda n, h: 3)
    beside_twin(rms_norm, rms_norm_torch, torch.randn(7, 4), torch.randn(4))


@pytest.mark.usefixtures("device")
def test_a_gradient_of_the_sum_whose_rows_lie_apart():
    torch.manual_seed(0)
    given = [torch.randn(7, 65), torch.randn(7, 65), torch.randn(65)]
    ds, dy = torch.randn(7, 200)[:, 3:68], torch.randn(7, 65)
    found = []
    for function, dtype in ((add_rms_norm, torch.float32), (add_rms_norm_torch, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        total, y = function(*leaves)
        found.append(torch.autograd.grad((total, y), leaves, (ds.to(dtype), dy.to(dtype))))
        assert dtype == torch.float64 or ds.stride(0) == 200
    for ours, twin in zip(*found, strict=True):
        torch.testing.assert_close(ours, twin.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("device")
def test_gradients():
    x, residual = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rms_norm, (x, weight), fast_mode=True)
    assert torch.autograd.gradcheck(add_rms_norm, (x, residual, weight), fast_mode=True)


def test_keeps_as_much_as_the_books_layer():
    x, layer = torch.randn(4, 64, requires_grad=True), RMSNorm(64)
    assert kept_bytes(rms_norm, x, layer.weight) == kept_bytes(lambda x, _: layer(x), x, layer.weight)
    assert kept_bytes(add_rms_norm, x, x, layer.weight) == x.nbytes + 4 * 4


@pytest.mark.parametrize("h", [64, 8192])
def test_compiles_without_spills(h):
    x, weight = (8192, h, torch.bfloat16), (h, torch.float32)
    plain, added = on_meta(rms_norm, x, weight), on_meta(both, x, x, weight)
    assert len(plain) == len(added) == 2
    for made in check_compiles([*plain, *added]).values():
        assert made.occupancy >= 0.5


@pytest.mark.parametrize(
    ("n", "h", "dtype", "residual"),
    [
        (32, 256, torch.float32, False),
        (32, 256, torch.bfloat16, False),
        (32, 256, torch.float32, True),
        (40, 64, torch.bfloat16, True),  # more rows than programs of backward
    ],
)
def test_moves_what_its_formula_says(n, h, dtype, residual, monkeypatch):
    monkeypatch.setattr(kernels, "programs", lambda n, h: min(n, 32))
    c = dtype.itemsize
    x, other = (torch.randn(n, h, dtype=dtype, requires_grad=True) for _ in range(2))
    weight = torch.randn(h, requires_grad=True)
    with Sectors() as forward:
        y = both(x, other, weight) if residual else rms_norm(x, weight)
    with Sectors() as backward:
        y.backward(torch.randn_like(y))
    assert forward.dram.total == kernels.bytes_forward(n, h, c, residual=residual)
    assert backward.dram.total == kernels.bytes_backward(n, h, c, residual=residual)
    assert forward.efficiency > 0.9  # 4 bytes of the sector with a row's statistic are needed


def test_what_is_refused():
    with pytest.raises(
        ShapeError, match=r"weight has shape \(3,\), but must have \(4,\), a number for each col"
    ):
        rms_norm(torch.ones(2, 4), torch.ones(3))
    with pytest.raises(ShapeError, match=r"residual has shape \(1, 4\), but must have \(2, 4\), as x has"):
        add_rms_norm(torch.ones(2, 4), torch.ones(1, 4), torch.ones(4))
