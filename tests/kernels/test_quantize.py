"""Quantisation kernels: codes and scales bit for bit as `precision.scaling` has them, fused ones too; bytes counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from kernel_checks import CAPABILITIES, paired
from torch import Tensor

from playbook.errors import ConfigError
from playbook.kernels import quantize as kernels
from playbook.kernels.jit import launches
from playbook.kernels.quantize import (
    bytes_quantize,
    quantize_both,
    requantize_columns,
    turn,
)
from playbook.precision.recipes import Groups
from playbook.precision.scaling import Quantized, quantize
from playbook_book.kernels.compiled import SHARED, compiled
from playbook_book.kernels.sectors import Sectors

SIZES = ((1, 1), (7, 129), (130, 257), (256, 128))
DTYPES = (torch.float32, torch.bfloat16)
GROUPS = ("tile", "block", Groups("tile", 1, 128, powers="up"), Groups("block", 128, 128, powers="up"))


def numbers(n: int, m: int, dtype: torch.dtype) -> Tensor:
    """Rows from very small to very large; among many of them zeros, subnormal numbers, and the largest there are."""
    torch.manual_seed(n + m)
    x = torch.randn(n, m) * torch.logspace(-12, 12, n)[:, None]
    if n > 100:
        x[3], x[:, 5] = 0.0, 0.0
        x[7] = torch.randn(m) * 1e-40
        x[9] = 3e38 * torch.linspace(-1, 1, m)
        x[11, ::2] = 448.0 * 2.0**-9
    return x.to(dtype)


def expected(x: Tensor, form: str, groups: str | Groups, **given: Tensor) -> Quantized:
    """On the CPU: a GPU's scales may differ in their last bit, for PyTorch there multiplies by 1/448."""
    scales = {name: scale.cpu() for name, scale in given.items()}
    return quantize(x.detach().cpu().contiguous(), form, groups, **scales)


def check_same(found: Quantized, wanted: Quantized) -> None:
    assert found.codes.dtype == wanted.codes.dtype
    assert torch.equal(found.codes.cpu().view(torch.uint8), wanted.codes.view(torch.uint8))
    assert torch.equal(found.scales.cpu(), wanted.scales)
    assert found.size == wanted.size
    assert found.dtype == wanted.dtype


def quantize_rows(x: Tensor, form: str = "e4m3", groups: str = "tile") -> Quantized:
    return kernels.quantize(x.flatten(0, -2), form, groups)


def quantize_columns(x: Tensor, form: str = "e4m3", groups: str = "tile") -> Quantized:
    return kernels.quantize(x.flatten(0, -2).t(), form, groups)


@pytest.mark.usefixtures("fp8_device")
@paired(size=SIZES, groups=GROUPS, dtype=DTYPES, form=["e4m3", "e5m2"])
def test_codes_and_scales_are_those_of_the_formula(size, dtype, form, groups):
    x = numbers(*size, dtype)
    straight, turned = quantize_both(x, form, groups)
    check_same(straight, expected(x, form, groups))
    check_same(turned, expected(x.t(), form, groups))
    check_same(quantize_rows(x, form, groups), expected(x, form, groups))
    check_same(quantize_columns(x, form, groups), expected(x.t(), form, groups))


@pytest.mark.usefixtures("fp8_device")
@paired(size=SIZES, form=["e4m3", "e5m2"], groups=["tensor", "row"])
def test_scales_that_are_known_or_take_a_pass(size, form, groups):
    for x in (numbers(*size, torch.bfloat16), numbers(*size[::-1], torch.bfloat16).t()):
        wanted = expected(x, form, groups)
        for scales in (wanted.scales.to(x.device), None):
            found = kernels.quantize(x, form, groups, scales)
            check_same(found, wanted)
            assert found.codes.is_contiguous()


@pytest.mark.usefixtures("fp8_device")
@paired(size=SIZES, form=["e4m3", "e5m2"], groups=["tile", "row"])
def test_codes_are_quantised_again_along_columns(size, form, groups):
    rows = quantize_rows(numbers(*size, torch.bfloat16), form, groups)
    kept = Quantized(rows.codes, rows.scales.contiguous(), rows.size, rows.dtype)  # as a layer keeps it
    wanted = expected(rows.dequantized().t(), form, groups)
    for found in (requantize_columns(rows, form, groups), requantize_columns(kept, form, groups)):
        check_same(found, Quantized(*_parts(wanted), torch.bfloat16))


@pytest.mark.usefixtures("fp8_device")
@pytest.mark.parametrize("size", [*SIZES, (64, 30)])
def test_codes_are_turned(size):
    codes = quantize_rows(numbers(*size, torch.bfloat16)).codes
    assert torch.equal(turn(codes).view(torch.uint8), codes.view(torch.uint8).t())
    assert turn(codes).is_contiguous()


