"""A rank that computes longer than those that do the same work: all others wait for it, in every step.

The time of a step says nothing, since ranks wait for each other: all take as long as the slowest. So now and then a step
is recorded, and what each rank *computed* in it compared with the others. Stages of a pipeline have different work, and
their passes are not recorded: there this says nothing.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch.distributed as dist

from playbook.errors import ConfigError
from playbook.instruments.rank_trace import record_step
from playbook.training.trainer import StepResult, Trainer

#: How many times as long as the median of the others a straggler computes.
FAR = 1.5


class RankWatch:
    """A log of a run (``trainer.Log``) that records a step now and then and names stragglers on stderr; one on each rank.

    A recorded step takes longer, for ``torch.profiler`` writes down all that happens in it.
    """

    def __init__(self, every: int, trainer: Trainer):
        if every < 1:
            raise ConfigError(f"watch_ranks is {every}, but must be at least 1")
        if trainer.config.layout.pp > 1:
            raise ConfigError(
                f"watch_ranks is {every}, but passes of a pipeline are not recorded: leave it out with pp"
            )
        self.every, self.trainer = every, trainer
        self.take_step = trainer.step
        self.seconds: float | None = None
        #: What was said so far.
        self.said: list[str] = []
        if trainer.mesh:
            trainer.step = self._step  # type: ignore[method-assign]

    def _step(self) -> StepResult:
        """A step, recorded if it is time: what this rank computed is in ``seconds`` then."""
        if (self.trainer.step_count + 1) % self.every:
            return self.take_step()
        taken: list[StepResult] = []
        trace = record_step(lambda: taken.append(self.take_step()), self.trainer.model)
        compute, *_ = trace.summary()
        self.seconds = compute.busy / 1e6
        return taken[0]

    def start(self, header: dict[str, Any]) -> None:
        """A run begins."""

    def step(self, record: dict[str, Any]) -> None:
        """Compare what ranks computed in a step that was recorded. Collective."""
        mesh = self.trainer.mesh
        if mesh is None or self.seconds is None:
            return
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, self.seconds)
        self.seconds = None
        found = [f"step {record['step']}: {sentence}" for sentence in stragglers(every)]
        self.said += found
        if mesh.rank == 0:
            for sentence in found:
                print(sentence, file=sys.stderr, flush=True)

    def close(self, outcome: str) -> None:
        """Nothing is open."""


def stragglers(seconds: list[float]) -> list[str]:
    """A sentence for each rank that computed far longer than the others."""
    found = []
    for rank, own in enumerate(seconds):
        others = seconds[:rank] + seconds[rank + 1 :]
        if others and own > FAR * (usual := statistics.median(others)):
            found.append(
                f"rank {rank} is a straggler: it computed for {1e3 * own:,.0f} ms, {own / usual:.1f} times as long as "
                f"the others ({1e3 * usual:,.0f} ms)"
            )
    return found
