"""One source for machines with a GPU and without: compiled where tensors are on one, interpreted where they are not.

    @kernel
    def add_kernel(x, y, out, n, BLOCK: tl.constexpr): ...

    add_kernel[grid](x, y, out, n, BLOCK=1024)

The interpreter is Triton's own: it runs the programs of the grid one after the other, with NumPy. It is for small sizes,
and for instruments that look at every address. With tensors on PyTorch's device "meta", which have sizes and nothing
else, nothing runs: what would be launched can be looked at (`launches`), and compiled for a GPU that is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from playbook.errors import ConfigError

try:
    import triton
    import triton.experimental.gluon.language.nvidia.hopper
    import triton.language
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.runtime import _allocation
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang, interpreter_builder
    from triton.runtime.jit import JITFunction
except ImportError as error:  # pragma: no cover - only where there is no Triton
    raise ConfigError(
        "the kernels need Triton, which is not installed here (it exists for Linux: pip install triton)"
    ) from error
#: What the interpreter has fp32 in the place of.
WIDENED = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
#: Triton's language, which kernels have from here: so that without Triton they say what this file says.
tl = triton.language
gl = triton.experimental.gluon.language
# It would look for overflows in every sum and, as it does not debug, tell nobody: a fifth of its time.
interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)
hopper = gl.nvidia.hopper


@dataclass(frozen=True)
class Launch:
    """A kernel, its grid, its arguments by name and what its compiler is asked for (``num_warps`` and so on).

    While it is interpreted, ``memory`` has the tensors that are read and written in place of its arguments.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]
    memory: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)


_watchers: list[list[Launch]] = []


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """Everything that is launched in this block, in order."""
    found: list[Launch] = []
    _watchers.append(found)
    try:
        yield found
    finally:
        _watchers.remove(found)


class Kernel(JITFunction):
    """A ``triton.jit`` function that CPU tensors run in the interpreter.

    That is right in fp32 and fp16. Its bf16 is wrong (it rounds where a GPU does not), and so are its casts to FP8 (they
    do not round to even): tensors of `WIDENED` are computed in fp32 there, and rounded by PyTorch when all is stored.
    """

    def run(self, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        tensors = [x for x in (*args, *options.values()) if isinstance(x, Tensor)]
        device = self._device_of(tensors)
        if device.type == "cpu" or _watchers:
            launch = self.launch(grid, *args, **options)
            for found in _watchers:
                found.append(launch)
        if device.type == "meta" or any(isinstance(x, FakeTensor) for x in tensors):
            return None  # sizes, and no memory
        if device.type == "cpu":
            return self.on_cpu(launch)
        with _current(device):
            return super().run(*args, grid=grid, warmup=warmup, **options)

    def on_cpu(self, launch: Launch) -> None:
        interpret(launch)

    def _device_of(self, tensors: Sequence[Tensor]) -> torch.device:
        """The one device, GPUs being told apart by their number; raises ConfigError where there are several."""
        found = {x.device for x in tensors}
        if len(found) != 1:
            said = ", ".join(sorted(map(str, found)))
            raise ConfigError(f"{self.fn.__name__} is given tensors on {said}, but must be on one device")
        return found.pop()

    def launch(self, grid: Any, *args: Any, **options: Any) -> Launch:
        """What `run` would start."""
        named = {name: value for name, value in options.items() if name in self.arg_names}
        given = inspect.signature(self.fn).bind(*args, **named).arguments
        others = {name: value for name, value in options.items() if name not in named}
        return Launch(self, tuple(grid(given) if callable(grid) else grid), dict(given), others)


class GluonKernel(Kernel):
    """A ``gluon.jit`` function, which no interpreter knows."""

    def create_binder(self) -> Any:
        found = super().create_binder()
        self.ASTSource = GluonASTSource
        return found

    def is_gluon(self) -> bool:
        return True

    def on_cpu(self, launch: Launch) -> None:
        raise ConfigError(
            f"{self.fn.__name__} is written in Gluon and needs a GPU, but its tensors are on the CPU"
        )


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton compiles for the current GPU and launches on its stream, wherever the tensors are."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def kernel(function: Callable[..., None]) -> Kernel:
    """Decorates a function in Triton's language: ``function[grid](…)`` launches it."""
    return Kernel(function)


def gluon_kernel(function: Callable[..., None]) -> GluonKernel:
    """Decorates a function in Gluon, likewise."""
    return GluonKernel(function)


def interpret(launch: Launch) -> None:
    """Carry out a launch on CPU tensors, program by program; what only a compiler asks for is left out."""
    tensors = {name: x for name, x in launch.arguments.items() if isinstance(x, Tensor)}
    wide = {name: _widened(x) for name, x in tensors.items() if x.dtype in WIDENED}
    launch.memory.update(tensors | wide)
    try:
        with _calls_interpreted(launch.kernel.fn):
            InterpretedFunction(launch.kernel.fn)[launch.grid](**{**launch.arguments, **wide})
    finally:
        launch.memory.clear()
    for name, x in wide.items():
        # What was only read stays untouched: autograd would take a write for a change of what it has saved.
        if not torch.equal(x.view(torch.int32), _widened(tensors[name]).view(torch.int32)):
            tensors[name].copy_(x)


def _widened(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=torch.float32).copy_(x)


@contextmanager
def _calls_interpreted(function: Callable[..., None]) -> Iterator[None]:
    """What a kernel's ``function`` calls is interpreted, too, Triton's own (``tl.sum`` and others) among it.

    For that each function's language is patched, once, and in the end made whole again in the opposite order: Triton
    leaves it patched, for a compiler too.
    """
    original = JITFunction.__call__
    ready: dict[Callable[..., Any], Callable[..., Any]] = {}
    patches = [_patch_lang(function)]

    def call(function: JITFunction, *args: Any, **named: Any) -> Any:
        if function.fn not in ready:
            patches.append(_patch_lang(function.fn))
            ready[function.fn] = InterpretedFunction(function.fn).rewrite()
        return ready[function.fn](*args, **named)

    JITFunction.__call__ = call
    try:
        yield
    finally:
        JITFunction.__call__ = original
        for patched in reversed(patches):
            patched.restore()


def lend_scratch() -> None:
    """Descriptors are written by the kernel, into memory that Triton asks an allocator for: ours, unless somebody has set
    another one. It holds no tensor, and a launch makes the GPU of its tensors the current one (`jit`)."""
    if isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        triton.set_allocator(_scratch)


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def check_gpu(device: torch.device | str | None) -> None:
    """Raise ConfigError where ``device`` is a GPU older than Ampere: Triton compiles for none of these."""
    if device is None or torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return
    found = torch.cuda.get_device_capability(device)
    if found < (8, 0):
        old = f"{torch.cuda.get_device_name(device)} has compute capability {found[0]}.{found[1]}"
        raise ConfigError(f"{old}, but the kernels need 8.0 (A100) or later: say --kernels torch")


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def next_power(x: int) -> int:
    """The smallest power of two that is not below ``x``: blocks have no other sizes."""
    return int(triton.next_power_of_2(x))
