"""What ``torch.compile`` writes: the Triton for a GPU, which need not be there, and the C++ for a CPU.

    (kernel,) = generated(elu_torch, torch.empty(2**20, device="meta"))
    print(kernel.text)
    compiled(kernel.launch(x, y, 2**20, XBLOCK=1024), 90).registers

Inductor, the compiler behind ``torch.compile``, is asked itself: it decomposes, fuses and generates as it does for any
function, on tensors without data. Where there is no GPU, it is told what it would ask the driver for: an H100's
multiprocessors, registers and threads. Nothing is compiled here, and nothing runs. Left out are the replacements that it
makes before, of attention written out and of badly aligned products, which need a device.
"""

from __future__ import annotations

import playbook.kernels.jit  # noqa: F401 - first: it says so where there is no Triton

# isort: split
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch._dynamo.device_interface import (
    CudaInterface,
    get_interface_for_device,
    register_interface_for_device,
)
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._triton import has_triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from playbook.kernels.jit import Kernel, Launch
from playbook_book.kernels.compiled import REGISTERS, THREADS

#: What Inductor asks a GPU for, as an H100 answers (CUDA C++ programming guide; H100 datasheet).
_H100: Any = SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=REGISTERS,
    max_threads_per_multi_processor=THREADS[90], max_threads_per_block=1024, warp_size=32,
)  # fmt: skip
#: Kernels in what Inductor writes: a name, and a text in quotation marks.
_KERNEL = re.compile(r"async_compile\.(triton|cpp_pybinding)\(.*?r?'''(.*?)'''", re.DOTALL)
#: What the text of a Triton kernel needs around it to be a module.
_PRELUDE = """\
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""


@dataclass(frozen=True)
class Generated:
    """A kernel as Inductor wrote it: ``language`` is "triton" or "cpp"."""

    language: str
    text: str

    def launch(self, *arguments: Any, **options: Any) -> Launch:
        """What a call would start on meta tensors, for `compiled`: ``XBLOCK`` and the like, and ``num_warps``.

        A Triton kernel's only.
        """
        return _imported(self.text).launch((1,), *arguments, **options)


def generated(function: Callable[..., Any], *given: Tensor, device: str = "cuda") -> list[Generated]:
    """The kernels that ``torch.compile(function)`` makes for tensors like ``given`` on "cuda" or "cpu", in order.

    Only their shapes, strides and dtypes are looked at. ``function`` takes tensors, and returns some.
    """
    mode = FakeTensorMode()
    with _stated_gpu(), mode, torch.no_grad():
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in given]
        traced = make_fx(lambda *xs: function(*xs), decomposition_table=select_decomp_table())(*fakes)
        with V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
            post_grad_passes(traced, is_inference=True)
            graph = GraphLowering(traced, fakes, is_inference=True)
            with V.set_graph_handler(graph):
                graph.run(*fakes)
                module = graph.codegen()[0].value
    return [Generated(*_kernel_only(*found)) for found in _KERNEL.findall(module)]


def _kernel_only(kind: str, text: str) -> tuple[str, str]:
    """Without imports, and without what Inductor's launcher is told."""
    if kind == "triton":
        return "triton", text[text.index("@triton.jit") :].strip() + "\n"
    return "cpp", text[text.index('extern "C"') :].strip() + "\n"


@contextmanager
def _stated_gpu() -> Iterator[None]:
    """Inductor finds the H100 that is not there; a GPU that is there answers for itself."""
    if torch.cuda.is_available():
        yield
        return
    usual = get_interface_for_device("cuda")
    asked = torch.cuda.get_device_properties
    with ExitStack() as undo:
        register_interface_for_device("cuda", _Stated)
        undo.callback(register_interface_for_device, "cuda", usual)
        torch.cuda.get_device_properties = lambda device=None: _H100
        undo.callback(setattr, torch.cuda, "get_device_properties", asked)
        before = driver._active
        target = GPUTarget("cuda", 90, 32)
        driver._active = cast(Any, SimpleNamespace(get_current_target=lambda: target))
        undo.callback(setattr, driver, "_active", before)
        for answers in (has_triton, DeviceProperties.create):  # neither takes the other's answer for its own
            answers.cache_clear()
            undo.callback(answers.cache_clear)
        yield


class _Stated(CudaInterface):
    """The H100, where Inductor asks for a device."""

    class Worker(CudaInterface.Worker):
        current_device = staticmethod(lambda: 0)
        get_device_properties = staticmethod(lambda device=None: _H100)

    current_device = staticmethod(lambda: 0)
    get_device_properties = staticmethod(lambda device=None: _H100)
    is_available = staticmethod(lambda: True)
    is_bf16_supported = staticmethod(lambda including_emulation=False: True)


@cache
def _imported(text: str) -> Kernel:
    """The text as a kernel: from a file, since Triton reads the source of what it compiles."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"written_{abs(hash(text))}.py"
        path.write_text(_PRELUDE + text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        name = re.search(r"def (\w+)", text)
        assert name is not None
        return Kernel(getattr(module, name[1]).fn)
