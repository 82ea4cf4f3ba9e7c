"""One source, run where its tensors are; launches looked at; what a compiler says, and what a count of addresses says."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.errors import InterpreterError

from playbook.errors import ConfigError
from playbook.kernels.jit import cdiv, kernel, launches, next_power
from playbook.kernels.rmsnorm import rms_norm
from playbook_book.kernels.compiled import compiled
from playbook_book.kernels.sectors import Sectors


@kernel
def half(x):
    return x * 0.5


@kernel
def scale_kernel(x, y, n, step, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, half(tl.load(x + at * step, mask=inside)), mask=inside)


def scale(x: torch.Tensor, step: int = 1, **options: int) -> torch.Tensor:
    n = len(x) // step
    y = torch.empty(n, dtype=x.dtype, device=x.device)
    scale_kernel[lambda meta: (cdiv(n, meta["BLOCK"]),)](x, y, n, step, BLOCK=64, **options)
    return y


@pytest.mark.parametrize("n", [1, 63, 64, 65, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_interpreted_where_tensors_are_on_the_cpu(n, dtype):
    x = torch.randn(n, dtype=dtype)
    torch.testing.assert_close(scale(x), x * 0.5, rtol=0, atol=0)


@kernel
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_is_read_and_rounded_as_torch_does(dtype):
    """All codes, NaN among them; and all numbers halfway between two of them."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    read, before = torch.empty(256), codes._version
    copy_kernel[(1,)](codes, read, 256, BLOCK=256)
    assert torch.equal(read.nan_to_num(7.0), codes.float().nan_to_num(7.0))
    assert codes._version == before  # what is only read is not written
    ordered = codes.float()[codes.float().isfinite()].sort().values
    between = (ordered[1:] + ordered[:-1]) / 2
    written = torch.empty(len(between), dtype=dtype)
    copy_kernel[(1,)](between, written, len(between), BLOCK=256)
    assert torch.equal(written.view(torch.uint8), between.to(dtype).view(torch.uint8))


def test_nothing_runs_on_meta_and_the_launch_says_what_would():
    with launches() as found:
        y = scale(torch.empty(1000, device="meta"), num_warps=2)
    assert y.is_meta
    (launch,) = found
    assert (launch.kernel, launch.grid, launch.options) == (scale_kernel, (16,), {"num_warps": 2})
    assert launch.arguments["n"] == 1000
    assert launch.arguments["BLOCK"] == 64
    made = compiled(launch, 90)
    assert (made.name, made.warps, made.spills) == ("scale_kernel", 2, 0)
    assert 0 < made.registers <= 64
    assert made.uses("ld.global") == made.uses("st.global") > 0
    assert made.occupancy == 1.0  # 32 blocks of 64 threads


@kernel
def where_kernel(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


def test_tensors_of_two_gpus_are_refused_and_none_runs_without_memory():
    """Fake tensors have a GPU's device and no memory."""
    with FakeTensorMode():
        x, y = torch.empty(8, device="cuda:0"), torch.empty(8, device="cuda:1")
    with pytest.raises(
        ConfigError, match="where_kernel is given tensors on cuda:0, cuda:1, but must be on one device"
    ):
        where_kernel[(1,)](x, y, BLOCK=8)
    with launches() as found:
        where_kernel[(1,)](x, x, BLOCK=8)
    assert len(found) == 1


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_launch_is_on_the_gpu_of_its_tensors_whichever_is_current():
    x = torch.randn(8, device="cuda:1")
    y = torch.empty_like(x)
    with torch.cuda.device(0):
        where_kernel[(1,)](x, y, BLOCK=8)
        assert torch.cuda.current_device() == 0
    assert torch.equal(x, y)


def test_what_is_refused():
    with launches() as found:
        scale(torch.empty(1000, device="meta"))
    with pytest.raises(ConfigError, match="capability is 70, but must be one of 80, 89, 90, 100"):
        compiled(found[0], 70)
    with pytest.raises(
        ConfigError, match="scale_kernel is given tensors on cpu, meta, but must be on one device"
    ):
        scale_kernel[(1,)](torch.ones(4), torch.empty(4, device="meta"), 4, 1, BLOCK=4)


@pytest.mark.parametrize(
    ("step", "dtype", "per_request", "efficiency"),
    [
        (1, torch.float32, 8, 1.0),  # a block of 64 floats: 16 bytes for each of 16 threads
        (1, torch.bfloat16, 4, 1.0),
        (2, torch.float32, 8, 0.5),  # of 32 threads, a float each, and another one between them
        (8, torch.float32, 32, 0.125),  # a sector for each thread
    ],
)
def test_sectors_of_a_stride(step, dtype, per_request, efficiency):
    x = torch.randn(64 * step * 4, dtype=dtype)
    with Sectors() as counted:
        scale(x, step)
    read = counted.tensors["scale_kernel", "x"]
    assert read.read == min(x.nbytes, 256 * 32)
    assert counted.dram.written == 256 * dtype.itemsize
    assert counted.needed.read / counted.requested.read == efficiency
    loads = counted.requests - 4  # four programs store 64 numbers, a request each
    assert counted.requested.read / 32 / loads == per_request


def test_what_is_read_again_comes_from_memory_once():
    x = torch.randn(64)
    with Sectors() as counted:
        scale(x)
        scale(x)
    assert counted.dram.read == 2 * x.nbytes  # two launches
    assert not counted.tensors["scale_kernel", "x"].written


def test_what_a_mask_should_have_kept_is_found_before_it_is_touched():
    x, y = torch.ones(60), torch.zeros(60)
    with Sectors(), pytest.raises(InterpreterError, match="scale_kernel reads or writes x beyond its end"):
        scale_kernel[(1,)](x, y, 64, 1, BLOCK=64)
    assert not y.any()


def test_next_power():
    assert [next_power(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_what_is_only_read_in_bf16_stays_as_autograd_has_saved_it():
    x = torch.randn(8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
    before = weight._version
    y = rms_norm(rms_norm(x[None], weight), weight)  # saved by the first, read by the second
    y.sum().backward()
    assert weight._version == before
    assert weight.grad is not None
