"""Grouped products beside the loop over groups, empty ones among them; compiled; and their bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from kernel_checks import ROUNDING, off

from playbook.errors import ConfigError, ShapeError
from playbook.kernels.jit import cdiv, launches
from playbook.kernels.matmul import Tiles, tuned
from playbook_book.kernels.compiled import SHARED, compiled
from playbook_book.kernels.grouped_matmul import (
    grouped_gradient,
    grouped_gradient_torch,
    grouped_matmul,
    grouped_matmul_torch,
)
from playbook_book.kernels.sectors import Sectors


def ends_of(counts: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(counts).cumsum(0).to(dtype)


@pytest.mark.usefixtures("device")
@given(
    counts=some.lists(some.sampled_from([0, 0, 1, 16, 63, 65]), min_size=1, max_size=4),
    sizes=some.tuples(*[some.sampled_from([1, 63, 65, 130])] * 2),
    dtype=some.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    of_ends=some.sampled_from([torch.int32, torch.int64]),
    turned=some.booleans(),
    onto=some.booleans(),
    seed=some.integers(0, 2**16),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])  # of the device
def test_equal_their_twins(counts, sizes, dtype, of_ends, turned, onto, seed):
    torch.manual_seed(seed)
    (k, n), rows, tiles = sizes, sum(counts), Tiles(32, 128, 64, group=2)
    ends = ends_of(counts, of_ends)
    x, dy = torch.randn(rows, 2 * k, dtype=dtype)[:, ::2], torch.randn(rows, n, dtype=dtype)
    w = torch.randn(len(counts), n, k, dtype=dtype).transpose(1, 2) if turned else torch.randn(
        len(counts), k, n, dtype=dtype
    )  # fmt: skip
    if rows:
        y = grouped_matmul(x, w, ends, tiles)
        assert off(y, grouped_matmul_torch(x.double(), w.double(), ends)) <= ROUNDING[dtype]
        assert y.dtype == dtype
    start = torch.randn(len(counts), n, k, dtype=dtype) if onto else None
    expected = grouped_gradient_torch(dy.double(), x.double(), ends) + (
        0 if start is None else start.double()
    )
    dw = grouped_gradient(dy, x, ends, start, tiles)
    assert off(dw, expected) <= ROUNDING[dtype]
    assert dw is start or not onto


def test_a_program_for_each_tile_that_there_may_be():
    x, w, ends = torch.randn(200, 48), torch.randn(6, 48, 80), ends_of([33, 0, 100, 1, 66, 0])
    with launches() as found:
        y = grouped_matmul(x, w, ends, Tiles(16, 32, 16))
    assert [launch.grid for launch in found] == [((13 + 6) * 3,)]
    assert off(y, grouped_matmul_torch(x, w, ends)) <= ROUNDING[torch.float32]


@pytest.mark.usefixtures("device")
def test_an_empty_group_has_no_gradient_and_keeps_what_is_there():
    dy, x, ends = torch.randn(5, 3), torch.randn(5, 4), ends_of([5, 0])
    assert not grouped_gradient(dy, x, ends)[1].any()
    assert torch.equal(grouped_gradient(dy, x, ends, torch.ones(2, 3, 4))[1], torch.ones(3, 4))
    assert grouped_matmul(x[:0], torch.ones(2, 4, 3), ends_of([0, 0])).shape == (0, 3)


def test_what_is_refused():
    x, w, ends = torch.ones(5, 4), torch.ones(2, 4, 3), ends_of([2, 3])
    with pytest.raises(ShapeError, match=r"ends \(1,\) must be \(n, in\), \(E, in, out\) and \(E,\)"):
        grouped_matmul(x, w, ends[:1])
    with pytest.raises(ShapeError, match=r"dy \(4, 4\), x \(5, 4\)"):
        grouped_gradient(x[:4], x, ends)
    with pytest.raises(ShapeError, match=r"onto must be \(2, 4, 4\) of torch.float32"):
        grouped_gradient(x, x, ends, torch.ones(2, 4, 3))
    with pytest.raises(ConfigError, match="the last int32 or int64"):
        grouped_matmul(x, w, ends.float())


@pytest.mark.parametrize(
    ("capability", "instruction"), [(80, "mma.sync"), (90, "wgmma"), (100, "tcgen05.mma")]
)
def test_compile_to_tensor_cores_without_spills(capability, instruction):
    """64 experts, 4096 -> 2048: forward, where W is a view, and dW onto a gradient."""
    w = torch.empty(64, 2048, 4096, dtype=torch.bfloat16, device="meta")
    x, dy = w.new_empty(8192, 4096), w.new_empty(8192, 2048)
    ends = torch.empty(64, dtype=torch.int32, device="meta")
    with launches() as found:
        grouped_matmul(x, w.transpose(1, 2), ends, tuned(x.dtype, capability))
        grouped_gradient(dy, x, ends, w, tuned(x.dtype, capability))
    assert [launch.kernel.fn.__name__ for launch in found] == ["grouped_kernel", "gradient_kernel"]
    for launch in found:
        made = compiled(launch, capability)
        assert made.spills == 0
        assert made.shared <= SHARED[capability]
        assert made.uses(instruction)


def test_ask_for_what_their_tiles_say():
    counts, (k, n), tiles = [64, 0, 64, 128], (128, 128), Tiles(64, 64, 64, group=2)
    x, w, ends = torch.randn(256, k).half(), torch.randn(4, k, n).half(), ends_of(counts)
    with Sectors() as counted:
        grouped_matmul(x, w, ends, tiles)
    of_ends = 2 * 32 * (cdiv(256, 64) + 4) * 2  # each program reads all four at once, and those before
    assert counted.requested.read - of_ends == pytest.approx(256 * n * k * 2 * (1 / 64 + 1 / 64), rel=0.02)
    assert counted.dram.written == 256 * n * 2
    read = counted.tensors["grouped_kernel", "w"].read
    assert read == 3 * k * n * 2  # weights of the group without rows stay where they are
    dy = torch.randn(256, n).half()
    with Sectors() as counted:
        grouped_gradient(dy, x, ends, tiles=tiles)
    assert counted.tensors["gradient_kernel", "x"].read == x.nbytes
    assert counted.tensors["gradient_kernel", "dy"].read == dy.nbytes
    assert counted.dram.written == 4 * k * n * 2
