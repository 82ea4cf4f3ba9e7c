"""How long an operation takes on one device: by its arithmetic or by its bytes, whichever is longer, and its launch.

A matrix product is cut into tiles that multiprocessors take in waves; the last wave is rarely full (tile and wave
quantisation: NVIDIA, "Matrix Multiplication Background User's Guide"). What large products reach of the peak, and what
memory reaches of its bandwidth, is calibrated (`calibration`). Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from playbook.hardware import Accelerator
from playbook.planning.calibration import Calibration
from playbook.planning.operations import Operation

#: Tiles of an output that kernels compute, and what each reaches beside the largest: smaller ones load more for a FLOP.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (64, 256, 0.85), (256, 64, 0.85), (64, 64, 0.6))
#: Parts of k that tiles can be cut into, where there are too few of them.
SPLITS = (1, 2, 4, 8)
#: How sharply the longer of arithmetic and bytes hides the other: infinity would be a roofline with a corner.
SHARP = 2.0
#: Steps along k that a tile takes to fill its pipeline and to write its result.
PROLOGUE = 96


@lru_cache(maxsize=1 << 16)
def waves(m: int, n: int, k: int, batch: int, processors: int) -> float:
    """FLOPs of time: what a device that is never idle would multiply while this product runs."""
    best = math.inf
    for rows, columns, reached in TILES:
        tiles = batch * -(-m // rows) * -(-n // columns)
        for split in SPLITS if tiles < processors else (1,):
            turns = -(-tiles * split // processors)
            depth = k / split + PROLOGUE * (1 if split == 1 else 2)
            best = min(best, turns * processors * 2.0 * rows * columns * depth / reached)
    return best


@dataclass(frozen=True)
class Device:
    """An accelerator with a calibration: seconds of operations. ``width`` is bytes of an element of products."""

    accelerator: Accelerator
    calibration: Calibration
    width: int = 2
    narrow: str = ""  # what FP8 recipes multiply in
    fused: bool = True

    @cached_property
    def dtype(self) -> str:
        return {4: "fp32", 2: "bf16", 1: "fp8"}[self.width]

    @cached_property
    def bandwidth(self) -> float:
        """Bytes/s that passes over memory reach."""
        return self.accelerator.memory_bandwidth * self.calibration.bandwidth

    def peak(self, dtype: str) -> float:
        """FLOP/s that large products reach."""
        return self.accelerator.peak(dtype) * self.calibration.reached(dtype)

    def seconds(self, operation: Operation) -> float:
        """Seconds that one operation keeps the device busy."""
        launch = self.calibration.launch * operation.kernels
        if operation.kind == "product":
            return self._product(operation) + launch
        if operation.kind == "attention":
            return self._attention(operation) + launch
        factor = 1.0 if self.fused else 1.0 + self.calibration.unfused * (operation.eager - 1.0)
        return operation.bytes * factor / self.bandwidth + launch

    def of(self, operations: Iterable[Operation]) -> float:
        """Seconds of operations one after another."""
        return sum(map(self.seconds, operations))

    def kernels(self, operations: Iterable[Operation]) -> float:
        """Kernels that the host launches for them."""
        return sum(
            o.kernels * (1 if self.fused or o.eager == 1.0 else self.calibration.unfused_kernels)
            for o in operations
        )

    def _product(self, o: Operation) -> float:
        narrow = self.narrow if o.narrow else ""
        m, n, k, batch = o.m, o.n, o.k, o.batch
        moved = batch * (m * k + k * n + m * n) * self.width
        work = waves(m, n, k, batch, self.calibration.processors)
        arithmetic, memory = work / self.peak(narrow or self.dtype), moved / self.bandwidth
        seconds = (arithmetic**SHARP + memory**SHARP) ** (1 / SHARP)
        if narrow:  # both inputs are read, and written in a byte, as they are and the other way around
            seconds += self.calibration.quantise * batch * (m * k + k * n) / self.bandwidth
        return seconds

    def _attention(self, o: Operation) -> float:
        """A flash kernel: rows of 128 queries of each head in waves; short samples and narrow heads reach less."""
        backward = o.name.endswith("backward")
        reached = self.calibration.attention_backward if backward else self.calibration.attention
        blocks = o.batch * -(-o.m // 128)
        full = blocks / (-(-blocks // self.calibration.processors) * self.calibration.processors)
        full = 1.0 if self.calibration.processors == 1 else max(full, 0.5)
        shape = o.n / (o.n + 384) * min(1.0, o.k / 128) ** 0.35
        return o.flops / (self.accelerator.peak(self.dtype) * reached * shape * full)
