"""Host streams keep the rules of CUDA streams: launches return, order holds, waiting is explicit."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from playbook.errors import ConfigError
from playbook_book.instruments.cuda_stream import _origin
from playbook_book.instruments.recorder import Recorder
from playbook_book.instruments.stream import HostStream, open_stream

NAP = 0.05


def test_submit_returns_before_the_work_is_done():
    gate = threading.Event()
    with HostStream() as stream:
        tasks = [stream.submit(gate.wait, 10), stream.submit(torch.mm, torch.eye(3), torch.eye(3))]
        mark = stream.record_event()
        assert not mark.query()
        gate.set()
        assert torch.equal(tasks[1].result(), torch.eye(3))
        mark.synchronize()
        assert mark.query()


def test_one_stream_works_in_order():
    seen: list[int] = []
    with HostStream() as stream:
        for i in range(200):
            stream.submit(seen.append, i)
        stream.synchronize()
        assert seen == list(range(200))


def test_two_streams_work_at_once():
    """Each waits for the other: in sequence this would never end."""
    meeting = threading.Barrier(2, timeout=60)
    with HostStream("a") as a, HostStream("b") as b:
        a.submit(meeting.wait)
        b.submit(meeting.wait)


def test_wait_event_holds_one_stream_and_not_the_host():
    order: list[str] = []
    gate = threading.Event()
    with HostStream("a") as a, HostStream("b") as b:
        a.submit(gate.wait, 60)
        a.submit(order.append, "a")
        b.wait_event(a.record_event())
        b.submit(order.append, "b")
        assert order == []
        gate.set()
        b.synchronize()
    assert order == ["a", "b"]


def test_a_launch_offers_pythons_lock_once_its_work_is_queued(monkeypatch):
    """The offer is ``time.sleep(0)``: a host that goes on in Python would keep the lock, and the work begin late."""
    begun = threading.Event()
    offers: list[tuple[float, bool]] = []
    with HostStream() as stream:
        monkeypatch.setattr(
            "playbook_book.instruments.stream.time",
            SimpleNamespace(
                sleep=lambda seconds: offers.append((seconds, begun.wait(60))),
                perf_counter_ns=time.perf_counter_ns,
            ),
        )
        stream.submit(begun.set)
    assert offers == [(0, True)]


def test_events_time_the_work_and_not_the_launch():
    begun, gate = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(60)

    with HostStream() as stream:
        start = stream.record_event()
        stream.submit(work)
        end = stream.record_event()
        with pytest.raises(RuntimeError, match="must have happened"):
            start.elapsed_time(end)  # the launch is over, and the work is not
        assert begun.wait(60)
        time.sleep(NAP)
        gate.set()
        stream.synchronize()
        assert start.elapsed_time(end) >= NAP * 1e3


def test_trace_links_each_launch_to_its_execution():
    recorder = Recorder()
    with open_stream("cpu", "device", recorder) as stream:
        for i in range(3):
            stream.submit(time.sleep, 0.002, name=f"kernel {i}")
        stream.synchronize()
    trace = recorder.trace()
    assert [(lane.name, lane.kind) for lane in trace.lanes] == [("host", "host"), ("device", "stream")]
    linked = [(trace.events[a], trace.events[b]) for a, b in trace.links]
    assert [(a.name, b.name) for a, b in linked] == [(f"launch kernel {i}", f"kernel {i}") for i in range(3)]
    for launch, kernel in linked:
        assert launch.category == "launch"
        assert launch.start <= kernel.start
        assert kernel.duration >= 2000
    wait = next(event for event in trace.events if event.name == "synchronize device")
    assert wait.category == "idle"
    assert wait.end >= linked[-1][1].end


def test_overlap_shows_in_the_trace():
    def step(together: bool) -> float:
        recorder, meeting = Recorder(), threading.Barrier(2, timeout=60)
        work = meeting.wait if together else int  # together each waits for the other
        with HostStream("compute", recorder) as compute, HostStream("communication", recorder) as wire:
            compute.submit(work, name="matmul")
            if not together:
                wire.wait_event(compute.record_event())
            wire.submit(work, name="all-reduce", category="communication")
        return recorder.trace().overlap("compute", "communication")

    assert step(together=True) > 0
    assert step(together=False) == 0


def divide() -> float:
    return 1 / 0


def fail_twice() -> None:
    with HostStream() as stream:
        stream.submit(divide)
        raise KeyError("body")


def test_errors_surface_at_synchronize_once_and_name_the_task():
    later: list[int] = []
    with HostStream("device") as stream:
        stream.submit(divide)
        stream.submit(later.append, 1)
        with pytest.raises(ZeroDivisionError) as caught:
            stream.synchronize()
        assert caught.value.__notes__ == ["raised by task 'divide' on stream 'device'"]
        assert later == []
        stream.submit(later.append, 2)
        stream.synchronize()
    assert later == [2]


def test_errors_surface_at_result_also_for_skipped_work():
    with HostStream() as stream:
        first, second = stream.submit(divide), stream.submit(int)
        for task in (first, second):
            with pytest.raises(ZeroDivisionError):
                task.result()


def test_work_of_before_the_error_was_told_is_skipped_however_late_the_worker_comes_to_it():
    """The host asks for the first result between the failure and the second task."""
    later: list[int] = []
    gate = threading.Event()
    with HostStream() as stream:
        first = stream.submit(divide)
        held = stream.record_event()
        stream._put(gate.wait)
        second = stream.submit(later.append, 1)
        held.synchronize()
        with pytest.raises(ZeroDivisionError):
            first.result()
        third = stream.submit(later.append, 3)
        gate.set()
        with pytest.raises(ZeroDivisionError):
            second.result()
        third.result()
        stream.synchronize()
    assert later == [3]


def test_errors_surface_at_the_end_of_the_block_unless_the_body_failed():
    with pytest.raises(ZeroDivisionError), HostStream() as stream:
        stream.submit(divide)
    with pytest.raises(KeyError, match="body"):
        fail_twice()


def test_close_finishes_the_work_and_leaves_nothing_behind():
    threads, interval = threading.active_count(), sys.getswitchinterval()
    done: list[int] = []
    streams = [HostStream(f"s{i}") for i in range(3)]
    assert sys.getswitchinterval() < interval
    for stream in streams:
        stream.submit(time.sleep, 0.01)
        stream.submit(done.append, 1)
    for stream in streams:
        stream.close()
        stream.close()
    assert done == [1, 1, 1]
    assert threading.active_count() == threads
    assert sys.getswitchinterval() == pytest.approx(interval)
    with pytest.raises(RuntimeError, match="'s0' is closed"):
        streams[0].submit(int)


def test_bad_input_is_named_before_anything_is_queued():
    with pytest.raises(ConfigError, match="device is 'tpu'"):
        open_stream("tpu")
    with HostStream() as stream, pytest.raises(ConfigError, match="category is 'fun'"):
        stream.submit(int, category="fun")


def test_streams_of_a_device_count_from_one_moment_of_their_recorder():
    """With an origin for each, two streams in turn could seem to overlap by what the host is late."""
    marks = []

    def mark():
        marks.append(SimpleNamespace(synchronize=lambda: None))
        return marks[-1]

    first, second = Recorder(), Recorder()
    origins = [_origin(first, device, mark) for device in ("cuda:0", "cuda:0", "cuda:1")]
    assert origins[0] == origins[1] != origins[2]
    assert _origin(second, "cuda:0", mark)[0] is marks[2]
    assert len(marks) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_stream_records_launches_and_kernels():
    recorder = Recorder()
    x = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    with open_stream("cuda", "device", recorder) as stream:
        tasks = [stream.submit(torch.mm, x, x, name=f"mm {i}") for i in range(4)]
        assert tasks[0].result().shape == (2048, 2048)
    trace = recorder.trace()
    linked = [(trace.events[a], trace.events[b]) for a, b in trace.links]
    assert len(linked) == 4
    # The two clocks agree to some tens of microseconds.
    assert all(launch.start <= kernel.end + 50 for launch, kernel in linked)
    assert all(kernel.duration > 0 for _, kernel in linked)
