"""What traces answer: idle time and who worked meanwhile, operations by phase, several traces on one axis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from playbook.errors import DataError
from playbook.instruments.trace import Event, Lane, Trace
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.trace_analysis import (
    idle_fraction,
    meanwhile,
    operations_by_phase,
    side_by_side,
)

HOST, WIRE, DEVICE = Lane("host"), Lane("wire", "stream"), Lane("compute", "stream")
SMALL = load("tiny").replace(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=64)


def starved() -> Trace:
    """The device works in [4, 6) and [9, 10); the host loads in [0, 5) with a wait inside, the wire sends in [6, 8)."""
    return Trace(
        [HOST, WIRE, DEVICE],
        [
            Event("load", 0, 0, 5, "data"),
            Event("wait", 0, 1, 1, "idle"),
            Event("send", 1, 6, 2, "communication"),
            Event("step", 2, 4, 2, "compute"),
            Event("step", 2, 9, 1, "compute"),
        ],
    )


def test_idle_fraction_is_what_no_work_covers():
    assert idle_fraction(starved(), "compute") == pytest.approx(0.7)
    assert idle_fraction(starved(), "host") == pytest.approx(0.6)  # the wait inside the load is idle
    assert idle_fraction(Trace([HOST], []), "host") == 0


def test_meanwhile_names_who_worked():
    # The device is idle in [0, 4), [6, 9): loading covers [0, 1) and [2, 4), sending [6, 8), nobody the rest.
    assert meanwhile(starved(), "compute") == {"data": 3, "communication": 2, "idle": 2}
    assert next(iter(meanwhile(starved(), "compute"))) == "data"
    assert meanwhile(starved(), "wire") == {"data": 4, "compute": 3, "idle": 2}


def test_unknown_lanes_are_named():
    with pytest.raises(DataError, match="no lane 'gpu'; its lanes are 'host', 'wire', 'compute'"):
        meanwhile(starved(), "gpu")
    with pytest.raises(DataError, match="no lane 'gpu'"):
        idle_fraction(starved(), "gpu")


spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=12)


@given(spans)
def test_meanwhile_agrees_with_counting_every_microsecond(spans):
    lanes, kinds = [HOST, WIRE, DEVICE], ("data", "communication", "compute")
    trace = Trace(lanes, [Event("x", lane, start, length, kinds[lane]) for lane, start, length in spans])
    counted: dict[str, int] = {}
    for moment in range(int(trace.start), int(trace.start + trace.duration)):
        busy = {kinds[lane] for lane, start, length in spans if start <= moment < start + length}
        if "compute" not in busy:
            for kind in busy or {"idle"}:
                counted[kind] = counted.get(kind, 0) + 1
    assert meanwhile(trace, "compute") == counted


def test_kernels_belong_to_the_phase_that_launched_them():
    trace = Trace(
        [HOST, DEVICE],
        [
            Event("forward", 0, 0, 4, "F"),
            Event("aten::mm", 0, 1, 2, "launch"),
            Event("backward", 0, 4, 4, "B"),
            Event("aten::mm", 0, 5, 2, "launch"),
            Event("gemm", 1, 6, 10, "compute"),  # runs during backward, launched by forward
            Event("gemm", 1, 16, 5, "compute"),
            Event("fill", 1, 30, 1, "memory"),
        ],
        [(1, 4), (3, 5)],
    )
    assert operations_by_phase(trace) == {"gemm": {"forward": 10, "backward": 5}, "fill": {"other": 1}}
    assert list(operations_by_phase(trace, 1)) == ["gemm"]


def test_a_profiled_step_of_the_trainer_has_its_phases():
    trainer = make_trainer(
        SMALL, load_corpus(), TrainConfig(steps=3, global_batch=4, micro_batch=2, seq=16, device="cpu")
    )
    trainer.step(), trainer.step()
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        trainer.step()
    trace = Trace.from_profiler(prof)
    names = [
        event.name for event in trace.events if event.name in ("data", "forward", "backward", "optimizer")
    ]
    assert names == ["data", "forward", "backward", "forward", "backward", "optimizer"]
    operations = operations_by_phase(trace, 1000)
    # Every product runs once forward and twice backward, bar the gradient of the tokens, which nobody needs.
    assert set(operations["aten::mm"]) == {"forward", "backward"}
    assert set(operations["aten::_scaled_dot_product_flash_attention_for_cpu"]) == {"forward"}
    assert "optimizer" in operations["aten::addcdiv_"]
    own = {e.name: 0.0 for e in trace.events}
    for event, time in zip(trace.events, trace.self_times(), strict=True):
        own[event.name] += time
    assert sum(operations["aten::mm"].values()) == pytest.approx(own["aten::mm"])


def test_side_by_side_puts_traces_on_one_axis():
    late = Trace([HOST, DEVICE], [Event("launch k", 0, 100, 1, "launch"), Event("k", 1, 101, 5)], [(0, 1)])
    both = side_by_side({"before": starved(), "after": late})
    assert [lane.name for lane in both.lanes] == [
        "before · host",
        "before · wire",
        "before · compute",
        "after · host",
        "after · compute",
    ]
    assert both.duration == 10
    kernel = next(event for event in both.events if event.name == "k")
    assert (both.lanes[kernel.lane].name, kernel.start) == ("after · compute", 1)
    ((launch, launched),) = both.links
    assert (both.events[launch].name, both.events[launched].name) == ("launch k", "k")
    for name, trace in (("before · compute", starved()), ("after · compute", late)):
        assert both.summary()[[x.name for x in both.lanes].index(name)].busy == trace.summary()[-1].busy
