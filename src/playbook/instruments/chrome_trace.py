"""What a trace is made of, and reading what ``torch.profiler`` writes: Chrome's trace-event format, version 1.

One JSON object whose ``traceEvents`` hold complete events (``"ph": "X"``; ``ts`` and ``dur`` in µs) and names
of processes and threads (``"ph": "M"``). Kernels carry the ``correlation`` id of the call that launched them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playbook.errors import DataError
from playbook.figures.style import PALETTE

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function"}

# Names that give an event away, tried in order. Collectives come first: "nccl:all_reduce" also "reduces".
COMMUNICATION = re.compile(
    r"nccl|gloo|c10d|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_\b", re.I
)
WAITING = re.compile(r"synchronize|streamwait|eventquery", re.I)
COPIES = re.compile(
    r"memcpy|memset|^aten::(copy_|_?to(_copy)?|clone|contiguous|item|_local_scalar_dense|cpu|cuda)$", re.I
)
INPUT = re.compile(r"dataloader|\bdata\b|\bbatch\b", re.I)
PASSES = (
    (re.compile("forward", re.I), "F"),
    (re.compile("backward", re.I), "B"),
    (re.compile("optimizer", re.I), "optimizer"),
)

# What a reader can use; ids, strides and sequence numbers would only make the page heavy.
SHOWN = {
    "Input Dims": "shapes",
    "Input type": "types",
    "bytes": "bytes",
    "memory bandwidth (GB/s)": "GB/s",
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared memory",
}


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline: ``kind`` is "host" (a thread) or "stream" (a device's queue)."""

    name: str
    kind: str = "host"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time. ``lane`` indexes `Trace.lanes`; ``start`` and ``duration`` are microseconds;
    ``category`` is a concept of the palette."""

    name: str
    lane: int
    start: float
    duration: float
    category: str = "compute"
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.start + self.duration


def check_event(event: Event, lanes: int) -> None:
    """Raises ``DataError`` for what no trace can hold; ``lanes`` is how many the trace has."""
    if not 0 <= event.lane < lanes:
        raise DataError(f"event {event.name!r} is on lane {event.lane}, but the trace has {lanes} lanes")
    if not event.duration >= 0:
        raise DataError(f"event {event.name!r} has duration {event.duration}, which must be 0 or more")
    if event.category not in PALETTE:
        raise DataError(
            f"event {event.name!r} has category {event.category!r}; valid are {', '.join(PALETTE)}"
        )


def read_chrome(
    source: str | Path | Mapping[str, Any],
) -> tuple[list[Lane], list[Event], list[tuple[int, int]]]:
    """Lanes, events and links of a Chrome trace; the first event starts at 0.

    Raises ``DataError`` when the file cannot be read or holds no complete event.
    """
    records = _records(source)
    spans = [r for r in records if r.get("ph") == "X" and r.get("cat") in HOST | DEVICE]
    if not spans:
        raise DataError("the trace holds no operator, kernel or annotation")
    names = _thread_names(records)
    keys = sorted({_lane_key(r) for r in spans}, key=lambda key: (key[0], str(key[1]), str(key[2])))
    number = {key: i for i, key in enumerate(keys)}
    lanes = [_lane(key, i, names) for i, key in enumerate(keys)]
    origin = min(float(r["ts"]) for r in spans)
    on_device = any(r["cat"] in DEVICE for r in spans)
    events = [_event(r, number[_lane_key(r)], origin, on_device) for r in spans]
    return lanes, events, _launches(spans)


def _records(source: str | Path | Mapping[str, Any]) -> list[dict[str, Any]]:
    if isinstance(source, Mapping):
        data: Any = source
    else:
        try:
            raw = Path(source).read_bytes()
            data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the trace {source}: {error}") from error
    records = data.get("traceEvents") if isinstance(data, Mapping) else data
    if not isinstance(records, list):
        raise DataError("a Chrome trace is an object with a list called traceEvents")
    return records


def _thread_names(records: list[dict[str, Any]]) -> dict[tuple[Any, Any], str]:
    found = [r for r in records if r.get("ph") == "M" and r.get("name") == "thread_name"]
    return {(r["pid"], r["tid"]): str(r["args"]["name"]).strip() for r in found}


def _lane_key(record: dict[str, Any]) -> tuple[int, Any, Any]:
    """Hosts sort before streams; within a kind, by process (device) and thread (stream)."""
    return (int(record["cat"] in DEVICE), record["pid"], record["tid"])


def _lane(key: tuple[int, Any, Any], position: int, names: Mapping[tuple[Any, Any], str]) -> Lane:
    device, pid, tid = key
    if device:
        return Lane(f"GPU {pid} stream {tid}" if str(pid).isdigit() else f"{pid} {tid}", "stream")
    # "thread 4711 (python)" says nothing to a reader; a name that a program gave does.
    name = names.get((pid, tid), "")
    return Lane(
        f"CPU thread {position + 1}" if re.fullmatch(r"(thread )?\d*.*\(.*\)|\d*", name) else name, "host"
    )


def _event(record: dict[str, Any], lane: int, origin: float, on_device: bool) -> Event:
    args = record.get("args", {})
    shown = {SHOWN[k]: v for k, v in args.items() if k in SHOWN and v not in ("", [], None)}
    start = float(record["ts"]) - origin
    category = categorise(record["name"], record["cat"], on_device)
    return Event(record["name"], lane, start, float(record.get("dur", 0.0)), category, shown)


def categorise(name: str, kind: str, on_device: bool) -> str:
    """The concept of the palette that an event belongs to.

    ``kind`` is the profiler's own category. On a machine with a device the host's operators only launch
    work; without one they are the work.
    """
    if kind == "user_annotation":
        hit = next((concept for pattern, concept in PASSES if pattern.search(name)), None)
        return hit or (
            "data" if INPUT.search(name) else "communication" if COMMUNICATION.search(name) else "idle"
        )
    if COMMUNICATION.search(name):
        return "communication"
    if WAITING.search(name):
        return "idle"
    if kind in ("gpu_memcpy", "gpu_memset") or COPIES.search(name):
        return "memory"
    if INPUT.search(name):
        return "data"
    return "launch" if on_device and kind in HOST else "compute"


def _launches(spans: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Pairs (runtime call, kernel) that share a correlation id."""
    calls = {
        r["args"]["correlation"]: i
        for i, r in enumerate(spans)
        if r["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in r.get("args", {})
    }
    kernels = [
        (r["args"].get("correlation"), i) for i, r in enumerate(spans) if r["cat"] in DEVICE and r.get("args")
    ]
    return [(calls[correlation], i) for correlation, i in kernels if correlation in calls]
