"""RMSNorm's kernels beside their twin, in the interpreter; compiled for GPUs that are not here; their bytes counted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from kernel_checks import beside_twin, check_compiles, on_meta

from playbook.kernels.rmsnorm import rms_norm, rms_norm_torch
from playbook.kernels.sectors import Sectors

LENGTHS = (1, 63, 65, 257)


@given(
    rows=some.sampled_from([(1,), (7,), (3, 5)]),
    h=some.sampled_from(LENGTHS),
    dtype=some.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    strided=some.booleans(),
    seed=some.integers(0, 2**16),
)
def test_equals_its_twin(rows, h, dtype, strided, seed):
    torch.manual_seed(seed)
    x = torch.randn(*rows, 2 * h, dtype=dtype)[..., ::2] if strided else torch.randn(*rows, h, dtype=dtype)
    beside_twin(rms_norm, rms_norm_torch, x, torch.randn(h))


@pytest.mark.parametrize("h", [64, 4096, 8192])
def test_compiles_without_spills(h):
    launched = on_meta(rms_norm, (8192, h, torch.bfloat16), (h, torch.float32))
    assert len(launched) == 2
    check_compiles(launched)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moves_what_its_formula_says(dtype):
    n, h, c = 512, 1024, dtype.itemsize
    x = torch.randn(n, h, dtype=dtype, requires_grad=True)
    weight = torch.randn(h, requires_grad=True)
    with Sectors() as forward:
        y = rms_norm(x, weight)
    with Sectors() as backward:
        y.backward(torch.randn_like(y))
    assert forward.dram.total == n * (2 * h * c + 4) + 4 * h
    assert backward.dram.total == n * (3 * h * c + 4) + 4 * h + 4 * h * 264  # w, and the partial sums of dw
    assert forward.efficiency > 0.99
