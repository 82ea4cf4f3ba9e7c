"""The sum's kernel beside its twin, in the interpreter; compiled for GPUs that are not here; its bytes counted."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import beside_twin, check_compiles, on_meta, paired

from playbook.errors import ShapeError
from playbook_book.kernels import vector_add as kernels
from playbook_book.kernels.sectors import Sectors
from playbook_book.kernels.vector_add import vector_add, vector_add_torch


@pytest.mark.usefixtures("device")
@paired(n=[1, 63, 65, 257, 1024, 2049], dtype=[torch.float32, torch.float16, torch.bfloat16], step=[1, 2])
def test_equals_its_twin(n, dtype, step):
    torch.manual_seed(n)
    beside_twin(vector_add, vector_add_torch, *torch.randn(2, 3, step * n, dtype=dtype)[..., ::step])


@pytest.mark.usefixtures("device")
def test_gradient():
    x, y = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(vector_add, (x, y), fast_mode=True)


def test_compiles():
    launched = on_meta(vector_add, *2 * [(2**32, torch.bfloat16)])
    assert [launch.grid for launch in launched] == [(2**22,)]
    for made in check_compiles(launched).values():
        assert made.occupancy == 1
        assert (
            made.uses("ld.global.v4.b32") == made.uses("ld.global") == 2
        )  # 16 bytes a thread, of x and of y


def test_a_length_that_16_does_not_divide_is_loaded_number_by_number():
    """The mask may end anywhere then, so that a thread may not load what lies side by side in one instruction."""
    launched = on_meta(vector_add, *2 * [(2**32 + 1, torch.bfloat16)])
    for made in check_compiles(launched).values():
        assert made.uses("ld.global.v4.b32") == 0
        assert made.uses("ld.global.b16") == 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_what_its_formula_says(dtype):
    n = 8192
    x, y = torch.randn(2, n, dtype=dtype, requires_grad=True)
    with Sectors() as forward:
        z = vector_add(x, y)
    with Sectors() as backward:
        z.backward(torch.ones_like(z))
    assert forward.dram.total == kernels.bytes_forward(n, dtype.itemsize)
    assert backward.dram.total == kernels.bytes_backward(n, dtype.itemsize) == 0
    assert forward.efficiency == 1


def test_what_is_refused():
    with pytest.raises(ShapeError, match=r"y has shape \(3,\), but must have \(4,\), as x has"):
        vector_add(torch.ones(4), torch.ones(3))
