"""Traces: read from the profiler, written by our recorder, cut, summed up."""

from __future__ import annotations

import gzip
import json
import threading
from itertools import pairwise

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from playbook.errors import DataError
from playbook.figures import PALETTE
from playbook.instruments.trace import Event, Lane, Trace
from playbook_book.instruments.recorder import Recorder

HOST, STREAM = Lane("host"), Lane("GPU 0 stream 7", "stream")


@pytest.fixture(scope="module")
def profiled() -> profile:
    a = torch.randn(64, 64, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        with record_function("forward"):
            loss = (a @ a).relu().sum()
        with record_function("backward"):
            loss.backward()
    return prof


def cuda_records() -> dict:
    """The records of a GPU step with the fields kineto gives them, shortened."""

    def record(cat: str, name: str, start: float, duration: float, pid: int, tid: int, **args) -> dict:
        times = {"ts": start, "dur": duration}
        return {"ph": "X", "cat": cat, "name": name, **times, "pid": pid, "tid": tid, "args": args}

    name = {"name": "thread 41 (python)"}
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    return {
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 41, "tid": 41, "args": name},
            record("Trace", "PyTorch Profiler (0)", 1, 9e9, 0, 0),
            record("user_annotation", "forward", 1000, 60, 41, 41, **{"Ev Idx": 0}),
            record("cpu_op", "aten::mm", 1002, 20, 41, 41, **{"Input Dims": [[4, 4]]}),
            record("cuda_runtime", "cudaLaunchKernel", 1010, 5, 41, 41, correlation=77, cbid=211),
            record("kernel", "sm90_xmma_gemm_f32f32", 1020, 100, 0, 7, correlation=77, grid=[1, 1, 1]),
            record("kernel", reduce, 1060, 40, 0, 20, correlation=78, stream=20),
            record("cuda_runtime", "cudaStreamSynchronize", 1065, 60, 41, 41, correlation=79),
            record("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1125, 2, 0, 7, correlation=80, bytes=4),
        ]
    }


def test_from_profiler_reads_operators_phases_and_shapes(profiled):
    trace = Trace.from_profiler(profiled)
    assert trace.lanes[0] == Lane("CPU thread 1", "host")
    by_name = {event.name: event for event in trace.events}
    assert by_name["forward"].category == "F"
    assert by_name["backward"].category == "B"
    assert by_name["aten::mm"].category == "compute"
    assert by_name["aten::mm"].args["shapes"] == [[64, 64], [64, 64]]
    assert min(event.start for event in trace.events) == 0
    forward, mm = by_name["forward"], next(e for e in trace.events if e.name == "aten::mm")
    assert forward.start <= mm.start <= mm.end <= forward.end
    profiled_mm = next(row for row in profiled.key_averages() if row.key == "aten::mm")
    top = next(row for row in trace.top(100) if row.name == "aten::mm")
    assert top.count == profiled_mm.count
    assert top.total == pytest.approx(profiled_mm.cpu_time_total, rel=0.01)


def test_self_times_are_the_profiler_s(profiled):
    trace = Trace.from_profiler(profiled)
    ours = sum(
        own
        for event, own in zip(trace.events, trace.self_times(), strict=True)
        if event.name == "aten::matmul"
    )
    theirs = next(row for row in profiled.key_averages() if row.key == "aten::matmul").self_cpu_time_total
    assert ours == pytest.approx(theirs, rel=0.02, abs=0.5)


def test_kernels_lie_on_streams_and_know_their_launch():
    trace = Trace.from_chrome(cuda_records())
    assert [lane.kind for lane in trace.lanes] == ["host", "stream", "stream"]
    assert {lane.name for lane in trace.lanes[1:]} == {"GPU 0 stream 7", "GPU 0 stream 20"}
    (link,) = trace.links
    assert [trace.events[i].name for i in link] == ["cudaLaunchKernel", "sm90_xmma_gemm_f32f32"]
    categories = {event.name: event.category for event in trace.events}
    assert categories["aten::mm"] == "launch"
    assert categories["sm90_xmma_gemm_f32f32"] == "compute"
    assert categories["ncclDevKernel_AllReduce_Sum_f32_RING_LL"] == "communication"
    assert categories["cudaStreamSynchronize"] == "idle"
    assert categories["Memcpy DtoH (Device -> Pageable)"] == "memory"
    assert trace.overlap("compute", "communication") == pytest.approx(40)


