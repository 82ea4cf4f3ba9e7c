"""The CUDA C++ in ``cuda/``, compiled by nvcc where there is one: a library that ctypes calls, and its statistics.

    multiply("tiled", a, b)                  # on a GPU
    statistics("matmul", 90)["tiled"].registers      # on none

A library is compiled once: its name in the cache says of which source, for which GPU and by which nvcc.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook_book.kernels.compiled import ARCHITECTURES, Compiled

SOURCES = Path(__file__).parent / "cuda"
FLAGS = ("-O3", "-std=c++17")


def nvcc() -> str:
    """Path of the compiler. Raises ConfigError where there is none."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        raise ConfigError(
            "the kernels in CUDA C++ need nvcc, which is not on the PATH: install NVIDIA's CUDA toolkit, or read "
            "them with the instrument for warps, which needs none"
        )
    return found


def sources() -> list[str]:
    """Names of the files in ``cuda/``."""
    return sorted(path.stem for path in SOURCES.glob("*.cu"))


def build(name: str, capability: int) -> Path:
    """The shared library of ``cuda/<name>.cu`` for GPUs of this compute capability (90: H100), from the cache or new.

    Raises ConfigError for other names and capabilities, and where there is no nvcc.
    """
    compiler, source = nvcc(), _source(name, capability)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256("\n".join([source.read_text(), version, *FLAGS]).encode()).hexdigest()[:16]
    library = _cache() / f"{name}-{ARCHITECTURES[capability]}-{key}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=library.parent
        ) as scratch:  # others may compile it at the same time
            made = Path(scratch) / library.name
            _run(compiler, capability, source, "-shared", "-Xcompiler", "-fPIC", "-o", str(made))
            os.replace(made, library)
    return library


def _cache() -> Path:
    """The folder of these libraries, where Linux keeps a user's caches."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "playbook" / "cuda"


@cache
def statistics(name: str, capability: int) -> dict[str, Compiled]:
    """What nvcc makes of each kernel of ``cuda/<name>.cu``: registers, spills, shared memory, PTX. Raises as `build`.

    Warps are those of ``__launch_bounds__``, or of the blocks of 256 threads that are launched otherwise.
    """
    compiler, source = nvcc(), _source(name, capability)
    with tempfile.TemporaryDirectory() as scratch:
        flags = ("-Xptxas", "-v", "--keep", "--keep-dir", scratch, "-cubin", "-o", f"{scratch}/{name}.cubin")
        told = _run(compiler, capability, source, *flags)
        ptx = (Path(scratch) / f"{name}.ptx").read_text()
    entries = {_plain(part.split("(", 1)[0]): part for part in ptx.split(".visible .entry ")[1:]}
    found = {}
    for report in told.split("Compiling entry function '")[1:]:
        kernel = _plain(report.split("'", 1)[0])
        threads = re.search(r"\.maxntid (\d+)", entries[kernel])
        spills = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", report)))
        registers, shared = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes smem", report)
        assert registers is not None, report
        found[kernel] = Compiled(
            kernel, capability, int(threads[1] if threads else 256) // 32, int(registers[1]), spills,
            int(shared[1]) if shared else 0, entries[kernel],
        )  # fmt: skip
    return found


def add(step: str, x: Tensor, y: Tensor) -> Tensor:
    """x + y by a kernel of ``vector_add.cu``: "add", "add_pieces" or "add_vectors". fp32, contiguous, of one size."""
    _check(step, ("add", "add_pieces", "add_vectors"), x, y)
    z = torch.empty_like(x)
    _call("vector_add", step, x, y, z, x.numel())
    return z


def elu(step: str, x: Tensor, alpha: float = 1.0) -> Tensor:
    """ELU by a kernel of ``elu.cu``: "elu" or "elu_select". fp32, contiguous."""
    _check(step, ("elu", "elu_select"), x)
    y = torch.empty_like(x)
    _call("elu", step, x, y, ctypes.c_float(alpha), x.numel())
    return y


def multiply(step: str, a: Tensor, b: Tensor) -> Tensor:
    """a (m, k) times b (k, n) in fp32 by a kernel of ``matmul.cu``, "naive" to "tensor_cores" (which takes fp16).

    Raises ConfigError for tensors that are not on a GPU, not contiguous, or of another dtype, and where there is no nvcc.
    """
    steps = ("naive", "coalesced", "tiled", "coarsened", "tensor_cores")
    _int(step, len(a) * b.shape[-1])
    _check(step, steps, a, b, dtype=torch.float16 if step == "tensor_cores" else torch.float32)
    (m, k), n = a.shape, b.shape[1]
    if step == "tensor_cores" and (m % 128 or n % 128 or k % 32):
        raise ConfigError(f"m, n and k are {m}, {n} and {k}, but must be multiples of 128, 128 and 32")
    c = torch.empty(m, n, device=a.device)
    _call("matmul", step, a, b, c, m, n, k)
    return c


def _check(step: str, steps: tuple[str, ...], *tensors: Tensor, dtype: torch.dtype = torch.float32) -> None:
    if step not in steps:
        raise ConfigError(f"step is {step!r}, but must be one of {', '.join(steps)}")
    for x in tensors:
        _int(step, x.numel())
    nvcc()
    for x in tensors:
        if not x.is_cuda or not x.is_contiguous() or x.dtype != dtype:
            raise ConfigError(
                f"{step} takes contiguous tensors of {dtype} on a GPU, but got {x.dtype} on {x.device.type}"
            )


def _int(step: str, number: int) -> ctypes.c_int:
    """A size as C++ has it. ctypes would cut a larger one without a word."""
    if number >= 2**31:
        raise ConfigError(f"{step} counts in 32 bits, up to 2,147,483,647 numbers, but got {number:,}")
    return ctypes.c_int(number)


def _call(name: str, step: str, *arguments: Tensor | int | ctypes.c_float) -> None:
    tensor = arguments[0]
    assert isinstance(tensor, Tensor)
    major, minor = torch.cuda.get_device_capability(tensor.device)
    launch = getattr(_library(name, 10 * major + minor), f"launch_{step}")
    given = [_converted(step, x) for x in arguments]
    with torch.cuda.device(tensor.device):
        error = launch(*given, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if error:
        raise RuntimeError(f"{step} could not be launched: CUDA error {error}")


def _converted(
    step: str, x: Tensor | int | ctypes.c_float
) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    return _int(step, x) if isinstance(x, int) else x


@cache
def _library(name: str, capability: int) -> ctypes.CDLL:
    return ctypes.CDLL(str(build(name, capability)))


def _source(name: str, capability: int) -> Path:
    if name not in sources():
        raise ConfigError(f"name is {name!r}, but must be one of {', '.join(sources())}")
    if capability not in ARCHITECTURES:
        raise ConfigError(
            f"capability is {capability}, but must be one of {', '.join(map(str, ARCHITECTURES))}"
        )
    return SOURCES / f"{name}.cu"


def _run(compiler: str, capability: int, source: Path, *flags: str) -> str:
    command = [compiler, *FLAGS, f"-arch={ARCHITECTURES[capability]}", *flags, str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"nvcc could not compile {source.name}: {done.stderr.strip()}")
    return done.stderr


def _plain(symbol: str) -> str:
    """The name in a mangled one: "_Z5tiledPKfS0_Pfiii" is tiled."""
    found = re.match(r"_Z(\d+)", symbol)
    return symbol if found is None else symbol[found.end() :][: int(found[1])]
