"""The CUDA C++: compiled where there is nvcc, run where there is a GPU, one clear sentence where there is neither."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.cpp_extension import load

from playbook.errors import ConfigError
from playbook_book.kernels import cuda_build
from playbook_book.kernels.compiled import SHARED
from playbook_book.kernels.cuda_build import add, build, elu, multiply, sources, statistics

BOOK = Path(__file__).parents[2] / "book"
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc, which compiles CUDA C++")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
KERNELS = {
    "elu": {"elu", "elu_select"},
    "matmul": {"naive", "coalesced", "tiled", "coarsened", "tensor_cores"},
    "vector_add": {"add", "add_pieces", "add_vectors"},
}


@NEEDS_NVCC
@pytest.mark.parametrize(
    ("name", "capability"), [("matmul", 80), ("matmul", 90), ("matmul", 100), ("elu", 90), ("vector_add", 90)]
)
def test_compile_without_spills(name, capability):
    found = statistics(name, capability)
    assert set(found) == KERNELS[name]
    for one in found.values():
        assert one.spills == 0
        assert 0 < one.registers <= 128
        assert one.shared <= SHARED[capability]


@NEEDS_NVCC
def test_what_the_ladder_asks_of_a_multiprocessor():
    found = statistics("matmul", 90)
    assert {name: one.shared for name, one in found.items()} == {
        "naive": 0,
        "coalesced": 0,
        "tiled": 2 * 32 * 32 * 4,
        "coarsened": 2 * 128 * 8 * 4,
        "tensor_cores": (128 * 40 + 32 * 136) * 2,
    }
    assert {name: one.warps for name, one in found.items()} == {
        "naive": 8,
        "coalesced": 8,
        "tiled": 32,
        "coarsened": 8,
        "tensor_cores": 8,
    }
    assert found["tiled"].occupancy > found["coarsened"].occupancy  # 64 sums a thread cost registers
    assert found["tensor_cores"].uses("wmma.mma") > 0
    assert not found["coarsened"].uses("wmma.mma")
    vectors = statistics("vector_add", 90)
    assert (vectors["add_vectors"].uses("ld.global.v4"), vectors["add"].uses("ld.global.v4")) == (2, 0)


@NEEDS_NVCC
def test_a_library_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build("elu", 90)
    assert tmp_path in first.parents
    when = first.stat().st_mtime_ns
    assert build("elu", 90) == first
    assert (first.stat().st_mtime_ns, list(first.parent.iterdir())) == (when, [first])
    monkeypatch.setattr(cuda_build, "FLAGS", ("--no-such-flag",))
    with pytest.raises(ConfigError, match=r"nvcc could not compile elu.cu: .*no-such-flag"):
        build("elu", 90)


def test_sizes_that_an_int_does_not_hold_are_refused():
    """ctypes would cut them: 2³¹ + 256 would be −2³¹ + 256."""
    largest = cuda_build._converted("add", 2**31 - 1)
    assert (type(largest), largest.value) == (cuda_build.ctypes.c_int, 2**31 - 1)
    with pytest.raises(
        ConfigError, match="add counts in 32 bits, up to 2,147,483,647 numbers, but got 2,147,483,904"
    ):
        cuda_build._converted("add", 2**31 + 256)
    x = torch.empty(2**31, device="meta")
    for call in (lambda: add("add", x, x), lambda: elu("elu", x)):
        with pytest.raises(ConfigError, match=r"counts in 32 bits.* but got 2,147,483,648"):
            call()
    with pytest.raises(ConfigError, match=r"naive counts in 32 bits.* but got 4,294,967,296"):
        multiply("naive", torch.empty(2**16, 2, device="meta"), torch.empty(2, 2**16, device="meta"))


def test_what_is_refused(monkeypatch):
    assert set(sources()) == set(KERNELS)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(
        ConfigError, match=r"need nvcc, which is not on the PATH: install NVIDIA's CUDA toolkit"
    ):
        build("matmul", 90)
    monkeypatch.setattr(cuda_build, "nvcc", lambda: "nvcc")
    with pytest.raises(ConfigError, match="name is 'none', but must be one of elu, matmul, vector_add"):
        build("none", 90)
    with pytest.raises(ConfigError, match="capability is 70, but must be one of 80, 89, 90, 100"):
        statistics("elu", 70)
    with pytest.raises(ConfigError, match="step is 'fast', but must be one of naive, coalesced"):
        multiply("fast", torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(
        ConfigError, match=r"takes contiguous tensors of torch.float32 on a GPU, but got .* on cpu"
    ):
        multiply("tiled", torch.ones(2, 2), torch.ones(2, 2))


@NEEDS_NVCC
@NEEDS_GPU
@pytest.mark.gpu
@pytest.mark.parametrize("step", sorted(KERNELS["matmul"]))
def test_products_on_a_gpu(step):
    cores = step == "tensor_cores"
    m, k, n = (256, 96, 384) if cores else (257, 65, 63)
    dtype = torch.float16 if cores else torch.float32
    a, b = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype)
    torch.testing.assert_close(multiply(step, a, b), (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-4)


@NEEDS_NVCC
@NEEDS_GPU
@pytest.mark.gpu
def test_vectors_on_a_gpu():
    x, y = torch.randn(100_004, device="cuda"), torch.randn(100_004, device="cuda")
    for step in sorted(KERNELS["vector_add"]):
        assert torch.equal(add(step, x, y), x + y)
    for step in sorted(KERNELS["elu"]):
        torch.testing.assert_close(elu(step, x), torch.nn.functional.elu(x))


def test_the_extension_that_the_chapter_lists_is_in_the_library():
    """Word for word, and it declares the launcher as the kernel's file defines it."""
    text = (cuda_build.SOURCES / "elu_torch.cpp").read_text(encoding="utf-8").strip()
    cells = json.loads((BOOK / "inside-the-gpu/writing-kernels.ipynb").read_text(encoding="utf-8"))["cells"]
    assert any(f"```cpp\n{text}\n```" in "".join(cell["source"]) for cell in cells)
    declared = re.search(r'extern "C" (int launch_elu\([^)]*\));', text)
    assert declared is not None
    assert f'extern "C" {declared[1]} {{' in (cuda_build.SOURCES / "elu.cu").read_text(encoding="utf-8")


@NEEDS_NVCC
@NEEDS_GPU
@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ninja") is None, reason="no ninja, which builds extensions")
def test_the_extension_is_what_pytorch_computes(tmp_path):
    files = [str(cuda_build.SOURCES / name) for name in ("elu_torch.cpp", "elu.cu")]
    made = load("elu_torch", files, build_directory=str(tmp_path))
    x = torch.randn(1001, device="cuda")
    torch.testing.assert_close(made.elu(x, 0.5), F.elu(x, 0.5))
    with pytest.raises(RuntimeError, match="x must be fp32, contiguous, on a GPU"):
        made.elu(x.cpu(), 0.5)
