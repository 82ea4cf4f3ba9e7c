"""SwiGLU's kernels beside their twin, in the interpreter; compiled for GPUs that are not here; their bytes counted."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import beside_twin, check_compiles, kept_bytes, on_meta, paired

from playbook.errors import ShapeError
from playbook.kernels import swiglu as kernels
from playbook.kernels.swiglu import swiglu, swiglu_torch
from playbook_book.kernels.sectors import Sectors


@pytest.mark.usefixtures("device")
@paired(n=[1, 63, 65, 257, 2049], dtype=[torch.float32, torch.float16, torch.bfloat16], fused=[False, True])
def test_equals_its_twin(n, dtype, fused):
    """Also of the two halves of one matrix, as a fused projection gives them."""
    torch.manual_seed(n)
    both = torch.randn(3, 2 * n, dtype=dtype) * 2
    gate, up = both.chunk(2, -1) if fused else (both[:, :n].contiguous(), both[:, n:].contiguous())
    beside_twin(swiglu, swiglu_torch, gate, up)


@pytest.mark.usefixtures("device")
def test_gradient():
    gate, up = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(swiglu, (gate, up), fast_mode=True)


def test_keeps_the_gate_and_up_alone():
    gate, up = torch.randn(2, 3, 64, dtype=torch.bfloat16).unbind()
    gate, up = gate.clone().requires_grad_(), up.clone().requires_grad_()
    assert kept_bytes(swiglu, gate, up) == 2 * gate.nbytes
    assert kept_bytes(swiglu_torch, gate, up) == 3 * gate.nbytes


def test_compiles():
    for made in check_compiles(on_meta(swiglu, *2 * [(8192, 14336, torch.bfloat16)])).values():
        assert made.occupancy >= 0.75


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_what_its_formula_says(dtype):
    n = 8192
    gate, up = (torch.randn(n, dtype=dtype, requires_grad=True) for _ in range(2))
    with Sectors() as forward:
        y = swiglu(gate, up)
    with Sectors() as backward:
        y.backward(torch.ones_like(y))
    assert forward.dram.total == kernels.bytes_forward(n, dtype.itemsize)
    assert backward.dram.total == kernels.bytes_backward(n, dtype.itemsize)
    assert forward.efficiency == backward.efficiency == 1


def test_what_is_refused():
    with pytest.raises(ShapeError, match=r"up has shape \(3,\), but must have \(4,\), as gate has"):
        swiglu(torch.ones(4), torch.ones(3))
