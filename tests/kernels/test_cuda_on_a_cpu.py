"""The CUDA C++ without a GPU: its kernels and its launchers as they stand, compiled for the CPU by an ordinary compiler.

That holds indices, edges and barriers to PyTorch. How a warp executes them, and tensor cores, it does not know.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kernel_checks import ROUNDING, off

from playbook_book.kernels.cuda_build import SOURCES

HEADER = Path(__file__).with_name("cuda_on_a_cpu.h")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """``on_cpu("elu")``: the library of ``cuda/elu.cu``."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++, which compiles C++ for the CPU")
    version = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    if int(version.split(".")[0]) < 12:
        pytest.skip("g++ is older than 12, the first that knows numbers of 16 bits")

    def library(name: str) -> ctypes.CDLL:
        text = (SOURCES / f"{name}.cu").read_text(encoding="utf-8")
        text = re.sub(r"#include <.*>\n", "", text)
        text = re.sub(r"(\w+)<<<(.*?)(?:, 0, stream)?>>>\((.*)\);", r"launch(\2, [=] { \1(\3); });", text)
        folder = tmp_path_factory.mktemp(name)
        source = folder / f"{name}.cpp"
        source.write_text(f'#include "{HEADER}"\n{text}')
        made = folder / f"{name}.so"
        flags = ["-std=c++20", "-O1", "-pthread", "-w", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, str(source), "-o", str(made)], check=True)
        return ctypes.CDLL(str(made))

    return library


def pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(x.data_ptr()) for x in tensors]


def test_products(on_cpu):
    library = on_cpu("matmul")
    cases = [(step, (m, n, k)) for step in ("naive", "coalesced") for m, n, k in ((1, 1, 1), (33, 9, 7))]
    cases += [("tiled", (33, 31, 65)), ("coarsened", (130, 127, 9)), ("tensor_cores", (256, 128, 64))]
    for step, (m, n, k) in cases:
        dtype = torch.float16 if step == "tensor_cores" else torch.float32
        a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.full((m, n), torch.nan)
        assert getattr(library, f"launch_{step}")(*pointers(a, b, c), m, n, k, None) == 0
        assert off(c, a.double() @ b.double()) <= ROUNDING[torch.float32], step
    assert library.launch_tensor_cores(*pointers(a, b, c), 128, 128, 16, None) != 0


def test_vectors(on_cpu):
    adds, elus = on_cpu("vector_add"), on_cpu("elu")
    for step, n in (("add", 300), ("add_pieces", 300), ("add_vectors", 300)):
        x, y, z = torch.randn(n), torch.randn(n), torch.full((n,), torch.nan)
        assert getattr(adds, f"launch_{step}")(*pointers(x, y, z), n, None) == 0
        assert torch.equal(z, x + y), step
    assert adds.launch_add_vectors(*pointers(x, y, z), 299, None) != 0
    longer = torch.full((n + 8,), torch.nan)
    assert adds.add_from_host(*pointers(x, y, longer), n) == 0
    assert torch.equal(longer[:n], x + y)
    assert longer[n:].isnan().all()
    for step in ("elu", "elu_select"):
        getattr(elus, f"launch_{step}")(*pointers(x, z), ctypes.c_float(0.5), n, None)
        torch.testing.assert_close(z, torch.nn.functional.elu(x, 0.5))
