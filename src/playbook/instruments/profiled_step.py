"""What ``torch.profiler`` wrote about one training step, read as passes, blocks, gradients, waits and collectives.

The format is Chrome's (``chrome_trace.py``). Spans of the forward pass are named by ``rank_trace.py``. A node of backward
carries the sequence number of the operator whose gradient it computes (PyTorch's profiler gives it to both), which says
to which block it belongs; no hook has to touch the graph.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from playbook.errors import DataError
from playbook.instruments.chrome_trace import COMMUNICATION, DEVICE
from playbook.instruments.trace import Event, Lane, Trace

COMPUTE_LANE, COMMUNICATION_LANE = 0, 1
PHASES = {"data": "data", "forward": "F", "backward": "B", "optimizer": "optimizer"}
FORWARD_OF = "forward of "
NODE = "autograd::engine::evaluate_function: "
GRADIENT = "torch::autograd::AccumulateGrad"

#: Names of collectives in whatever spelling: gloo:all_reduce, c10d::_allgather_base_, ncclDevKernel_ReduceScatter_….
KINDS = {
    "reduce_scatter": re.compile("reduce_?scatter", re.I),
    "all_reduce": re.compile("all_?reduce", re.I),
    "all_gather": re.compile("all_?gather", re.I),
    "all_to_all": re.compile("all_?to_?all", re.I),
    "broadcast": re.compile("broadcast", re.I),
    "send": re.compile("send", re.I),
    "recv": re.compile("recv", re.I),
}
BYTES = {
    "float": 4, "double": 8, "long int": 8, "long": 8, "int": 4, "c10::bfloat16": 2, "bfloat16": 2, "c10::half": 2,
    "half": 2, "unsigned char": 1, "byte": 1, "signed char": 1, "char": 1, "bool": 1,
}  # fmt: skip

#: A device that has nothing to do for so long (µs) waits; a shorter gap is between one kernel and the next.
GAP = 10.0


@dataclass(frozen=True)
class Profiled:
    """A complete event of the profiler: µs, the thread or stream it was on, its arguments."""

    name: str
    kind: str
    start: float
    end: float
    thread: Any
    args: Mapping[str, Any] = field(repr=False)


class ProfiledStep:
    """The step in a Chrome trace; ``began`` is its first span with a name, in ns of the machine's clock.

    Raises DataError when there is no forward pass in it.
    """

    def __init__(self, chrome: Mapping[str, Any]):
        records = chrome.get("traceEvents", ())
        found = [_span(record) for record in records if record.get("ph") == "X" and "cat" in record]
        self.spans = sorted(found, key=lambda span: (span.start, -span.end))
        self.named = [span for span in self.spans if span.kind == "user_annotation"]
        self.phases = [span for span in self.named if span.name in PHASES]
        if not self.phases:
            raise DataError(
                "the trace holds no span called forward, backward or optimizer: is it one of a training step?"
            )
        self.base = int(chrome.get("baseTimeNanoseconds", 0))
        self.began = self.base + int(self.named[0].start * 1e3)
        self.kernels = self._launched()

    def _launched(self) -> list[tuple[float, Profiled]]:
        """Kernels that compute, with the time of their launch, in the order of launches."""
        calls = {
            span.args["correlation"]: span.start
            for span in self.spans if span.kind in ("cuda_runtime", "cuda_driver") and "correlation" in span.args
        }  # fmt: skip
        compute = [s for s in self.spans if s.kind in DEVICE and not COMMUNICATION.search(s.name)]
        pairs = [(calls.get(s.args.get("correlation"), s.start), s) for s in compute]
        return sorted(pairs, key=lambda pair: pair[0])

    def trace(self, origin: int) -> Trace:
        """The trace of two lanes; time 0 is ``origin`` (ns of the machine's clock)."""
        zero = (origin - self.base) / 1e3
        compute = [*self._passes(zero), *self._blocks(), *self._gradients(), *self._waits()]
        events = [
            Event(name, lane, start - zero, max(end - start, 0.0), category, args)
            for lane, rows in ((COMPUTE_LANE, compute), (COMMUNICATION_LANE, self._collectives(zero)))
            for name, start, end, category, args in rows
        ]
        kind = "stream" if self.kernels else "host"
        return Trace([Lane("compute", kind), Lane("communication", "stream")], events)

    # ---- compute

    def _placed(self, start: float, end: float) -> tuple[float, float] | None:
        """When what the host did from ``start`` to ``end`` was computed: then, or when the kernels of it ran, if any."""
        if not self.kernels:
            return start, end
        first, last = (bisect_right(self.kernels, at, key=lambda pair: pair[0]) for at in (start, end))
        ran = [kernel for _, kernel in self.kernels[first:last]]
        return (min(k.start for k in ran), max(k.end for k in ran)) if ran else None

    def _passes(self, zero: float) -> Iterator[Drawn]:
        """A device runs late: "issued" is when the host began the pass."""
        for span in self.phases:
            if at := self._placed(span.start, span.end):
                yield span.name, *at, PHASES[span.name], {"issued": span.start - zero}

    def _blocks(self) -> Iterator[Drawn]:
        """Forward spans, those that were run again within backward, and what autograd made of them."""
        backward = [span for span in self.phases if span.name == "backward"]
        for span in self._forwards():
            again = any(b.start <= span.start < b.end for b in backward)
            part = span.name.removeprefix(FORWARD_OF)
            if at := self._placed(span.start, span.end):
                yield f"{part} forward", *at, "F", {"part": part, "pass": "recompute" if again else "forward"}
        for part, start, end in self._backwards():
            if at := self._placed(start, end):
                yield f"{part} backward", *at, "B", {"part": part, "pass": "backward"}

    def _forwards(self) -> list[Profiled]:
        return [span for span in self.named if span.name.startswith(FORWARD_OF)]

    def _backwards(self) -> Iterator[tuple[str, float, float]]:
        """Runs of backward nodes that belong to one forward span: its part, start and end on the host."""
        owners = self._owners()
        current: tuple[Profiled, float, float] | None = None
        for node in self._nodes():
            number = node.args.get("Sequence number")
            # Gradients of parameters have no number: they belong to the node before them.
            belongs = current[0] if current else None
            owner = belongs if node.name == GRADIENT else owners.get(-1 if number is None else number)
            if current and owner is current[0]:
                current = owner, current[1], node.end
                continue
            if current:
                yield current[0].name.removeprefix(FORWARD_OF), *current[1:]
            current = (owner, node.start, node.end) if owner else None
        if current:
            yield current[0].name.removeprefix(FORWARD_OF), *current[1:]

    def _nodes(self) -> list[Profiled]:
        """Nodes of backward, without the hooks that the engine runs before them."""
        names = {span.name.removeprefix(NODE) for span in self.spans if span.name.startswith(NODE)}
        return [
            s for s in self.spans if s.name in names and (s.name == GRADIENT or "Sequence number" in s.args)
        ]

    def _owners(self) -> dict[int, Profiled]:
        """Sequence number → the forward span whose operator has it.

        Operators that need no gradient carry the number of the next one that does, so the last one to have it counts.
        """
        forwards = self._forwards()
        starts = [span.start for span in forwards]
        owners: dict[int, Profiled | None] = {}
        for op in self.spans:
            number = op.args.get("Sequence number")
            if number is None or op.args.get("Fwd thread id") or op.name.startswith(NODE):
                continue
            i = bisect_right(starts, op.start) - 1
            owners[number] = forwards[i] if i >= 0 and op.start < forwards[i].end else None
        return {number: span for number, span in owners.items() if span}

    def _gradients(self) -> Iterator[Drawn]:
        """An instant when autograd has the gradient of a leaf, before it tells anybody. Leaves are parameters and, with
        recomputation, the inputs of blocks."""
        for span in self.spans:
            if span.name == GRADIENT:
                at = span.start
                if self.kernels:
                    before = bisect_right(self.kernels, at, key=lambda pair: pair[0])
                    at = max((kernel.end for _, kernel in self.kernels[:before]), default=at)
                yield "gradient", at, at, "gradients", {}

    def _waits(self) -> Iterator[Drawn]:
        """When nothing is computed: the host waits for a collective, or the device has no kernel to run."""
        if not self.kernels:
            yield from (("wait", start, end, "idle", {}) for start, end in self._host_waits())
            return
        busy = sorted(((kernel.start, kernel.end) for _, kernel in self.kernels))
        ends = itertools.accumulate((end for _, end in busy), max)
        for end, (start, _) in zip(ends, busy[1:], strict=False):
            if start - end > GAP:
                yield "wait", end, start, "idle", {}

    def _host_waits(self) -> Iterator[tuple[float, float]]:
        """From the end of the last operator that computed before the wait: where Gloo's threads take the core as soon as
        they have something to send, the host comes to its wait when the message is through."""
        ends: dict[Any, list[float]] = {}
        for span in self.spans:
            if span.kind == "cpu_op" and not span.name.startswith("c10d::"):
                ends.setdefault(span.thread, []).append(span.end)
        for ended in ends.values():
            ended.sort()
        before = -math.inf
        for span in (span for span in self.named if span.name == "wait"):
            own = ends.get(span.thread, [])
            last = bisect_right(own, span.start)
            start = own[last - 1] if last else span.start
            yield max(start, min(before, span.start)), span.end
            before = span.end

    # ---- communication

    def _collectives(self, zero: float) -> Iterator[Drawn]:
        """Name, bytes of the whole vector, and when the host asked for it."""
        calls = list(_outermost(s for s in self.spans if s.kind == "cpu_op" and s.name.startswith("c10d::")))
        for span in self.spans:
            if span.name.startswith("gloo:"):
                call = _take(calls, _shape(span)) or span
                told = _told(_bytes(span, call), call.start - zero)
                yield _kind(call), span.start, span.end, "communication", told
            elif span.kind in DEVICE and COMMUNICATION.search(span.name):
                told = _told(_nccl_bytes(span.args), self._launch(span) - zero)
                yield _kind(span), span.start, span.end, "communication", told

    def _launch(self, kernel: Profiled) -> float:
        number = kernel.args.get("correlation")
        found = (
            s.start for s in self.spans if s.kind.startswith("cuda_") and s.args.get("correlation") == number
        )
        return next(found, kernel.start)


#: Name, start, end (µs), category, arguments of an event.
Drawn = tuple[str, float, float, str, dict[str, Any]]


def _span(record: Mapping[str, Any]) -> Profiled:
    start = float(record["ts"])
    end = start + float(record.get("dur", 0))
    return Profiled(record["name"], record["cat"], start, end, record["tid"], record.get("args", {}))


def _told(size: int, issued: float) -> dict[str, Any]:
    return {"bytes": size, "issued": issued}


def _outermost(spans: Iterable[Profiled]) -> Iterator[Profiled]:
    """Without those inside another one: an instrument that listens to calls makes two of each."""
    end = -math.inf
    for span in spans:
        if span.start >= end:
            yield span
            end = span.end


def _kind(span: Profiled) -> str:
    return next((kind for kind, pattern in KINDS.items() if pattern.search(span.name)), span.name)


def _shape(span: Profiled) -> list[int]:
    return next(iter(span.args.get("Input Dims", ())), [])


def _shapes(call: Profiled) -> Iterator[list[int]]:
    """Sizes of a call's tensors, those in lists included. What is no tensor has size [], as a single number has."""
    kinds = call.args.get("Input type", ())
    for dims, kind in zip(call.args.get("Input Dims", ()), kinds, strict=False):
        yield from dims if kind == "TensorList" else [dims]


def _take(calls: list[Profiled], shape: list[int]) -> Profiled | None:
    """The first call that has a tensor of this shape: each queue begins its work in the order in which it came."""
    for i, call in enumerate(calls):
        if shape in _shapes(call):
            return calls.pop(i)
    return None


def _bytes(span: Profiled, call: Profiled) -> int:
    """Of the call's largest tensor: the whole vector of an all-gather or a reduce-scatter."""
    kind = next(iter(span.args.get("Input type", ())), "")
    return max(math.prod(dims) for dims in _shapes(call)) * BYTES.get(kind, 4)


def _nccl_bytes(args: Mapping[str, Any]) -> int:
    elements = max(int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0)))
    return elements * BYTES.get(str(args.get("dtype", "float")).lower(), 4)
