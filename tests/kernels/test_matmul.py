"""Products beside PyTorch's, in any strides; compiled for GPUs that are not here; the bytes that tiles ask for."""

from __future__ import annotations

import contextvars

import pytest
import torch
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from kernel_checks import ROUNDING, off
from triton.runtime import _allocation

from playbook.errors import ConfigError, ShapeError
from playbook.kernels.jit import launches
from playbook.kernels.matmul import TUNED, Tiles, lend_scratch, matmul, matmul_torch, takes_tma, tuned
from playbook_book.kernels.compiled import SHARED, Compiled, compiled
from playbook_book.kernels.sectors import Sectors

LENGTHS = (1, 63, 65, 130)
LAYOUTS = ("rows", "columns", "every other")
SMALL = Tiles(64, 32, 32, group=2)


def matrix(rows: int, columns: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers that lie row by row, column by column, or with others between them."""
    if layout == "rows":
        return torch.randn(rows, columns, dtype=dtype)
    if layout == "columns":
        return torch.randn(columns, rows, dtype=dtype).t()
    return torch.randn(2 * rows, 2 * columns, dtype=dtype)[::2, 1::2]


@pytest.mark.usefixtures("device")
@given(
    sizes=some.tuples(*[some.sampled_from(LENGTHS)] * 3),
    layouts=some.tuples(*[some.sampled_from(LAYOUTS)] * 3),
    dtype=some.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    variant=some.sampled_from(["tiles", "persistent"]),
    tiles=some.sampled_from([None, SMALL]),
    onto=some.booleans(),
    seed=some.integers(0, 2**16),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])  # of the device
def test_equals_its_twin(sizes, layouts, dtype, variant, tiles, onto, seed):
    torch.manual_seed(seed)
    (m, k, n), (of_x, of_w, of_y) = sizes, layouts
    x, w = matrix(m, k, of_x, dtype), matrix(k, n, of_w, dtype)
    start = matrix(m, n, of_y, dtype) if onto else None
    expected = matmul_torch(x.double(), w.double(), None if start is None else start.double())
    y = matmul(x, w, start, tiles, variant)
    assert y.dtype == dtype
    assert y is start or not onto
    assert off(y, expected) <= ROUNDING[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("onto", [False, True])
def test_blocks_copied_by_descriptor_equal_the_twin(dtype, turned, onto, device):
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no tensor memory accelerator")
    m, k, n = 72, 136, 264  # not multiples of blocks: edges of descriptors
    x, w = (matrix(*s, LAYOUTS[t], dtype) for s, t in zip(((m, k), (k, n)), turned, strict=True))
    start = torch.randn(m, n, dtype=dtype) if onto else None
    expected = matmul_torch(x.double(), w.double(), None if start is None else start.double())
    assert off(matmul(x, w, start, SMALL, "tma"), expected) <= ROUNDING[dtype]


def test_without_rows_or_terms():
    assert matmul(torch.ones(0, 3), torch.ones(3, 4)).shape == (0, 4)
    assert not matmul(torch.ones(2, 0), torch.ones(0, 4)).any()
    assert torch.equal(matmul(torch.ones(2, 0), torch.ones(0, 4), torch.ones(2, 4)), torch.ones(2, 4))


def test_what_is_refused():
    x, w = torch.ones(2, 3), torch.ones(3, 4)
    with pytest.raises(ShapeError, match=r"x \(2, 3\) and w \(2, 3\) must be \(m, k\) and \(k, n\)"):
        matmul(x, x)
    with pytest.raises(ShapeError, match=r"onto \(2, 3\) must be \(2, 4\)"):
        matmul(x, w, x)
    with pytest.raises(ConfigError, match=r"must have the dtype of x, torch.float32"):
        matmul(x, w.half())
    with pytest.raises(ConfigError, match="multiples of 16 bytes"):
        matmul(x, w, variant="tma")
    with pytest.raises(ConfigError, match=r"torch.float64 for capability 80"):
        matmul(x.double(), w.double())
    with pytest.raises(ConfigError, match="capability at least 80"):
        tuned(torch.float16, 75)
    assert tuned(torch.bfloat16, 103) == TUNED[100, 2]  # a later one of the same generation
    assert takes_tma(torch.ones(8, 8), torch.ones(8, 8).t(), torch.ones(8, 8))
    assert not takes_tma(torch.ones(8, 8)[:, 1:])  # begins 4 bytes later
    assert not takes_tma(torch.ones(8, 8).t())  # what is written lies row by row


def on_gpu(capability: int, variant: str, turned: bool, onto: bool, dtype: torch.dtype) -> Compiled:
    """The kernel for matrices of 8192 × 8192, with w as it lies in memory, or Wᵀ."""
    x = torch.empty(8192, 8192, dtype=dtype, device="meta")
    with launches() as found:
        matmul(
            x,
            x.t() if turned else x,
            torch.empty_like(x) if onto else None,
            tuned(dtype, capability, variant),
            variant,
        )
    return compiled(found[0], capability)


@pytest.mark.parametrize(
    ("capability", "variant", "instructions"),
    [
        (80, "tiles", ["mma.sync", "cp.async.cg"]),
        (80, "persistent", ["mma.sync", "cp.async.cg"]),
        (90, "tiles", ["wgmma.mma_async", "cp.async.cg"]),
        (90, "persistent", ["wgmma.mma_async", "cp.async.cg"]),
        (90, "tma", ["wgmma.mma_async", "cp.async.bulk.tensor"]),
        (100, "tiles", ["tcgen05.mma", "cp.async.cg"]),
        (100, "persistent", ["tcgen05.mma", "cp.async.cg"]),
        (100, "tma", ["tcgen05.mma", "cp.async.bulk.tensor"]),
    ],
)
def test_compiles_to_tensor_cores_without_spills(capability, variant, instructions):
    for turned, onto in ((False, False), (True, True))[variant == "persistent" :]:
        made = on_gpu(capability, variant, turned, onto, torch.bfloat16)
        assert made.spills == 0
        assert made.shared <= SHARED[capability]
        assert all(made.uses(name) for name in instructions)


@pytest.mark.parametrize(("capability", "variant"), [(80, "tiles"), (90, "tma"), (100, "tma")])
def test_a_row_gets_tiles_of_few_rows(capability, variant):
    """A model that generates multiplies few rows: 16 of a tile are computed then, and not 128."""
    w = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    with launches() as found:
        matmul(w[:1], w.t(), tiles=tuned(w.dtype, capability), variant=variant)
    assert found[0].arguments["BLOCK_M"] == 16
    made = compiled(found[0], capability)
    assert made.spills == 0
    assert made.uses("mma.sync")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_fp32_is_multiplied_as_torch_is_set_to(capability):
    exact = on_gpu(capability, "persistent", True, True, torch.float32)
    assert exact.spills == 0
    assert exact.uses("fma.rn") > exact.uses("mma.sync") == 0
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        rounded = on_gpu(capability, "tiles", False, False, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    assert rounded.uses("mma.sync") + rounded.uses("wgmma.mma_async") + rounded.uses("tcgen05.mma") > 0


@pytest.mark.parametrize("variant", ["tiles", "persistent", "tma"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_asks_for_what_its_tiles_say_and_moves_each_matrix_once(variant, turned, dtype):
    (m, n, k), tiles, c = (128, 384, 128), Tiles(64, 128, 64, group=2), dtype.itemsize
    x, w = torch.randn(m, k, dtype=dtype), matrix(k, n, LAYOUTS[turned], dtype)
    with Sectors() as counted:
        matmul(x, w, None, tiles, variant)
    formula = m * n * k * c * (1 / tiles.m + 1 / tiles.n)
    assert counted.requested.read == pytest.approx(formula, rel=0.02)
    assert (counted.dram.read, counted.dram.written) == (x.nbytes + w.nbytes, m * n * c)


def order(group: int, rows: int, columns: int) -> list[list[int]]:
    """Which program stored each tile of y, read off the rows and columns of x and w that it met first."""
    x, w = torch.arange(rows).repeat_interleave(16)[:, None].float(), torch.ones(1, 16 * columns)
    met: list[tuple[int, int]] = []
    for count in range(1, rows * columns + 1):
        y = torch.full((16 * rows, 16 * columns), -1.0)
        with launches() as found:
            matmul(x.to("meta"), w.to("meta"), y.to("meta"), Tiles(16, 16, 16, group=group))
        launch = found[0]
        launch.kernel[(count,)](**{**launch.arguments, "x": x, "w": w, "y": y, "ADD": False})
        done = {(r, s) for r in range(rows) for s in range(columns) if y[16 * r, 16 * s] >= 0}
        met.append((done - set(met)).pop())
    return [[met.index((r, s)) for s in range(columns)] for r in range(rows)]


def test_programs_side_by_side_share_rows_and_columns():
    """The drawing over `tile_of`."""
    assert order(2, rows=4, columns=2) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert order(1, rows=2, columns=3) == [[0, 1, 2], [3, 4, 5]]
    assert order(2, rows=3, columns=2) == [[0, 2], [1, 3], [4, 5]]  # the last group has one row


def test_memory_for_descriptors_is_lent_where_nobody_else_lends_it():
    def allocator(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8)

    def of_a_user() -> None:
        triton.set_allocator(allocator)
        lend_scratch()
        assert _allocation._allocator.get() is allocator

    def of_nobody() -> None:
        lend_scratch()
        lent = _allocation._allocator.get()
        assert not isinstance(lent, _allocation.NullAllocator)
        assert lent.__closure__ is None  # nothing that a call was given stays alive
        lend_scratch()
        assert _allocation._allocator.get() is lent

    for case in (of_a_user, of_nobody):
        contextvars.Context().run(case)
