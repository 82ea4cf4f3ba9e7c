"""How long a kernel of tensor cores takes, predicted from its tiles and its GPU's rates. Standard library only.

    kernel = attention("fa3", "forward", Shape(batch=1, heads=16, kv_heads=16, seq=16_384, d=128), GPUS["h100"])
    predicted(kernel, GPUS["h100"])                       # seconds

A roofline for each multiprocessor, with what a roofline leaves out:

- *Stations.* A worker (four warps, one beside each tensor core) goes from the tensor cores to the exponential units
  (MUFU) and the issue slots, and back. How often, with several that queue, is mean-value analysis (Reiser and
  Lavenberg 1980); one worker alone leaves each station idle while it is at another: hence ping-pong and overlap.
- *Waves.* Blocks go to places on multiprocessors, the longest first; what is left over at the end is lost.
- *Ends.* What a block loads before its loop and stores after it, at its share of the memory's rate.
- *Power.* A GPU lowers its clock until its watts suffice. So FLOPs have a price in joules, and a second limit.

What a kernel is made of stands in `modelled_kernels.py`. Four constants were fitted to published times (`Reached`); all
others are datasheets', architecture papers' or measured by others. ``benchmarks/fit_kernels.py`` fits, and predicts each
source by the others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

from playbook.hardware import ACCELERATORS
from playbook_book.chips import CHIPS, LATENCY

#: A multiprocessor's rates per cycle: exponentials (4 in each quarter), instructions of threads (4 warps), bytes of
#: shared memory. CUDA C++ programming guide, "Arithmetic Instructions", for 8.0 and 9.0; whitepapers of both.
EXPONENTIALS, INSTRUCTIONS, SHARED = 16, 128, 128
#: Bytes that the L2 cache gives to all multiprocessors in a cycle: A100's architecture paper; none is printed for H100.
L2 = 5120
#: What mma.sync reaches of an H100's tensor cores: Luo et al. 2024, arXiv 2402.13499, dense mma against wgmma.
SYNCHRONOUS = 0.63
#: What the fastest copy reaches of the datasheet's bandwidth: nvidia-h200-others-kernels.json.
COPIED = 0.89


@dataclass(frozen=True)
class Gpu:
    """``flops`` of 16-bit tensor cores in a cycle of a multiprocessor, highest ``clock`` (Hz), ``watts``, bytes/s."""

    generation: str
    multiprocessors: int
    flops: int
    clock: float
    watts: float
    bandwidth: float


def _gpu(name: str, chip: str, flops: int, clock: float, watts: float, bandwidth: float | None = None) -> Gpu:
    generation = "hopper" if CHIPS[chip].capability == 90 else "ampere"
    rate = bandwidth or ACCELERATORS[name].memory_bandwidth
    return Gpu(generation, CHIPS[chip].multiprocessors, flops, clock, watts, rate)


#: Highest clocks and power limits are the datasheets' (H100's boost under load: nvidia-smi, 1,980 MHz).
GPUS = {
    "h100": _gpu("h100", "h100", 4096, 1.98e9, 700),
    "h800": _gpu("h800", "h100", 4096, 1.98e9, 700),
    "h200": _gpu("h200", "h200", 4096, 1.98e9, 700),
    "a100-40": _gpu("a100-40", "a100-80", 2048, 1.41e9, 400),
    "a100-pcie": _gpu("a100-80", "a100-80", 2048, 1.41e9, 300, 1.935e12),
}


@dataclass(frozen=True)
class Turn:
    """What one turn of a worker's loop asks of its multiprocessor: FLOPs, exponentials, thread instructions, bytes.

    ``speed``: of the 16-bit tensor cores' rate, how much its instructions can use (2 for FP8). ``sync``: operands are
    loaded into registers by instructions of their own (mma.sync), and not by tensor cores themselves (wgmma).
    """

    flops: float
    exponentials: float = 0.0
    instructions: float = 0.0
    shared: float = 0.0
    l2: float = 0.0
    speed: float = 1.0
    sync: bool = False


@dataclass(frozen=True)
class Kernel:
    """A launch. ``blocks``: (turns of each worker, how many such blocks), the longest first.

    ``workers`` of a block, ``resident`` blocks of a multiprocessor, ``ahead``: turns that a worker has under way at once.
    ``ends``: bytes that a block moves outside of its loop; ``bytes``: all that device memory has to move; ``flops``:
    those that count for TFLOP/s; ``launches``: kernels one after another.
    """

    turn: Turn
    blocks: tuple[tuple[int, int], ...]
    workers: int
    resident: int
    ends: float
    bytes: float
    flops: float
    ahead: int = 1
    launches: int = 1


@dataclass(frozen=True)
class Reached:
    """What was fitted: joules of a 16-bit FLOP by generation, of a thread's instruction, and seconds of a launch."""

    hopper: float
    ampere: float
    instruction: float
    launch: float


