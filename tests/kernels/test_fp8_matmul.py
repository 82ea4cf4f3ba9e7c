"""FP8 products beside their twin, bit for bit where sums are exact; compiled for GPUs that are not here; their bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from kernel_checks import off

from playbook.errors import ConfigError, ShapeError
from playbook.kernels.fp8_matmul import (
    FP8,
    GROUP_K,
    bytes_moved,
    flops,
    fp8_matmul,
    fp8_matmul_torch,
    tuned,
)
from playbook.kernels.jit import launches
from playbook.kernels.matmul import Tiles, takes_tma
from playbook.precision.scaling import GROUPS, Quantized, quantize
from playbook_book.kernels.compiled import SHARED, Compiled, compiled
from playbook_book.kernels.sectors import Sectors

E4M3, E5M2 = FP8
LENGTHS = (1, 63, 130)
#: Groups of both factors: forward and dx, dW, a scale for each tensor, for each row; and what nobody asks for.
PAIRS = (("tile", "block"), ("tile", "tile"), ("tensor", "tensor"), ("row", "row"), ("block", "row"))
#: How far sums of 128 products in two orders are apart, as a share of the largest result: in fp32; and where Hopper's
#: tensor cores add with about 14 bits.
APART = {"cpu": 1e-6, "cuda": 4e-3}
SMALL = Tiles(64, 32, GROUP_K, group=2)


def factor(rows: int, k: int, form: str, groups: str) -> Quantized:
    """Random numbers whose rows and columns differ in size."""
    x = torch.randn(rows, k) * torch.logspace(-3, 3, rows)[:, None] * torch.logspace(-1, 1, k)
    return quantize(x, form, groups)


def whole(rows: int, k: int, groups: str) -> Quantized:
    """Small whole numbers, so that sums of their products are exact in any order, with random scales."""
    size = GROUPS[groups].size(torch.Size((rows, k)))
    scales = torch.rand(-(-rows // size[0]), -(-k // size[1])) + 0.5
    return Quantized(torch.randint(-15, 16, (rows, k)).float().to(E4M3), scales, size)


@pytest.mark.usefixtures("fp8_device")
@given(
    sizes=some.tuples(*[some.sampled_from(LENGTHS)] * 2, some.sampled_from((*LENGTHS, 257))),
    forms=some.sampled_from([("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")]),
    pair=some.sampled_from(PAIRS),
    dtype=some.sampled_from([torch.float32, torch.bfloat16]),
    tiles=some.sampled_from([None, SMALL]),
    onto=some.booleans(),
    seed=some.integers(0, 2**16),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])  # of the device
def test_equals_its_twin(sizes, forms, pair, dtype, tiles, onto, seed):
    torch.manual_seed(seed)
    m, n, k = sizes
    a, b = factor(m, k, forms[0], pair[0]), factor(n, k, forms[1], pair[1])
    start = torch.randn(m, n, dtype=dtype) if onto else None
    before = start.double() if onto else 0
    expected = fp8_matmul_torch(a, b, dtype=torch.float32, onto=start.clone().float() if onto else None)
    y = fp8_matmul(a, b, dtype=dtype, onto=start, variant="tiles", tiles=tiles)
    assert y.dtype == dtype
    assert y is start or not onto
    rounding = 0 if dtype == torch.float32 else 2**-8
    assert off(y, expected) <= APART[a.codes.device.type] + rounding
    assert off(expected, before + a.dequantized().double() @ b.dequantized().double().t()) <= 1e-5


@pytest.mark.parametrize("variant", ["tiles", "tma"])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("onto", [False, True])
def test_equals_its_twin_bit_for_bit_where_sums_are_exact(variant, pair, onto):
    torch.manual_seed(1)
    m, n, k = 136, 264, 304  # the last group of k has 48 columns
    a, b = whole(m, k, pair[0]), whole(n, k, pair[1])
    start = torch.randn(m, n) if onto else None
    y = fp8_matmul(a, b, dtype=torch.float32, onto=None if start is None else start.clone(), variant=variant)
    assert torch.equal(y, fp8_matmul_torch(a, b, dtype=torch.float32, onto=start))


@pytest.mark.parametrize("pair", PAIRS)
def test_blocks_copied_by_descriptor_equal_the_twin(pair, fp8_device):
    if fp8_device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no tensor memory accelerator")
    a, b = factor(72, 272, "e5m2", pair[0]), factor(264, 272, "e4m3", pair[1])
    y = fp8_matmul(a, b, dtype=torch.float32, variant="tma", tiles=SMALL)
    assert off(y, fp8_matmul_torch(a, b, dtype=torch.float32)) <= APART[fp8_device]


def test_without_rows_or_terms():
    def empty(rows: int, k: int) -> Quantized:
        return Quantized(torch.empty(rows, k, dtype=E4M3), torch.ones(1, 1), (max(rows, 1), max(k, 1)))

    assert fp8_matmul(empty(0, 3), empty(4, 3)).shape == (0, 4)
    assert not fp8_matmul(empty(2, 0), empty(4, 0)).any()
    assert torch.equal(fp8_matmul(empty(2, 0), empty(4, 0), onto=torch.ones(2, 4)), torch.ones(2, 4))


def test_what_is_refused():
    a, b = factor(4, 256, "e4m3", "tile"), factor(8, 256, "e4m3", "block")
    with pytest.raises(ShapeError, match=r"a \(4, 256\) and b \(8, 128\) must be \(m, k\) and \(n, k\)"):
        fp8_matmul(a, factor(8, 128, "e4m3", "block"))
    with pytest.raises(ShapeError, match=r"onto \(4, 4\) must be \(4, 8\)"):
        fp8_matmul(a, b, onto=torch.ones(4, 4))
    with pytest.raises(ConfigError, match=r"b has codes of torch.float32, but they must be of e4m3 or e5m2"):
        fp8_matmul(a, quantize(torch.ones(8, 256), "e2m3", "block"))
    with pytest.raises(
        ConfigError, match=r"a must lie row by row, \(m, k\): for a transposed matrix quantise"
    ):
        fp8_matmul(Quantized(torch.ones(256, 4).to(E4M3).t(), a.scales, a.size), b)
    with pytest.raises(
        ConfigError, match=r"a has groups of 1 × 32, but they must have 128 columns or all 256"
    ):
        fp8_matmul(quantize(torch.ones(4, 256), "e4m3", "mx"), b)
    with pytest.raises(ShapeError, match=r"the scales of b are \(2, 2\), but must be \(1, 2\)"):
        fp8_matmul(a, Quantized(b.codes, torch.ones(2, 2), b.size))
    with pytest.raises(ConfigError, match="multiples of 16 bytes"):
        fp8_matmul(factor(4, 257, "e4m3", "row"), factor(8, 257, "e4m3", "row"), variant="tma")
    with pytest.raises(ConfigError, match="capability is 80, but FP8 products need 89"):
        tuned(80)
    assert takes_tma(a.codes, b.codes, torch.ones(4, 8))


def on_gpu(
    capability: int,
    variant: str,
    pair: tuple[str, str],
    form: torch.dtype = E4M3,
    onto: bool = False,
    rows: int = 8192,
) -> Compiled:
    """The kernel for factors (8192, 8192) in ``form`` and E4M3; or for a of a few rows."""

    def on_meta(count: int, dtype: torch.dtype, groups: str) -> Quantized:
        size = GROUPS[groups].size(torch.Size((count, 8192)))
        codes = torch.empty(count, 8192, dtype=dtype, device="meta")
        return Quantized(codes, torch.empty(-(-count // size[0]), -(-8192 // size[1]), device="meta"), size)

    a, b = on_meta(rows, form, pair[0]), on_meta(8192, E4M3, pair[1])
    start = torch.empty(rows, 8192, device="meta") if onto else None
    with launches() as found:
        fp8_matmul(
            a, b, onto=start, variant=variant, tiles=tuned(capability, variant, pair == ("tile", "tile"))
        )
    return compiled(found[0], capability)


@pytest.mark.parametrize(
    ("capability", "variant", "instruction", "copies"),
    [
        (89, "tiles", "mma.sync.aligned.m16n8k32.row.col.f32.{}.e4m3", "cp.async.cg"),
        (90, "tiles", "wgmma.mma_async.sync.aligned.m64n128k32.f32.{}.e4m3", "cp.async.cg"),
        (90, "tma", "wgmma.mma_async.sync.aligned.m64n128k32.f32.{}.e4m3", "cp.async.bulk.tensor"),
        (100, "tiles", "tcgen05.mma.cta_group::1.kind::f8f6f4", "cp.async.cg"),
        (100, "tma", "tcgen05.mma.cta_group::1.kind::f8f6f4", "cp.async.bulk.tensor"),
    ],
)
def test_compiles_to_tensor_cores_of_fp8_without_spills(capability, variant, instruction, copies):
    """y = x·Wᵀ and dx = dy·W, dW = dyᵀ·x added to a gradient, a scale for each tensor, and gradients in E5M2."""
    for pair, form, onto in (
        (("tile", "block"), E4M3, False),
        (("tile", "tile"), E4M3, True),
        (("tensor", "tensor"), E4M3, False),
        (("tensor", "tensor"), E5M2, True),
        (("row", "row"), E4M3, False),
    ):
        made = on_gpu(capability, variant, pair, form, onto)
        assert made.spills == 0, pair
        assert made.shared <= SHARED[capability], pair
        assert made.uses(instruction.format("e5m2" if form == E5M2 else "e4m3")), pair
        assert made.uses(copies), pair


def test_sums_of_128_products_are_added_in_fp32():
    """Hopper: a thread adds each of its 64 numbers of a tile to the total outside of the tensor core."""
    assert on_gpu(90, "tma", ("tensor", "tensor")).uses("add.") >= 64
    assert on_gpu(90, "tma", ("tile", "block")).uses("fma.rn.f32") >= 64


@pytest.mark.parametrize("rows", [1, 33])
def test_few_rows_get_small_tiles(rows):
    """Below 64 rows Triton multiplies in fp16, which holds every FP8 number, since Hopper's FP8 takes 64 at least."""
    made = on_gpu(90, "tma", ("tile", "block"), rows=rows)
    assert made.spills == 0
    assert made.registers * made.warps < 128 * 8
    assert made.uses("wgmma.mma_async" if rows > 32 else "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16")


@pytest.mark.parametrize("variant", ["tiles", "tma"])
@pytest.mark.parametrize(
    ("pair", "onto"), [(("tile", "block"), False), (("tile", "tile"), True), (("row", "row"), True)]
)
def test_moves_each_matrix_once(variant, pair, onto):
    m, n, k = 128, 128, 1024
    tiles = replace(SMALL, n=64)
    a, b = factor(m, k, "e4m3", pair[0]), factor(n, k, "e4m3", pair[1])
    with Sectors() as counted:
        fp8_matmul(a, b, onto=torch.zeros(m, n) if onto else None, variant=variant, tiles=tiles)
    assert counted.dram.total == bytes_moved(m, n, k, a.size, b.size, 4 if onto else 2, onto)
    assert counted.requested.read > counted.dram.read  # programs ask again for what the L2 cache has
    assert flops(m, n, k) == 2 * m * n * k
