"""What a warp asks of memory, read off the indices of a CUDA kernel: sectors, bank conflicts, branches.

A kernel's accesses are written as a function of one thread, line by line beside its CUDA (`kernels.ladder`):

    def add(t):                                          # __global__ void add(const float *x, …, int n)
        i = t.block.x * t.block_dim.x + t.x              # int i = blockIdx.x * blockDim.x + threadIdx.x;
        yield load("x", i)                               # … x[i] …

    count(add, grid=Dim(4), block_dim=Dim(256)).sectors_per_request

The 32 threads of a warp execute each access together. In global memory it costs the sectors of 32 bytes that it touches.
Shared memory has 32 banks, each 4 bytes wide, and gives one word of each at a time: words of the same bank wait for each
other, which is a *bank conflict*; threads that want the same word get it together. Where threads take different
branches, the warp goes through all of them, and threads that are not in one idle meanwhile: *divergence*.
Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory", "Shared Memory and Memory Banks", "Branching
and Divergence".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from playbook.errors import ConfigError

#: Bytes of a sector of global memory, threads of a warp.
SECTOR, WARP = 32, 32
#: Banks of shared memory, and bytes of a word in one.
BANKS, WORD = 32, 4


class Dim(NamedTuple):
    """A ``dim3``."""

    x: int
    y: int = 1
    z: int = 1

    @property
    def size(self) -> int:
        return self.x * self.y * self.z

    def place(self, index: int) -> Dim:
        """Where the ``index``-th is, x fastest."""
        return Dim(index % self.x, index // self.x % self.y, index // (self.x * self.y))


class Thread(NamedTuple):
    """``threadIdx`` (x, y, z), ``blockIdx``, ``blockDim`` and ``gridDim``."""

    x: int
    y: int
    z: int
    block: Dim
    block_dim: Dim
    grid: Dim


class Step(NamedTuple):
    """What a thread does: reads or writes ``size`` bytes at byte ``address`` of an array, or enters a branch.

    ``line`` tells accesses of the same array in different lines of the kernel apart.
    """

    kind: str
    array: str
    address: int = 0
    size: int = 0
    line: str = ""


def load(array: str, index: int, size: int = 4, line: str = "") -> Step:
    """Reads the ``index``-th number of ``size`` bytes (1, 2, 4, 8 or 16) from global memory."""
    return Step("load", array, index * size, size, line)


def store(array: str, index: int, size: int = 4, line: str = "") -> Step:
    """Writes the ``index``-th number to global memory."""
    return Step("store", array, index * size, size, line)


def shared(array: str, index: int, size: int = 4, line: str = "") -> Step:
    """Reads or writes the ``index``-th number of an array in shared memory, which begins in bank 0."""
    return Step("shared", array, index * size, size, line)


def branch(name: str) -> Step:
    """Enters a branch."""
    return Step("branch", name)


Kernel = Callable[[Thread], Iterator[Step]]
#: What the threads of a warp do together, None for those that idle.
Request = Sequence[Step | None]


@dataclass
class Cost:
    """Of one access, summed over the warps that execute it.

    ``requests``: warps; ``active``: their threads that take part; ``sectors`` of global memory; ``passes`` of shared
    memory, ``least`` what they would be without conflicts; ``needed``: bytes that threads want, each counted once a warp.
    """

    requests: int = 0
    active: int = 0
    sectors: int = 0
    passes: int = 0
    least: int = 0
    needed: int = 0


@dataclass
class Counted:
    """Costs by kind and by "array" or "array, line": ``costs["load", "A"]``."""

    costs: dict[tuple[str, str], Cost] = field(default_factory=lambda: defaultdict(Cost))

    def sum(self, name: str, *kinds: str) -> int:
        """The sum of a field of `Cost` over kinds of accesses."""
        return sum(getattr(cost, name) for (kind, _), cost in self.costs.items() if kind in kinds)

    @property
    def sectors(self) -> int:
        return self.sum("sectors", "load", "store")

    @property
    def sectors_per_request(self) -> float:
        """4 where threads want 4 bytes each, side by side; 32 where each wants a sector of its own."""
        return self.sectors / max(self.sum("requests", "load", "store"), 1)

    @property
    def efficiency(self) -> float:
        """Bytes of global memory that are needed, of those in the sectors that are asked for."""
        return self.sum("needed", "load", "store") / max(SECTOR * self.sectors, 1)

    @property
    def bank_conflicts(self) -> int:
        """Passes of shared memory beyond those that conflict-free accesses of as many bytes take."""
        return self.sum("passes", "shared") - self.sum("least", "shared")

    @property
    def active(self) -> dict[str, float]:
        """By branch: of the threads of warps that go through it, the share that is in it."""
        found = {name: cost for (kind, name), cost in self.costs.items() if kind == "branch"}
        return {name: cost.active / (WARP * cost.requests) for name, cost in found.items()}

    @property
    def divergence(self) -> float:
        """Of all threads of warps in branches, the share that idles: 0 where whole warps agree."""
        places = WARP * self.sum("requests", "branch")
        return 1 - self.sum("active", "branch") / places if places else 0.0


def count(kernel: Kernel, grid: Dim, block_dim: Dim, warps: Sequence[int] | None = None) -> Counted:
    """All warps of all blocks of a launch; of each block only ``warps``, if these are given. For small launches.

    Raises ConfigError for a block of more than 1024 threads, and for numbers of a size that no thread reads at once.
    """
    if not 0 < block_dim.size <= 1024:
        raise ConfigError(
            f"a block of {tuple(block_dim)} has {block_dim.size} threads, but must have 1 to 1024"
        )
    counted = Counted()
    for block in map(grid.place, range(grid.size)):
        for warp in range(-(-block_dim.size // WARP)) if warps is None else warps:
            threads = range(warp * WARP, min((warp + 1) * WARP, block_dim.size))
            _add(counted, [kernel(Thread(*block_dim.place(i), block, block_dim, grid)) for i in threads])
    return counted


def _add(counted: Counted, threads: list[Iterator[Step]]) -> None:
    """One warp. Threads meet where they execute the same line for the n-th time."""
    together: dict[tuple[str, str, str, int], list[Step | None]] = defaultdict(lambda: [None] * WARP)
    for lane, thread in enumerate(threads):
        times: dict[tuple[str, str, str], int] = defaultdict(int)
        for step in thread:
            where = (step.kind, step.array, step.line)
            together[*where, times[where]][lane] = step
            times[where] += 1
    for (kind, array, line, _), request in together.items():
        cost = counted.costs[kind, f"{array}, {line}" if line else array]
        steps = _steps(request)
        cost.requests += 1
        cost.active += len(steps)
        cost.needed += len({step.address for step in steps}) * steps[0].size
        if kind == "shared":
            cost.passes += passes(request)
            cost.least += len(_parts(request))
        elif kind != "branch":
            cost.sectors += sectors(request)


def sectors(request: Request) -> int:
    """How many sectors a request of a warp touches. Raises ConfigError for what no thread can ask for."""
    return len(touched(request))


def touched(request: Request) -> set[int]:
    """The sectors of global memory that a request touches, the first of the array being 0. Raises as `sectors`."""
    return {step.address // SECTOR for step in _steps(request)}  # 16 bytes at a multiple of 16 lie in one


def passes(request: Request) -> int:
    """How often the banks are asked for a request of a warp: as often as one of them has different words to give.

    Raises as `sectors`.
    """
    return sum(max(map(len, part.values())) for part in banks(request))


def banks(request: Request) -> list[dict[int, set[int]]]:
    """The banks that give words of shared memory, and which, for each part of a request that is served on its own.

    Threads that want 8 bytes are served 16 at a time, those that want 16 bytes 8 at a time. Raises as `sectors`.
    """
    found = []
    for part in _parts(request):
        words: dict[int, set[int]] = defaultdict(set)
        for step in part:
            for word in range(step.address // WORD, -(-(step.address + step.size) // WORD)):
                words[word % BANKS].add(word)
        found.append(words)
    return found


def _parts(request: Request) -> list[list[Step]]:
    """The threads that are served together, by the width of what they want; parts that all idle are left out."""
    each = WARP * WORD // max([WORD, *(step.size for step in _steps(request)[:1])])
    parts = [request[i : i + each] for i in range(0, len(request), each)]
    return [_steps(part) for part in parts if any(part)]


def _steps(request: Request) -> list[Step]:
    steps = [step for step in request if step is not None]
    for step in steps:
        if step.kind != "branch" and (step.size not in (1, 2, 4, 8, 16) or step.address % step.size):
            raise ConfigError(
                f"{step.array} is accessed at byte {step.address} with {step.size} bytes, but a thread takes 1, 2, 4, 8 "
                "or 16 at a multiple of as many"
            )
    return steps
