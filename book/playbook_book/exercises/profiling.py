"""Exercises of the chapter on profiling."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

#: Seconds that the device works on each call in the exercise about timing, and on what else it is given.
_CALL, _OTHER = 0.02, 0.2


@number(
    "profiling.launches",
    "idle fraction of a device that waits for launches",
    praise="the kernels hide behind the launches, so a kernel twice as fast would change nothing",
    otherwise="Draw three launches and three kernels: when does each kernel start?",
)
def launches() -> tuple[float, dict[float, str]]:
    from playbook.instruments.trace import Event, Lane, Trace
    from playbook_book.instruments.trace_analysis import idle_fraction

    count, launch, kernel = 438, 6.0, 1.5
    trace = Trace(
        [Lane("host"), Lane("device", "stream")],
        [Event("launch", 0, i * launch, launch, "launch") for i in range(count)]
        + [Event("kernel", 1, (i + 1) * launch, kernel, "compute") for i in range(count)],
    )
    idle = idle_fraction(trace, "device")
    return idle, {
        1 - idle: "that is how busy it is",
        launch / (launch + kernel): "the host does not wait for a kernel before it launches the next",
        kernel / (launch + kernel): "the host does not wait for a kernel before it launches the next",
        100 * idle: "a fraction, not per cent",
        0.0: "a kernel cannot start before it has been launched",
    }


answers("profiling.launches", right=[1 - 438 * 1.5 / (438 * 6 + 1.5)])


@exercise("profiling.idle", "function", "the idle fraction of a lane")
def idle(write: Callable[..., Any]) -> str:
    from playbook.instruments.trace import Event, Lane, Trace
    from playbook_book.instruments.trace_analysis import idle_fraction

    lanes = [Lane("host"), Lane("compute", "stream")]
    work = [Event("a", 1, 2, 3, "compute"), Event("b", 1, 6, 4, "compute")]
    traces = {
        "where events lie side by side": [*work, Event("load", 0, 0, 12, "data")],
        "where an event lies inside another": [*work, Event("inside", 1, 7, 2, "memory")],
        "where a lane waits": [*work, Event("wait", 1, 11, 4, "idle")],
        "where a wait lies inside an event": [*work, Event("wait", 1, 7, 2, "idle")],
        "that starts late": [Event(e.name, e.lane, e.start + 100, e.duration, e.category) for e in work],
    }
    for case, events in traces.items():
        trace = Trace(lanes, events)
        given, right = write(trace, "compute"), idle_fraction(trace, "compute")
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise NotYet(f"the function returns {type(given).__name__} {given!r}, not a number")
        if abs(given - (1 - right)) < 1e-6 and abs(given - right) > 1e-6:
            raise NotYet(f"in a trace {case}, that is the fraction in which the lane is busy")
        if abs(given - right) > 1e-6:
            raise NotYet(f"in a trace {case}, the lane is idle for {right:.3f} of the time, not {given:.3f}")
    return "each moment once, for the innermost event, and a wait is not work"


def _idle(trace, lane, *, useful=lambda events: min(events, key=lambda e: e.duration).category != "idle"):
    """Between edges of events nothing changes; ``useful`` says of all that cover such a time whether it counts."""
    number = [known.name for known in trace.lanes].index(lane)
    events = [e for e in trace.events if e.lane == number]
    idle = trace.duration
    for left, right in itertools.pairwise(sorted({edge for e in events for edge in (e.start, e.end)})):
        covering = [e for e in events if e.start <= left and right <= e.end]
        idle -= (right - left) * (bool(covering) and useful(covering))
    return idle / trace.duration


answers(
    "profiling.idle",
    right=[_idle],
    wrong={
        "in a trace where an event lies inside another": partial(_idle, useful=len),
        "the fraction in which the lane is busy": lambda trace, lane: 1 - _idle(trace, lane),
        "in a trace where a lane waits": partial(_idle, useful=lambda events: True),
        "in a trace where a wait lies inside an event": partial(
            _idle, useful=lambda events: any(e.category != "idle" for e in events)
        ),
        "not a number": lambda trace, lane: None,
    },
)


@exercise("profiling.timing", "repair", "a clock that is read too early")
def timing(mended: Callable[..., Any]) -> str:
    alone = _ratio(mended)
    if alone < 0.5:
        raise NotYet(
            f"the device works {1e3 * _CALL:.0f} ms on each call, and this says less than half of that: the calls "
            "were queued when the clock was read, not done"
        )
    if alone > 2:
        raise NotYet(
            f"the device works {1e3 * _CALL:.0f} ms on each call, and this says more than twice as much"
        )
    if _counts_other(mended, slow_start=True):
        raise NotYet(
            f"right for a function that always takes {1e3 * _CALL:.0f} ms; where the first call takes "
            f"{1e3 * _OTHER:.0f} ms longer, it counts them"
        )
    if _counts_other(mended, queued=True):
        raise NotYet(
            f"right on an idle device; where the device has {1e3 * _OTHER:.0f} ms of other work in its queue, it "
            "counts them"
        )
    return "the time of the device, whatever came before"


def _ratio(mended: Callable[..., Any]) -> float:
    """What ``mended`` says, relative to a call: the best of six, since a busy machine adds time."""
    ratios = []
    for _ in range(6):
        said, each, _ = _say(mended)
        ratios.append(said / each)
        if 0.75 < ratios[-1] < 1.5:
            break
    return min(ratios)


def _counts_other(mended: Callable[..., Any], **other: bool) -> bool:
    """Whether in six tries it says so much more than the calls took, however long that was."""
    tries = (_say(mended, **other) for _ in range(6))
    return all((said - each) * calls > 0.75 * _OTHER for said, each, calls in tries)


def _say(
    mended: Callable[..., Any], *, slow_start: bool = False, queued: bool = False
) -> tuple[float, float, int]:
    """What it says, how long each call took, with what a busy machine leaves between them, and how many there were."""
    from playbook_book.instruments.stream import HostStream

    marks: list[float] = []

    def call() -> None:
        if slow_start and not marks:
            time.sleep(_OTHER)
        marks.append(time.perf_counter())
        time.sleep(_CALL)
        marks.append(time.perf_counter())

    with HostStream("device") as stream:
        if queued:
            stream.submit(time.sleep, _OTHER)
        said = mended(call, stream)
        stream.synchronize()
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise NotYet(f"the function returns {type(said).__name__} {said!r}, not seconds")
    if not marks:
        raise NotYet("the function never runs on the stream the call that it should time")
    calls = len(marks) // 2
    return float(said), (marks[-1] - marks[0]) / calls, calls


def _timed(function, stream, repeats=5, *, first=True, empties=True, waits=True, mean=True):
    if first:
        stream.submit(function)
    if empties:
        stream.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        stream.submit(function)
    if waits:
        stream.synchronize()
    return (time.perf_counter() - start) / (repeats if mean else 1)


def _with_events(function, stream, repeats=5):
    stream.submit(function)
    marks = [stream.record_event()]
    for _ in range(repeats):
        stream.submit(function)
        marks.append(stream.record_event())
    stream.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) / 1e3


answers(
    "profiling.timing",
    right=[_timed, _with_events],
    wrong={
        "queued when the clock was read": partial(_timed, waits=False),
        "where the first call takes 200 ms longer": partial(_timed, first=False),
        "right for a function that always takes 20 ms": partial(_timed, empties=False),
        "more than twice as much": partial(_timed, mean=False),
        "not seconds": lambda function, stream: None,
        "never runs on the stream": lambda function, stream: 0.02,
    },
)
