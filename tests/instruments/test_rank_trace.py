"""Reading a profiled step: the same questions to a trace of Gloo's threads and to one of NCCL's kernels."""

from __future__ import annotations

import pytest
import torch

from playbook.errors import DataError
from playbook.instruments.profiled_step import GRADIENT, NODE, ProfiledStep
from playbook.instruments.rank_trace import record_step
from playbook.instruments.trace import Event, Lane, Trace
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.overlap import (
    collectives,
    gathers,
    hidden,
    last_gradient,
    overlaps_backward,
    reductions,
)


def x(name: str, kind: str, start: float, end: float, thread: int = 1, **args) -> dict:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "ts": start,
        "dur": end - start,
        "tid": thread,
        "pid": 0,
        "args": args,
    }


def launched(
    name: str, at: float, start: float, end: float, number: int, stream: int = 7, **args
) -> list[dict]:
    """A kernel and the call that launched it."""
    return [
        x("cudaLaunchKernel", "cuda_runtime", at, at + 1, correlation=number),
        x(name, "kernel", start, end, stream, correlation=number, **args),
    ]


NCCL = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16"}

#: The host is far ahead of the device: all is launched by 60 µs, and the last gradient is there at 700.
ON_DEVICE = [
    x("forward", "user_annotation", 0, 20),
    x("forward of block 0", "user_annotation", 2, 18),
    x("aten::mm", "cpu_op", 3, 5, **{"Sequence number": 5}),
    *launched("sgemm", 4, 100, 300, 1),
    x("backward", "user_annotation", 20, 60),
    x(f"{NODE}MmBackward0", "cpu_op", 21, 31, 2, **{"Sequence number": 5}),
    x("MmBackward0", "cpu_op", 22, 30, 2, **{"Sequence number": 5, "Fwd thread id": 1}),
    *launched("sgemm", 23, 310, 500, 2),
    x(f"{NODE}{GRADIENT}", "cpu_op", 31, 35, 2),
    x(GRADIENT, "cpu_op", 32, 34, 2),
    *launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 33, 505, 650, 3, 9, **NCCL),
    x(f"{NODE}MmBackward0", "cpu_op", 36, 41, 2, **{"Sequence number": 4}),
    x("MmBackward0", "cpu_op", 37, 40, 2, **{"Sequence number": 4, "Fwd thread id": 1}),
    *launched("sgemm", 38, 501, 700, 4),
    x(f"{NODE}{GRADIENT}", "cpu_op", 42, 46, 2),
    x(GRADIENT, "cpu_op", 43, 45, 2),
    *launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 44, 705, 850, 5, 9, **NCCL),
    x("optimizer", "user_annotation", 60, 80),
    *launched("multi_tensor_apply_kernel", 62, 860, 900, 6),
]  # fmt: skip


def read(records: list[dict]) -> Trace:
    step = ProfiledStep({"traceEvents": records, "baseTimeNanoseconds": 5_000})
    assert step.began == 5_000
    return step.trace(origin=step.began)


def test_kernels_are_what_a_device_computes_and_sends():
    trace = read(ON_DEVICE)
    assert [lane.kind for lane in trace.lanes] == ["stream", "stream"]
    spans = {
        e.name: (e.start, e.end) for e in trace.events if e.lane == 0 and e.name not in ("wait", "gradient")
    }
    assert spans == {
        "forward": (100, 300), "backward": (310, 700), "optimizer": (860, 900),
        "block 0 forward": (100, 300), "block 0 backward": (310, 500),
    }  # fmt: skip
    assert [e.start for e in trace.events if e.name == "gradient"] == [500, 700]
    first, _ = collectives(trace)
    assert (first.name, first.start, first.end) == ("all_reduce", 505, 650)
    assert first.args == {"bytes": 2000, "issued": 33}
    # Nothing runs beside the second one but a wait, from 700 to 860.
    assert [(e.start, e.end) for e in trace.events if e.name == "wait"] == [(300, 310), (700, 860)][1:]
    assert (hidden(trace).hidden, hidden(trace).exposed) == (145, 145)
    assert hidden(trace).fraction == 0.5
    assert overlaps_backward(trace)
    assert last_gradient(trace) == 700


def test_asking_early_is_not_starting_early():
    late = [
        dict(r, ts=701, dur=2) if r["args"].get("correlation") == 3 and r["cat"] == "kernel" else r
        for r in ON_DEVICE
    ]
    trace = read(late)
    assert reductions(trace)[0].args["issued"] < last_gradient(trace)
    assert not overlaps_backward(trace)


def test_a_trace_of_something_else():
    with pytest.raises(DataError, match="no span called forward, backward or optimizer"):
        ProfiledStep({"traceEvents": [x("aten::mm", "cpu_op", 0, 1)]})
    empty = Trace([Lane("compute"), Lane("communication", "stream")], [])
    with pytest.raises(DataError, match="no event called 'gradient'"):
        last_gradient(empty)
    assert hidden(empty).fraction == 1.0


def test_gathers_must_be_as_many_as_blocks():
    lanes = [Lane("compute"), Lane("communication", "stream")]
    block = Event("block 0 forward", 0, 1, 2, "F", {"part": "block 0", "pass": "forward"})
    with pytest.raises(DataError, match="forward ran 1 blocks, but the trace has 0 gathers"):
        gathers(Trace(lanes, [Event("forward", 0, 0, 10, "F", {"issued": 0}), block]))


def test_waiting_hides_nothing():
    """Communication from 0 to 10; compute from 2 to 8, of which 3 to 5 are a wait."""
    lanes = [Lane("compute"), Lane("communication", "stream")]
    events = [
        Event("backward", 0, 2, 6, "B"),
        Event("wait", 0, 3, 2, "idle"),
        Event("all_reduce", 1, 0, 7, "communication"),
        Event("all_reduce", 1, 4, 6, "communication"),
    ]
    found = hidden(Trace(lanes, events))
    assert (found.hidden, found.exposed, found.communication) == (4, 6, 10)


def test_one_device_has_a_trace_without_communication():
    trainer = make_trainer(
        "tiny", load_corpus(), TrainConfig(steps=2, global_batch=2, seq=32, recompute="full")
    )
    before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in trainer.model.modules()]
    wait = torch.distributed.Work.wait
    trace = record_step(trainer.step, trainer.model)
    assert collectives(trace) == []
    inputs = len(trainer.model.blocks)  # of blocks: leaves of what is computed again
    learning = len(list(trainer.model.parameters()))
    assert len([e for e in trace.events if e.name == "gradient"]) == learning + inputs
    assert [e.args["part"] for e in trace.events if e.args.get("pass") == "recompute"] == [
        "block 3", "block 2", "block 1", "block 0",
    ]  # fmt: skip
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in trainer.model.modules()] == before
    assert torch.distributed.Work.wait is wait
    assert Trace.from_json(trace.to_json()).events == trace.events


def test_a_wait_begins_when_the_last_operator_before_it_ended():
    """The host came late to its first wait: what was asked for at 11 was through when it got its core back."""
    trace = read(
        [
            x("forward", "user_annotation", 0, 50),
            x("aten::mm", "cpu_op", 2, 10),
            x("c10d::allreduce_", "cpu_op", 11, 25, **{"Input Dims": [[4]]}),
            x("wait", "user_annotation", 30, 31),
            x("wait", "user_annotation", 31, 40),
            x("aten::mm", "cpu_op", 41, 45),
        ]
    )
    waits = [(e.start, e.end) for e in trace.events if e.name == "wait"]
    assert waits == [(10, 31), (31, 40)]
