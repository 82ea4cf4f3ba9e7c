"""ELU's kernels beside their twin, in the interpreter; compiled for GPUs that are not here; their bytes counted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_checks import beside_twin, check_compiles, kept_bytes, on_meta, paired

from playbook_book.kernels import elu as kernels
from playbook_book.kernels.elu import elu, elu_torch
from playbook_book.kernels.sectors import Sectors


@pytest.mark.usefixtures("device")
@paired(
    n=[1, 63, 65, 257, 2049],
    dtype=[torch.float32, torch.float16, torch.bfloat16],
    step=[1, 2],
    alpha=[1.0, 0.3],
)
def test_equals_its_twin(n, dtype, step, alpha):
    torch.manual_seed(n)
    beside_twin(elu, elu_torch, 3 * torch.randn(3, step * n, dtype=dtype)[:, ::step], alpha)


@pytest.mark.usefixtures("device")
def test_the_twin_is_pytorchs_and_far_numbers_stay_finite():
    x = torch.tensor([-200.0, -1.0, -0.0, 0.0, 1.0, 200.0])
    torch.testing.assert_close(elu(x), F.elu(x))
    torch.testing.assert_close(elu_torch(x[1:5]), F.elu(x[1:5]))


@pytest.mark.usefixtures("device")
def test_gradient():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(elu, (x, 0.5), fast_mode=True)


def test_keeps_its_input_alone():
    x = torch.randn(3, 65, requires_grad=True)
    assert kept_bytes(elu, x) == kept_bytes(F.elu, x) == x.nbytes


def test_compiles():
    for made in check_compiles(on_meta(elu, (2**30, torch.bfloat16))).values():
        assert made.occupancy == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_what_its_formula_says(dtype):
    n = 8192
    x = torch.randn(n, dtype=dtype, requires_grad=True)
    with Sectors() as forward:
        y = elu(x)
    with Sectors() as backward:
        y.backward(torch.ones_like(y))
    assert forward.dram.total == kernels.bytes_forward(n, dtype.itemsize)
    assert backward.dram.total == kernels.bytes_backward(n, dtype.itemsize)
    assert forward.efficiency == backward.efficiency == 1
