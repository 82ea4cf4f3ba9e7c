"""How long kernels take on a GPU: CUDA graphs replayed in turns between CUDA events, with a cold L2 cache.

A graph leaves out what Python and the launches cost, which for a kernel of some microseconds is more than the kernel.
What cannot be captured, such as a loop that waits for numbers of the GPU, is called instead; each time says which it was.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Call = Callable[[], object]
Timing = Literal["graph", "calls", "host"]

#: Bytes that are written between two runs, at least: more than any L2 cache.
FLUSHED = 2**28
#: Seconds that the turns of one comparison may take, about; and the fewest turns, however long these are.
SECONDS, FEWEST = 1.0, 5
WARM_UP = 3


@dataclass(frozen=True)
class Times:
    """The median of ``runs``, in seconds, and the quartiles around it; ``timing`` is "graph", "calls" (of the function,
    from Python) or "host" (by the host's clock, on a CPU)."""

    seconds: float
    lower: float
    upper: float
    runs: int
    timing: Timing


def times_in_turns(
    functions: Mapping[str, Call], device: str, repeats: int, waiting: Collection[str] = ()
) -> dict[str, Times | Exception]:
    """Of each function its times, or what it raised: a, b, c, a, b, c, … for at most ``repeats`` turns.

    ``waiting`` are those known to wait for the GPU, which no graph can hold. A fault after which the GPU computes nothing
    more in this process is raised.
    """
    if torch.device(device).type != "cuda":
        return {name: _by_the_host(function) for name, function in functions.items()}
    prepared = {name: _prepared(function, name not in waiting) for name, function in functions.items()}
    scratch = torch.empty(max(FLUSHED, 2 * _l2_bytes()), dtype=torch.int8, device=device)
    failed = {name: one for name, one in prepared.items() if isinstance(one, Exception)}
    running: dict[str, tuple[Call, Timing]] = {}
    turn = 0.0
    for name, one in prepared.items():
        try:
            if not isinstance(one, Exception):
                turn += _turns({name: one[0]}, scratch, 1)[name][0]
                running[name] = one
        except torch.OutOfMemoryError as error:  # what others have captured takes memory
            failed[name] = error.with_traceback(None)
    turns = max(min(FEWEST, repeats), min(repeats, int(SECONDS / max(turn, 1e-6))))
    seconds = _turns({name: run for name, (run, _) in running.items()}, scratch, turns)
    return failed | {name: _times(seconds[name], timing) for name, (_, timing) in running.items()}


def copy_bandwidth(device: str, size: int = 2**30) -> float | None:
    """Bytes a second that the faster of two copies of ``size`` bytes reads and writes on this GPU: the driver's, which a
    graph may leave at two thirds of the bandwidth, and a kernel's, which changes the sign. None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    x = torch.ones(size // 4, device=device)
    y = torch.empty_like(x)
    times = times_in_turns({"copy": lambda: y.copy_(x), "kernel": lambda: torch.neg(x, out=y)}, device, 50)
    for one in times.values():
        if isinstance(one, Exception):
            raise one
    return 2 * size / min(one.seconds for one in times.values() if isinstance(one, Times))


def _prepared(function: Call, capture: bool) -> tuple[Call, Timing] | Exception:
    """A replay of the function, else the function; or what it raises. It runs on a stream of its own: the default stream
    cannot be captured, and backward runs where forward did."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function()
        torch.cuda.synchronize()
    except Exception as error:  # CUDA's and compilers' errors are of many classes
        return error.with_traceback(None)  # whose frames hold tensors
    if not capture:
        return function, "calls"
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, stream=stream):
            function()
    except Exception:  # whatever is not allowed while a graph is captured
        torch.cuda.set_stream(before)  # a capture that fails leaves its own
        torch.cuda.synchronize()
        return function, "calls"
    return graph.replay, "graph"


def _turns(functions: Mapping[str, Call], scratch: Tensor, turns: int) -> dict[str, list[float]]:
    """Seconds of each in each turn. Everything is queued before anything is waited for."""
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in functions}
    for _ in range(turns):
        for name, run in functions.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            scratch.zero_()
            start.record()
            run()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [a.elapsed_time(b) / 1e3 for a, b in pairs] for name, pairs in marks.items()}


def _times(seconds: list[float], timing: Timing) -> Times:
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return Times(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered), timing)


def _by_the_host(function: Call) -> Times | Exception:
    start = time.perf_counter()
    try:
        function()
    except Exception as error:
        return error
    return _times([time.perf_counter() - start], "host")


def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
