"""Rotary's kernel beside its twin, in the interpreter; compiled for GPUs that are not here; its bytes counted."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import beside_twin, check_compiles, kept_bytes, on_meta, paired
from torch import Tensor

from playbook.errors import ShapeError
from playbook.kernels import rotary as kernels
from playbook.kernels.rotary import rotary, rotary_torch
from playbook.model.attention import rotary_table
from playbook.model.ops import apply_rotary
from playbook_book.kernels.sectors import Sectors

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check(x: Tensor) -> None:
    cos, sin = rotary_table(x.shape[1], x.shape[3])
    beside_twin(lambda x: rotary(x, cos, sin), lambda x: rotary_torch(x, cos, sin), x)


@pytest.mark.usefixtures("device")
@paired(half=[1, 63, 65, 257], dtype=DTYPES, heads=[1, 5])
def test_equals_its_twin(half, dtype, heads):
    torch.manual_seed(half)
    check(torch.randn(2, 3, heads, 2 * half, dtype=dtype))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype):
    torch.manual_seed(0)
    check(torch.randn(3, 2, 5, 8, dtype=dtype).transpose(0, 1))
    check(torch.randn(2, 5, 3, 8, dtype=dtype).transpose(1, 2))
    check(torch.randn(2, 3, 5, 24, dtype=dtype).chunk(3, -1)[1])
    check(torch.randn(2, 3, 5, 16, dtype=dtype)[..., ::2])


@pytest.mark.usefixtures("device")
def test_equals_the_books_with_angles_of_other_positions():
    torch.manual_seed(0)
    cos, sin = (table[torch.tensor([0, 7, 4095])] for table in rotary_table(4096, 64))
    x = torch.randn(2, 3, 4, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(rotary(x, cos, sin), apply_rotary(x, cos, sin), rtol=2**-7, atol=1e-3)


@pytest.mark.usefixtures("device")
def test_backward_turns_back():
    torch.manual_seed(0)
    cos, sin = rotary_table(5, 16)
    x = torch.randn(2, 5, 3, 16, requires_grad=True)
    y = rotary(x, cos, sin)
    (dx,) = torch.autograd.grad(y, x, y)
    torch.testing.assert_close(dx, x)


@pytest.mark.usefixtures("device")
def test_gradient():
    x = torch.randn(1, 2, 2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotary, (x, *rotary_table(2, 6)), fast_mode=True)


def test_keeps_the_angles_alone():
    x, (cos, sin) = torch.randn(2, 5, 3, 16, requires_grad=True), rotary_table(5, 16)
    assert kept_bytes(lambda x: rotary(x, cos, sin), x) == cos.nbytes + sin.nbytes
    assert kept_bytes(lambda x: apply_rotary(x, cos, sin), x) == cos.nbytes + sin.nbytes


@pytest.mark.parametrize(("heads", "d"), [(32, 128), (8, 64), (1, 64)])
def test_compiles(heads, d):
    angles = (4096, d, torch.float32)
    launched = on_meta(rotary, (2, 4096, heads, d, torch.bfloat16), angles, angles)
    assert len(launched) == 2
    for made in check_compiles(launched).values():
        assert made.occupancy >= 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [4, 20])  # 20: of 64, more than one program of a token has
def test_moves_what_its_formula_says(dtype, heads):
    b, s, d = 2, 4, 128
    x = torch.randn(b, s, heads, d, dtype=dtype, requires_grad=True)
    cos, sin = rotary_table(s, d)
    with Sectors() as forward:
        y = rotary(x, cos, sin)
    with Sectors() as backward:
        y.backward(torch.ones_like(y))
    assert forward.dram.total == kernels.bytes_forward(b, s, heads, d, dtype.itemsize)
    assert backward.dram.total == kernels.bytes_backward(b, s, heads, d, dtype.itemsize)
    assert forward.efficiency == backward.efficiency == 1


def test_what_is_refused():
    x, (cos, sin) = torch.ones(2, 5, 3, 16), rotary_table(4, 16)
    with pytest.raises(
        ShapeError, match=r"cos has shape \(4, 16\), but must have \(5, 16\), one for each token"
    ):
        rotary(x, cos, sin)
