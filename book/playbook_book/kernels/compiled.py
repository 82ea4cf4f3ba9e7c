"""What Triton's compiler makes of a launch, for a GPU that need not be there: registers, spills, shared memory.

    with launches() as found:
        rms_norm(torch.empty(8192, 4096, device="meta", dtype=torch.bfloat16), weight)
    compiled(found[0], 90).registers

The last step, from PTX to machine code, is NVIDIA's ``ptxas``, which comes with Triton and reports what it used.
"""

from __future__ import annotations

import playbook.kernels.jit  # noqa: F401 - first: it says so where there is no Triton

# isort: split
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_manager

from playbook.errors import ConfigError
from playbook.kernels.jit import GluonASTSource, Launch

#: What NVIDIA calls the architectures, by compute capability. The a: with what only this generation has (wgmma, TMA).
ARCHITECTURES = {80: "sm_80", 89: "sm_89", 90: "sm_90a", 100: "sm_100a"}
#: Bytes of shared memory that a block may ask for (CUDA C++ programming guide, table of technical specifications).
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
#: Registers, threads and blocks of a multiprocessor, and its shared memory in bytes (the same table).
REGISTERS, THREADS, BLOCKS = 65536, {80: 2048, 89: 1536, 90: 2048, 100: 2048}, 32
ON_CHIP = {80: 164 * 1024, 89: 100 * 1024, 90: 228 * 1024, 100: 228 * 1024}
#: What the assembler has said, in Triton's cache.
REPORT = "ptxas.log"

_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64", torch.int32: "i32",
    torch.int64: "i64", torch.int8: "i8", torch.uint8: "u8", torch.uint16: "u16", torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
_INSTRUCTION = re.compile(r"\s*(?P<guard>@!?%p\d+\s+)?(?P<name>[a-z][\w.:]*)\s+(?P<operands>[^;/]*);")
_REGISTER = re.compile(r"%(?:rd|rs|r|f|fd|p|b)\d+")
#: Instructions whose first operand is read.
_WITHOUT_RESULT = (
    "st.", "bar.", "bra", "red.", "ret", "fence", "mbarrier.", "cp.", "wgmma.fence", "wgmma.wait", "stmatrix",
)  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """A kernel for one ``capability``: registers and spilled bytes of a thread, shared memory of a block.

    ``warnings`` are the numbers of those that the assembler prints ("C7515": wgmma are serialized); ``cubin`` is what
    Triton would load, for `machine_code.py`.
    """

    name: str
    capability: int
    warps: int
    registers: int
    spills: int
    shared: int
    ptx: str
    warnings: tuple[str, ...] = ()
    cubin: bytes = field(default=b"", repr=False)

    def uses(self, instruction: str) -> int:
        """How often the PTX has an instruction: "wgmma.mma_async", "cp.async.bulk.tensor" (TMA), "tcgen05.mma", …"""
        return len(re.findall(rf"\b{re.escape(instruction)}", self.ptx))

    @property
    def unset(self) -> set[str]:
        """Registers that the PTX reads and never writes: what an assembler makes of these is its own affair."""
        read: set[str] = set()
        written: set[str] = set()
        for line in self.ptx.splitlines():
            found = _INSTRUCTION.match(line)
            if not found:
                continue
            operands = found["operands"]
            first = re.match(r"\{[^}]*\}|[^,;]+", operands)
            goes_to = first[0] if first and not found["name"].startswith(_WITHOUT_RESULT) else ""
            written.update(_REGISTER.findall(goes_to))
            read.update(_REGISTER.findall((found["guard"] or "") + operands[len(goes_to) :]))
        return read - written

    @property
    def limits(self) -> dict[str, int]:
        """How many blocks a multiprocessor has room for, by each of its resources: the scarcest decides.

        Registers are handed out in units of 256 for a warp, shared memory with 1 KiB beside each block.
        """
        per_warp = -(-max(self.registers, 1) * 32 // 256) * 256
        return {
            "blocks": BLOCKS,
            "threads": THREADS[self.capability] // (32 * self.warps),
            "registers": REGISTERS // (per_warp * self.warps),
            "shared memory": ON_CHIP[self.capability] // (self.shared + 1024),
        }

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has at once."""
        return min(self.limits.values())

    @property
    def occupancy(self) -> float:
        """Of the threads that a multiprocessor can have, the share that fits."""
        return self.resident * 32 * self.warps / THREADS[self.capability]


def compiled(launch: Launch, capability: int) -> Compiled:
    """``launch`` compiled for a GPU of this compute capability (80: A100, 89: L40, 90: H100, 100: B200).

    Raises ConfigError for others, and for types that these do not have.
    """
    if capability not in ARCHITECTURES:
        raise ConfigError(
            f"capability is {capability}, but must be one of {', '.join(map(str, ARCHITECTURES))}"
        )
    kind = GluonASTSource if launch.kernel.is_gluon() else ASTSource
    source = kind(fn=launch.kernel, **_specialized(launch))
    target = GPUTarget("cuda", capability, 32)
    try:
        with _assembler_reports() as said:
            made = triton.compile(source, target=target, options=launch.options)
    except triton.CompilationError as error:
        raise ConfigError(
            f"{launch.kernel.fn.__name__} is not for capability {capability}: {error}"
        ) from error
    ptx, cubin, told = made.asm["ptx"], made.asm["cubin"], said.getvalue()
    kept = get_cache_manager(made.hash)  # Triton's, beside the machine code that it is about
    if not told and (file := kept.get_file(REPORT)):
        told = Path(file).read_text()
    else:
        if not told:  # a launch has compiled it, not this function: once more, by the same command
            backend = make_backend(target)
            with _assembler_reports() as said:
                backend.make_cubin(ptx, {}, backend.parse_options(launch.options), capability)
            told = said.getvalue()
        kept.put(told, REPORT, binary=False)
    registers = re.search(r"Used (\d+) registers", told)
    assert registers is not None, told
    spills = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", told)))
    warnings = tuple(re.findall(r"\((C75\d\d)\)", told))
    warps, shared, name = made.metadata.num_warps, made.metadata.shared, launch.kernel.fn.__name__
    return Compiled(name, capability, warps, int(registers[1]), spills, shared, ptx, warnings, cubin)


@contextlib.contextmanager
def _assembler_reports() -> Iterator[io.StringIO]:
    """What ``ptxas`` says meanwhile."""
    with knobs.nvidia.scope(), contextlib.redirect_stdout(io.StringIO()) as said:
        knobs.nvidia.dump_ptxas_log = True
        yield said


def _specialized(launch: Launch) -> dict[str, Any]:
    """Types of all arguments as ``Kernel[grid]`` sees them: ones are constants, what 16 divides is known to be so."""
    signature, constants, aligned = {}, {}, {}
    for i, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments[name]
        one = isinstance(value, int) and value == 1
        if i in launch.kernel.constexprs or value is None or isinstance(value, bool) or one:
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, Tensor):
            signature[name] = f"*{_TYPES[value.dtype]}"
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i64" if abs(value) >= 2**31 else "i32"
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            aligned[(i,)] = [["tt.divisibility", 16]]
    return {"signature": signature, "constexprs": constants, "attrs": aligned}
