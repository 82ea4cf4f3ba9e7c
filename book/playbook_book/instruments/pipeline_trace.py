"""A pipeline's real step beside its simulated one: when each action ran, and what the same schedule takes on paper.

    run = record_pipeline("tiny", Layout.parse("pp=2,schedule=zb-h1,grad_acc=8"), seq=256)
    run.measured.makespan, run.predicted.makespan

The times of the prediction are medians of what was measured in the same step, by stage and kind of action; a hop is what
lies between the end of an action and the beginning of one elsewhere that was only waiting for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from playbook_widgets.compute.pipeline_runs import measured_times, read_trace
from torch import Tensor

from playbook import launch
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.schedules.actions import Schedule
from playbook.schedules.timeline import Timeline, Times, simulate
from playbook.shapes import ModelShape, load
from playbook.training.optimizer import adamw

#: Seconds of each action of a rank: op, stage, micro-batch, start, end.
Record = list[tuple[str, int, int, float, float]]


@dataclass(frozen=True)
class PipelineRun:
    """Steps of a real run as traces (the JSON of ``playbook schedule``, in seconds), all of one schedule."""

    traces: tuple[dict[str, Any], ...]

    @property
    def steps(self) -> list[Timeline]:
        """Every step, measured."""
        return [read_trace(trace)[0] for trace in self.traces]

    @property
    def trace(self) -> dict[str, Any]:
        """The fastest step: what a machine does beside the run can only make one slower."""
        return min(zip(self.steps, self.traces, strict=True), key=lambda pair: pair[0].makespan)[1]

    @property
    def measured(self) -> Timeline:
        """That step as a timeline, from 0 on."""
        return read_trace(self.trace)[0]

    @property
    def times(self) -> Times:
        """By stage, the median time of each kind of action of that step; and of a hop."""
        return measured_times(self.measured)

    @property
    def predicted(self) -> Timeline:
        """The schedule, simulated with these times."""
        return simulate(self.measured.schedule, self.times)

    @property
    def error(self) -> float:
        """How much longer the prediction is than the run, as a part of the run."""
        return self.predicted.makespan / self.measured.makespan - 1


def record_pipeline(
    shape: ModelShape | str | dict,
    layout: Layout,
    *,
    seq: int,
    steps: int = 5,
    schedule: Schedule | None = None,
    stage_layers: Sequence[int] | None = None,
    timeout: float = 120.0,
) -> PipelineRun:
    """Launch the ranks of ``layout``, let them make a step to get ready and ``steps`` that are recorded.

    A micro-batch has ``layout.micro_batch`` samples of ``seq`` tokens, a step ``layout.grad_acc`` of them. Ranks compute
    with one thread each on a CPU. ``schedule`` and ``stage_layers`` are those of the layout.
    """
    layout = layout.replace(own_schedule=schedule, stage_layers=tuple(stage_layers) if stage_layers else None)
    ranks = layout.world_size
    return launch.run(_record, load(shape), layout, seq, steps, ranks=ranks, timeout=timeout).values[0]


def _record(shape: ModelShape, layout: Layout, seq: int, steps: int) -> PipelineRun:
    torch.set_num_threads(1)
    with launch.process_group():
        mesh = Mesh(layout)
        model = Transformer(shape, recompute=layout.recompute, device=mesh.device)
        make = partial(adamw, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        engine = parallelize(model, mesh, make)
        generator = torch.Generator().manual_seed(0)
        samples = layout.micro_batch * layout.grad_acc
        tokens = torch.randint(shape.vocab, (samples, seq + 1), generator=generator).to(mesh.device)
        traces = [record_step(engine, tokens, layout.micro_batch) for _ in range(1 + steps)]
    return PipelineRun(tuple(traces[1:]))


def record_step(engine: Engine, tokens: Tensor, micro_batch: int) -> dict[str, Any]:
    """One step of samples (B, s + 1) without an update, as a trace of the ranks of this pipeline. A collective.

    Clocks are those of one machine: ranks on several have no common one.
    """
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    pipeline = engine.pipeline
    assert pipeline is not None
    engine.zero_grad()
    dist.barrier(pipeline.group)
    begin, pipeline.trace = time.perf_counter(), []
    engine.accumulate(inputs, targets, micro_batch)
    when = {action: (start, end) for action, start, end in pipeline.trace}
    # In the order of the schedule: of two side by side, either may be over first.
    mine: Record = [(*action, *when[action]) for action in pipeline.schedule.ranks[pipeline.rank]]
    pipeline.trace = None
    return _together(pipeline.schedule, begin, mine, pipeline.group)


def _together(schedule: Schedule, begin: float, mine: Record, group: dist.ProcessGroup) -> dict[str, Any]:
    """The actions of all ranks in one trace, whose time begins when the first rank does."""
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, (begin, mine), group=group)
    zero = min(start for start, _ in every)
    keys = ("op", "stage", "microbatch", "start", "end")
    ranks = [
        [
            dict(zip(keys, (op, stage, m, start - zero, end - zero), strict=True))
            for op, stage, m, start, end in found
        ]
        for _, found in every
    ]
    return {**schedule.to_json(), "unit": "s", "ranks": ranks}