#: By ``benchmarks/fit_kernels.py``, all sources together.
FITTED = Reached(hopper=0.94e-12, ampere=1.27e-12, instruction=18.5e-12, launch=4.2e-6)
#: Half of all published times are at most so far off, when a fit to the other sources predicts them; nine of ten by this.
USUAL, SELDOM = 0.15, 0.29


def rounds(demands: tuple[float, ...], customers: int) -> float:
    """Cycles between two turns that end, where ``customers`` go round stations which take ``demands`` cycles each.

    Exact mean-value analysis of a closed queueing network: whoever arrives sees the queues that one fewer would leave.
    """
    queues, gap = [0.0] * len(demands), sum(demands)
    for n in range(1, customers + 1):
        waits = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
        gap = sum(waits) / n
        queues = [wait / gap for wait in waits]
    return gap


@cache
def longest(blocks: tuple[tuple[int, int], ...], places: int) -> tuple[int, int]:
    """Turns, and blocks, of the place that has the most to do, where each block goes to the place that is free first."""
    if len(blocks) == 1:
        waves = -(-blocks[0][1] // places)
        return waves * blocks[0][0], waves
    free = [(0, 0)] * places
    for turns, count in blocks:
        for _ in range(count):
            busy, taken = free[0]
            heapq.heapreplace(free, (busy + turns, taken + 1))
    return max(free)


def cycles(kernel: Kernel, gpu: Gpu) -> float:
    """Of a multiprocessor, from the first block to the last, if power and memory were no limit."""
    turn, several = kernel.turn, sum(count for _, count in kernel.blocks)
    resident = min(kernel.resident, -(-several // gpu.multiprocessors))
    tensor, shared = turn.flops / (gpu.flops * turn.speed), turn.shared / SHARED
    products = (tensor, shared) if turn.sync else (max(tensor, shared),)
    demands = *products, turn.exponentials / EXPONENTIALS, turn.instructions / INSTRUCTIONS
    gap = rounds(demands, resident * kernel.workers * kernel.ahead)
    gap = max(gap, turn.l2 * gpu.multiprocessors / L2)
    turns, taken = longest(kernel.blocks, gpu.multiprocessors * resident)
    share = COPIED * gpu.bandwidth / gpu.multiprocessors / gpu.clock  # bytes in a cycle
    ends = 2 * LATENCY["device memory"] * gpu.clock + kernel.ends / share
    return (
        turns * kernel.workers * resident * gap + taken * ends
    )  # what neighbours hide of one another's ends


def limits(kernel: Kernel, gpu: Gpu, reached: Reached = FITTED) -> dict[str, float]:
    """Seconds by what limits them; the largest, after the launch, is the prediction."""
    turn, done = kernel.turn, sum(turns * count for turns, count in kernel.blocks) * kernel.workers
    price = getattr(reached, gpu.generation) / max(turn.speed, 1.0)
    joules = done * (turn.flops * price + (turn.instructions + turn.exponentials) * reached.instruction)
    return {
        "multiprocessors": cycles(kernel, gpu) / gpu.clock,
        "power": joules / gpu.watts,
        "memory": kernel.bytes / (COPIED * gpu.bandwidth),
    }


def predicted(kernel: Kernel, gpu: Gpu, reached: Reached = FITTED) -> float:
    """Seconds."""
    return kernel.launches * reached.launch + max(limits(kernel, gpu, reached).values())