@pytest.mark.parametrize("size", SIZES)
def test_one_scale_for_a_tensor_that_is_its_own(size):
    x = numbers(*size, torch.bfloat16)
    straight, turned = quantize_both(x, groups="tensor")
    check_same(straight, expected(x, "e4m3", "tensor"))
    check_same(turned, expected(x.t(), "e4m3", "tensor"))


def _parts(x: Quantized) -> tuple[Tensor, Tensor, tuple[int, int]]:
    return x.codes, x.scales, x.size


@pytest.mark.usefixtures("fp8_device")
def test_leading_dims_are_rows_and_strides_are_any():
    x = torch.randn(2, 65, 2 * 130)[..., ::2]
    check_same(quantize_both(x)[1], expected(x.reshape(-1, 130).t(), "e4m3", "tile"))
    assert quantize_both(torch.empty(0, 4))[1].codes.shape == (4, 0)


def test_a_number_that_is_none_stays_so():
    x = torch.ones(2, 128)
    x[0, 3] = float("nan")
    codes = quantize_rows(x).codes.float()
    assert codes.isnan().nonzero().tolist() == [[0, 3]]


def on_meta(x: Tensor) -> Quantized:
    n, m = x.shape
    return Quantized(
        torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty(n, m // 128, device="meta"), (1, 128)
    )


CASES: dict[str, Callable[[Tensor], object]] = {
    "tiles": quantize_both,
    "columns": quantize_columns,
    "blocks": lambda x: quantize_both(x, groups="block"),
    "tensor": lambda x: quantize_both(x, groups="tensor", scales=torch.empty(1, 1, device="meta")),
    "known": lambda x: kernels.quantize(x, "e4m3", "row", torch.empty(len(x), 1, device="meta")),
    "codes": lambda x: requantize_columns(on_meta(x), "e4m3"),
    "both rows": lambda x: quantize_both(x, groups="row", scales=torch.empty(1, 1, device="meta")),
}


@pytest.mark.parametrize("name", CASES)
def test_compiles_to_conversions_of_two_without_spills(name):
    with launches() as found:
        CASES[name](torch.empty(8192, 4096, dtype=torch.bfloat16, device="meta"))
    for launch in found:
        for capability in CAPABILITIES[1:]:  # an A100 has no FP8
            made = compiled(launch, capability)
            # With a limit of registers some are spilled, and it is faster by half (on an H200).
            assert made.spills <= (64 if launch.options.get("maxnreg") else 0)
            assert made.shared <= SHARED[capability]
            assert made.uses("cvt.rn.satfinite.e4m3x2.f32")
            assert made.uses("div.rn.f32")


def test_turning_compiles_to_transposed_matrices_of_16_bits():
    with launches() as found:
        turn(torch.empty(8192, 4096, dtype=torch.float8_e4m3fn, device="meta"))
    made = compiled(found[0], 90)
    assert (made.spills, made.unset) == (0, set())
    assert made.uses("stmatrix") + made.uses("ldmatrix") > 0


def counted(run: Callable[..., object], *given: Tensor) -> int:
    with Sectors() as found:
        run(*given)
    return found.dram.total


N, M = 128, 256
WIDE = 1024  # eight blocks of 128 rows, whose scales fill a sector of 32 bytes


@pytest.mark.parametrize(
    ("dtype", "groups", "m", "run", "copies"),
    [
        (torch.float32, "tile", M, quantize_both, 2),
        (torch.bfloat16, "tile", M, quantize_rows, 1),
        (torch.float32, "block", WIDE, quantize_rows, 1),
        (torch.bfloat16, "block", WIDE, quantize_both, 2),
    ],
)
def test_moves_what_its_formula_says(dtype, groups, m, run, copies):
    found = counted(lambda x: run(x, groups=groups), torch.randn(N, m, dtype=dtype))
    assert found == bytes_quantize(N, m, dtype.itemsize, groups, copies)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_what_its_formula_says_with_a_scale_that_is_known_before(dtype):
    run = partial(quantize_both, groups="tensor", scales=torch.ones(1, 1))
    found = counted(run, torch.randn(N, WIDE, dtype=dtype))
    assert found == bytes_quantize(N, WIDE, dtype.itemsize, "tensor") + 28  # a sector holds the scale


def test_what_is_refused():
    x = torch.ones(4, 128)
    with pytest.raises(ConfigError, match="form is 'e2m1', but kernels quantise to e4m3 or e5m2"):
        quantize_rows(x, "e2m1")
    with pytest.raises(
        ConfigError, match="groups are 'mx', but these kernels have tile and block and tensor and row"
    ):
        quantize_both(x, groups="mx")
