"""What a GPU is made of, and arithmetic with that: clocks, bytes in flight, waves of blocks. Standard library only.

    H100.cores                                            # 16,896
    bytes_in_flight(3.35e12, LATENCY["device memory"])    # that have to be on their way to keep memory busy
    waves(648, H100.multiprocessors)                      # rounds in which 648 blocks are computed, one a multiprocessor

What a multiprocessor has room for is in `compiled.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS


@dataclass(frozen=True)
class Chip:
    """A GPU of ``hardware.py``, its compute capability, its multiprocessors and the cores of each (fp32 units)."""

    name: str
    capability: int
    multiprocessors: int
    cores_each: int
    tensor_cores_each: int
    source: str

    @property
    def cores(self) -> int:
        return self.multiprocessors * self.cores_each

    @property
    def clock(self) -> float:
        """Cycles per second at which its cores reach the datasheet's fp32 peak: each does a multiply-add, two FLOPs."""
        return ACCELERATORS[self.name].peak("fp32") / (2 * self.cores)


H100 = Chip("h100", 90, 132, 128, 4, "NVIDIA H100 Tensor Core GPU architecture, SXM5")
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("a100-80", 80, 108, 64, 4, "NVIDIA A100 Tensor Core GPU architecture"),
        Chip("rtx4090", 89, 128, 128, 4, "NVIDIA Ada GPU architecture"),
        H100,
        Chip("h200", 90, 132, 128, 4, "as an H100, with other memory"),
    )
}

#: Of an H100 (its architecture paper): bytes of registers and of L1 cache and shared memory in each multiprocessor, and
#: of the L2 cache. A multiprocessor's shared memory delivers a word of 4 bytes from each of its 32 banks in a cycle.
REGISTER_BYTES, L1_BYTES, L2_BYTES, SHARED_BYTES_PER_CYCLE = 256 * 1024, 256 * 1024, 50 * 2**20, 128

#: Seconds until what a thread loads is there, when nothing else is loaded: cycles of a Hopper GPU (H800 PCIe, 1,755 MHz)
#: by Luo et al. 2024, arXiv 2402.13499, table IV.
LATENCY = {
    name: cycles / 1.755e9
    for name, cycles in {"shared memory": 29.0, "L1": 40.7, "L2": 263.0, "device memory": 478.8}.items()
}


def bytes_in_flight(bandwidth: float, latency: float) -> float:
    """Bytes that are on their way at any time where ``bandwidth`` (bytes/s) is used up, each for ``latency`` seconds.

    Little's law: what is in a queue is its throughput times the time spent in it (Little 1961).
    """
    return bandwidth * latency


def waves(blocks: int, at_once: int) -> int:
    """Rounds in which ``blocks`` of equal length are computed, ``at_once`` at a time. Raises ConfigError below 1."""
    for name, value in (("blocks", blocks), ("at_once", at_once)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1")
    return -(-blocks // at_once)


def busy(blocks: int, at_once: int) -> float:
    """Of the places for blocks, in all waves, the share that has one: 1 where the last wave is full."""
    return blocks / (at_once * waves(blocks, at_once))
