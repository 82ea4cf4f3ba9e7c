"""What chapters show of recorded runs of ``playbook bench kernels`` and ``fp8``: rows with their GPU, date and clock.

    run = recorded.kernels()
    print(run.heading)
    for row in run.of("rms_norm"):
        print(row.contender, row.size, row.seconds, row.gbps)

Until a GPU has been measured they are predictions, and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbook.bench import RESULTS, records
from playbook.hardware import ACCELERATORS
from playbook_book.kernels import modelled_records
from playbook_book.kernels.modelled import COPIED


@dataclass(frozen=True)
class Timed:
    """One contender in one case: median ``seconds``, and what they make of the FLOPs and bytes that the case needs.

    ``direction`` is "forward" or "both" (forward and backward), ``ours`` tells the book's kernels from their peers.
    ``bytes`` are those of the book's kernel, for every contender. ``roofline`` is the share of the datasheet's limit, the
    larger of FLOPs ÷ peak and bytes ÷ bandwidth; ``of_copy`` that of the bandwidth of the fastest copy which was recorded
    on this GPU; None where the GPU is not in `hardware.py`, or nothing is to be compared. ``error`` is
    ‖found − reference‖ / ‖reference‖.
    ``timing`` is "graph", or "calls" where Python called the kernels one by one.
    """

    kernel: str
    size: str
    dtype: str
    direction: str
    contender: str
    ours: bool
    seconds: float
    flops: int
    bytes: int
    roofline: float | None
    of_copy: float | None
    error: float | None
    timing: str
    date: str

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12

    @property
    def gbps(self) -> float:
        return self.bytes / self.seconds / 1e9


@dataclass(frozen=True)
class KernelRun:
    """All that is recorded of one GPU with one PyTorch and one Triton; ``copy_gbps`` is the fastest copy's bandwidth.

    ``clocks`` are the lowest and the highest SM clock (MHz) that pieces of the run reached, where they were watched.
    Of predictions, ``date`` is "".
    """

    gpu: str
    date: str
    torch: str
    triton: str
    copy_gbps: float | None
    rows: tuple[Timed, ...]
    clocks: tuple[float, float] | None = None

    @property
    def heading(self) -> str:
        """The sentence that belongs to every table or figure of these rows."""
        if not self.date:
            return modelled_records.HEADING
        at = "" if self.clocks is None else ", SM clock up to {:,.0f} to {:,.0f} MHz".format(*self.clocks)
        return f"Measured on one {self.gpu}{at}, {self.date}, PyTorch {self.torch}, Triton {self.triton}."

    def of(self, kernel: str, direction: str | None = None, size: str | None = None) -> list[Timed]:
        """The rows of a kernel, in one direction or size alone if given."""
        return [
            row
            for row in self.rows
            if row.kernel == kernel and direction in (None, row.direction) and size in (None, row.size)
        ]


def kernels(folder: Path = RESULTS) -> KernelRun:
    """``playbook bench kernels`` on the GPU that was measured last; predicted where none was.

    A run may have been recorded in pieces. Those with the same GPU, PyTorch and Triton as the newest belong to it, and
    of two times of one contender in one case the newer one counts.
    """
    return _newest("kernels", folder) or _predicted(modelled_records.kernels())


def fp8(folder: Path = RESULTS) -> KernelRun:
    """``playbook bench fp8``, likewise. What rows call ``kernel`` is the recipe of a product, or what quantizes."""
    return _newest("fp8", folder) or _predicted(modelled_records.fp8())


def _predicted(rows: Iterable[modelled_records.Modelled]) -> KernelRun:
    peaks, bandwidth = ACCELERATORS["h200"], modelled_records.GPU.bandwidth
    return KernelRun("NVIDIA H200", "", "", "", COPIED * bandwidth / 1e9, tuple(
        Timed(
            row.kernel, row.size, row.dtype, row.direction, row.contender, row.contender in ("ours", "tma", "groups"),
            row.seconds, row.flops, row.bytes,
            max(row.flops / peaks.peak(row.dtype), row.bytes / bandwidth) / row.seconds,
            row.bytes / row.seconds / (COPIED * bandwidth), None, "predicted", "",
        )
        for row in rows
    ))  # fmt: skip


def _newest(kind: str, folder: Path) -> KernelRun | None:
    found = [record for record in records(kind, folder) if record["provenance"]["gpu"]]
    if not found:
        return None
    newest = found[-1]["provenance"]
    same = [record for record in found if _where(record) == _where(found[-1])]
    copied = max(
        (record["copy_bytes_per_s"] / 1e9 for record in same if record["copy_bytes_per_s"]), default=None
    )
    clocks = [record["provenance"]["sm_mhz"] for record in same if "sm_mhz" in record["provenance"]]
    rows = {
        (row.kernel, row.size, row.dtype, row.direction, row.contender): row
        for record in same
        for row in _rows(record, copied)
    }
    return KernelRun(
        newest["gpu"], newest["date"][:10], newest["torch"], newest["triton"], copied, tuple(rows.values()),
        (min(clocks), max(clocks)) if clocks else None,
    )  # fmt: skip


def _where(record: Mapping[str, Any]) -> list[str]:
    return [record["provenance"][name] for name in ("gpu", "torch", "triton")]


def _rows(record: Mapping[str, Any], copied: float | None) -> list[Timed]:
    return [
        Timed(
            case["kernel"], case["size"], case["dtype"], case["direction"], one["name"], one["ours"], one["seconds"],
            case["flops"], case["bytes"], one["roofline"],
            one["of_copy"] and copied and one["gbps"] / copied, one["error"], one["timing"],
            record["provenance"]["date"][:10],
        )
        for case in record["cases"]
        for one in case["contenders"]
        if "seconds" in one and one.get("agrees", True)  # how fast a wrong result is does not matter
    ]  # fmt: skip
