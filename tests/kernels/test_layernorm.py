"""LayerNorm's kernels beside their twin, in the interpreter; compiled for GPUs that are not here; their bytes counted."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import beside_twin, check_compiles, kept_bytes, on_meta, paired

from playbook.errors import ShapeError
from playbook.kernels import layernorm as kernels
from playbook.kernels.layernorm import layer_norm, layer_norm_torch
from playbook.model.norms import LayerNorm
from playbook_book.kernels.sectors import Sectors


@pytest.mark.usefixtures("device")
@paired(
    h=[3, 63, 65, 257], dtype=[torch.float32, torch.float16, torch.bfloat16], step=[1, 2], bias=[False, True]
)
def test_equals_its_twin(h, dtype, step, bias):
    torch.manual_seed(h)
    x = torch.randn(2, 3, step * h, dtype=dtype)[..., ::step]
    beside_twin(layer_norm, layer_norm_torch, x, *torch.randn(1 + bias, h))


@pytest.mark.usefixtures("device")
def test_a_single_column_is_its_bias():
    y = layer_norm(torch.randn(3, 1), torch.randn(1), torch.tensor([0.5]))
    assert y.tolist() == [[0.5]] * 3


@pytest.mark.usefixtures("device")
def test_rows_beyond_the_programs_of_backward(monkeypatch):
    monkeypatch.setattr(kernels, "programs", lambda n, h: 3)
    beside_twin(layer_norm, layer_norm_torch, torch.randn(7, 5), *torch.randn(2, 5))


@pytest.mark.usefixtures("device")
def test_far_from_zero_nothing_cancels():
    torch.manual_seed(0)
    x = torch.randn(4, 257) + 1000
    beside_twin(layer_norm, layer_norm_torch, x, *torch.randn(2, 257), tolerance=2e-4)


@pytest.mark.usefixtures("device")
def test_gradients():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer_norm, (x, weight, bias), fast_mode=True)
    assert torch.autograd.gradcheck(layer_norm, (x, weight), fast_mode=True)


def test_keeps_as_much_as_the_books_layer():
    x, layer = torch.randn(4, 64, requires_grad=True), LayerNorm(64)
    own = kept_bytes(lambda x, *_: layer(x), x, *layer.parameters())
    assert kept_bytes(layer_norm, x, *layer.parameters()) == own == x.nbytes + 2 * 4 * 4


@pytest.mark.parametrize("h", [768, 8192])
@pytest.mark.parametrize("bias", [False, True])
def test_compiles_without_spills(h, bias):
    launched = on_meta(layer_norm, (8192, h, torch.bfloat16), *(1 + bias) * [(h, torch.float32)])
    assert len(launched) == 2
    for made in check_compiles(launched).values():
        assert (
            made.occupancy >= 0.25
        )  # measured: 16 numbers a thread are faster than 8, though half as many fit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_moves_what_its_formula_says(dtype, bias):
    n, h, c = 32, 256, dtype.itemsize
    x = torch.randn(n, h, dtype=dtype, requires_grad=True)
    parameters = [torch.randn(h, requires_grad=True) for _ in range(1 + bias)]
    with Sectors() as forward:
        y = layer_norm(x, *parameters)
    with Sectors() as backward:
        y.backward(torch.randn_like(y))
    assert forward.dram.total == kernels.bytes_forward(n, h, c, bias=bias)
    assert backward.dram.total == kernels.bytes_backward(n, h, c, bias=bias)
    assert forward.efficiency > 0.9  # 4 bytes of the sectors with a row's statistics are needed


def test_what_is_refused():
    with pytest.raises(
        ShapeError, match=r"weight has shape \(3,\), but must have \(4,\), a number for each col"
    ):
        layer_norm(torch.ones(2, 4), torch.ones(3))
    with pytest.raises(
        ShapeError, match=r"bias has shape \(3,\), but must have \(4,\), a number for each column"
    ):
        layer_norm(torch.ones(2, 4), torch.ones(4), torch.ones(3))