def test_reads_files_plain_and_zipped(tmp_path):
    expected = Trace.from_chrome(cuda_records()).to_json()
    plain, zipped = tmp_path / "t.json", tmp_path / "t.json.gz"
    plain.write_text(json.dumps(cuda_records()))
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert Trace.from_chrome(plain).to_json() == Trace.from_chrome(str(zipped)).to_json() == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("3", "traceEvents"),
        ('{"traceEvents": []}', "no operator"),
        (None, "cannot read"),
    ],
)
def test_unreadable_files_are_named(tmp_path, content, message):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        Trace.from_chrome(path)


def small() -> Trace:
    """host: outer [0, 10) around inner [2, 6); stream: kernels [4, 8) and [9, 12)."""
    events = [
        Event("inner", 0, 2, 4, "memory"),
        Event("outer", 0, 0, 10, "launch"),
        Event("k1", 1, 4, 4, "compute", {"grid": [1]}),
        Event("k2", 1, 9, 3, "communication"),
    ]
    return Trace([HOST, STREAM], events, [(0, 2), (1, 3)])


def test_events_are_sorted_and_links_follow():
    trace = small()
    assert [event.name for event in trace.events] == ["outer", "inner", "k1", "k2"]
    assert [(trace.events[a].name, trace.events[b].name) for a, b in trace.links] == [
        ("outer", "k2"),
        ("inner", "k1"),
    ]


def test_json_round_trip():
    data = json.loads(json.dumps(small().to_json()))
    assert set(data) == {"unit", "lanes", "events", "links"}
    assert Trace.from_json(data).to_json() == small().to_json() == Trace.from_json(json.dumps(data)).to_json()


@pytest.mark.parametrize(
    "bad", ["[]", "{", '{"lanes": [], "events": [{"name": "x"}]}', '{"lanes": [{"nme": "x"}]}']
)
def test_json_that_is_no_trace(bad):
    with pytest.raises(DataError, match="not a trace"):
        Trace.from_json(bad)


def test_summary_counts_each_moment_once():
    host, stream = small().summary()
    assert host.by_category == {"launch": 6, "memory": 4}
    assert (host.busy, host.idle) == (10, 2)
    assert (stream.busy, stream.idle) == (7, 5)


def test_waiting_is_not_busy():
    events = [Event("step", 0, 0, 10, "launch"), Event("synchronize", 0, 4, 5, "idle")]
    (host,) = Trace([HOST], events).summary()
    assert (host.busy, host.idle) == (5, 5)


def test_trim_cuts_moves_and_drops():
    trace = small().trim(5, 9.5)
    assert [(e.name, e.start, e.duration) for e in trace.events] == [
        ("outer", 0, 4.5),
        ("k1", 0, 3),
        ("inner", 0, 1),
        ("k2", 4, 0.5),
    ]
    assert len(trace.links) == 2
    only = small().trim(10.5, 20)
    assert only.lanes == (STREAM,)
    assert only.links == ()


def test_min_duration_and_longest_keep_links_right():
    trace = small().min_duration(4)
    assert [e.name for e in trace.events] == ["outer", "inner", "k1"]
    assert [(trace.events[a].name, trace.events[b].name) for a, b in trace.links] == [("inner", "k1")]
    assert {e.name for e in small().longest(1).events} == {"outer"}


def test_span_finds_an_event():
    assert small().span("k2") == (9, 12)
    assert small().trim(*small().span("k2")).duration == 3
    with pytest.raises(DataError, match="0 events named 'k9'"):
        small().span("k9")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Event("x", 2, 0, 1), "lane 2"),
        (Event("x", 0, 0, -1), "duration -1"),
        (Event("x", 0, 0, float("nan")), "duration nan"),
        (Event("x", 0, 0, 1, "fun"), "category 'fun'; valid are parameters"),
    ],
)
def test_bad_events_are_refused(event, message):
    with pytest.raises(DataError, match=message):
        Trace([HOST, STREAM], [event])
    assert event.category in PALETTE or event.category == "fun"


def test_links_to_nothing_are_refused():
    with pytest.raises(DataError, match="names event 5"):
        Trace([HOST], [Event("x", 0, 0, 1)], [(0, 5)])


def test_recorder_takes_spans_from_many_threads():
    recorder = Recorder()

    def work(n: int) -> None:
        for i in range(50):
            with recorder.span(f"step {i}", lane=f"thread {n}", round=i):
                pass

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = recorder.trace()
    assert len(trace) == 200
    assert trace.start == 0
    for number in range(4):
        lane = [lane.name for lane in trace.lanes].index(f"thread {number}")
        mine = [event for event in trace.events if event.lane == lane]
        assert [event.args["round"] for event in mine] == list(range(50))
        assert all(a.end <= b.start for a, b in pairwise(mine))


def test_recorder_keeps_the_span_of_an_error():
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="boom"), recorder.span("forward", category="F"):
        raise RuntimeError("boom")
    assert [event.name for event in recorder.trace().events] == ["forward"]
