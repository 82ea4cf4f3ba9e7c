"""What a pipeline sends. Standard library only.

Behind each stage but the last a micro-batch's residual stream goes to the rank of the next one, and its gradient, which
is as large, comes back: b·s·h elements, however large the stages are. That is little beside what tensor parallelism or
ZeRO-3 send for every layer (Narayanan et al. 2021, arXiv 2104.04473, section 3.2).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from playbook.layout import Layout
from playbook.layout.stages import placement
from playbook.schedules.actions import Schedule
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class PipelineTraffic:
    """Bytes that one rank sends to others of its pipeline in a step.

    ``tied`` is the gradient of a table that is the embedding on one rank and the head on another: they add it up.
    """

    activations: int
    gradients: int
    tied: int

    @property
    def total(self) -> int:
        return self.activations + self.gradients + self.tied


def message_bytes(shape: ModelShape, layout: Layout, seq: int, itemsize: int = 2) -> int:
    """Bytes of one hop: the tokens of a micro-batch that this rank has, in a residual stream of ``itemsize`` bytes."""
    tokens = layout.micro_batch * layout.padded(seq) // layout.cp
    return tokens * shape.hidden * itemsize // (layout.tp if layout.sp else 1)


def pipeline_traffic(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    *,
    itemsize: int = 2,
    gradient_bytes: int = 2,
    schedule: Schedule | None = None,
) -> tuple[PipelineTraffic, ...]:
    """Traffic of each rank of the pipeline, in a step of ``layout.grad_acc`` micro-batches of ``seq`` tokens a sample.

    ``gradient_bytes`` are those of an element of a weight's gradient. A ``schedule`` of one's own says itself where
    stages are; between two stages on one rank nothing is sent. Ranks of a pipeline both ways add tied tables up with
    all other weights that they have twice. Raises ScheduleError for what has no schedule.
    """
    if layout.pp == 1:
        return (PipelineTraffic(0, 0, 0),)
    ways = placement(layout, schedule)
    taken = Counter(schedule.way(m) for m in range(schedule.microbatches)) if schedule else Counter()
    each = message_bytes(shape, layout, seq, itemsize)
    forward, backward = [0] * layout.pp, [0] * layout.pp
    for i, way in enumerate(ways):
        microbatches = taken[i] if schedule else layout.grad_acc // len(ways)
        for before, after in pairwise(way):
            if before != after:
                forward[before] += microbatches * each
                backward[after] += microbatches * each
    ends = {ways[0][0], ways[0][-1]} if shape.tied and len(ways) == 1 else set()
    table = -(-shape.vocab // layout.tp) * shape.hidden * gradient_bytes if len(ends) == 2 else 0
    return tuple(
        PipelineTraffic(forward[rank], backward[rank], table * (rank in ends)) for rank in range(layout.pp)
    )
