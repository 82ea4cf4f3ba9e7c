"""Wrong answers that readers of the chapter on profiling may well give, and what they are told."""

import itertools
import statistics
import time

import pytest

from playbook_book.exercises import grade


def durations(trace, lane):
    number = [known.name for known in trace.lanes].index(lane)
    return 1 - sum(e.duration for e in trace.events if e.lane == number) / trace.duration


def busy(trace, lane):
    number = [known.name for known in trace.lanes].index(lane)
    return sum(e.duration for e in trace.events if e.lane == number) / trace.duration


def waits_are_work(trace, lane):
    number = [known.name for known in trace.lanes].index(lane)
    moments = {
        moment
        for e in trace.events
        if e.lane == number
        for moment in range(int(e.start), int(e.start + e.duration))
    }
    return 1 - len(moments) / trace.duration


def waits_inside_are_work(trace, lane):
    number = [known.name for known in trace.lanes].index(lane)
    moments = {
        moment
        for e in trace.events
        if e.lane == number and e.category != "idle"
        for moment in range(int(e.start), int(e.start + e.duration))
    }
    return 1 - len(moments) / trace.duration


def planted(function, stream, repeats=5):
    start = time.perf_counter()
    for _ in range(repeats):
        stream.submit(function)
    return (time.perf_counter() - start) / repeats


def waits_only(function, stream, repeats=5):
    start = time.perf_counter()
    for _ in range(repeats):
        stream.submit(function)
    stream.synchronize()
    return (time.perf_counter() - start) / repeats


def warm_up_not_waited_for(function, stream, repeats=5):
    stream.submit(function)
    return waits_only(function, stream, repeats)


def empties_the_queue_only(function, stream, repeats=5):
    stream.synchronize()
    return waits_only(function, stream, repeats)


def warms_up_and_never_waits(function, stream, repeats=5):
    stream.submit(function)
    stream.synchronize()
    return planted(function, stream, repeats)


def sum_instead_of_mean(function, stream, repeats=5):
    stream.submit(function)
    stream.synchronize()
    return repeats * waits_only(function, stream, repeats)


def mended(function, stream, repeats=5):
    stream.submit(function)
    stream.synchronize()
    return waits_only(function, stream, repeats)


def with_events(function, stream, repeats=5):
    stream.submit(function)
    marks = [stream.record_event()]
    for _ in range(repeats):
        stream.submit(function)
        marks.append(stream.record_event())
    stream.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) / 1e3


def idle(trace, lane):
    number = [known.name for known in trace.lanes].index(lane)
    events = [e for e in trace.events if e.lane == number]
    edges = sorted({edge for e in events for edge in (e.start, e.end)})
    useful = 0.0
    for left, right in itertools.pairwise(edges):
        covering = [e for e in events if e.start <= left and right <= e.end]
        if covering and min(covering, key=lambda e: e.duration).category != "idle":
            useful += right - left
    return 1 - useful / trace.duration


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("launches", 657 / 2629.5, "how busy it is"),
        ("launches", 0.8, "does not wait for a kernel"),
        ("launches", 75.014, "not per cent"),
        ("launches", 0, "cannot start before"),
        ("launches", 0.5, "0.5 is too small. Draw three launches"),
        ("idle", durations, "in a trace where an event lies inside another"),
        ("idle", busy, "the fraction in which the lane is busy"),
        ("idle", waits_are_work, "in a trace where a lane waits"),
        ("idle", waits_inside_are_work, "in a trace where a wait lies inside an event"),
        ("idle", lambda trace, lane: None, "not a number"),
        ("timing", planted, "queued when the clock was read"),
        ("timing", waits_only, "where the first call takes 200 ms longer"),
        ("timing", warm_up_not_waited_for, "where the first call takes 200 ms longer"),
        ("timing", empties_the_queue_only, "where the first call takes 200 ms longer"),
        ("timing", warms_up_and_never_waits, "queued when the clock was read"),
        ("timing", sum_instead_of_mean, "more than twice as much"),
        ("timing", lambda function, stream: None, "not seconds"),
        ("timing", lambda function, stream: 0.02, "never runs on the stream"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"profiling.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [("launches", 1 - 657 / 2629.5), ("idle", idle), ("timing", mended), ("timing", with_events)],
)
def test_right_answers_pass(name, answer):
    assert grade(f"profiling.{name}", answer).right
