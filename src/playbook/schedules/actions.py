"""What a pipeline does, as data: actions in order, rank by rank.

A model of ``depth`` stages is spread over ranks. Each micro-batch goes forward through the stages (F), then backward:
first the gradient of the activations (B), which the stage before waits for, then that of the weights (W), which nobody
waits for; or both at once (BW). The same object is drawn, timed (``timeline.py``), checked (``validate.py``) and executed
(``parallel/pipeline.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

OPS = ("F", "B", "W", "BW")


class Action(NamedTuple):
    """One pass of one micro-batch through one stage: ``op`` is F, B, W or BW."""

    op: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.op} of micro-batch {self.microbatch} on stage {self.stage}"


def straight(stages: int) -> tuple[tuple[int, ...], ...]:
    """Stage s on rank s."""
    return (tuple(range(stages)),)


@dataclass(frozen=True)
class Schedule:
    """Who does what in which order.

    ``placement[c][s]`` is the rank of stage s in direction c. All micro-batches go in direction 0, but in a bidirectional
    pipeline, where ``directions[m]`` says where micro-batch m goes. ``overlapped`` are places (rank, i) at which action
    i and the one after it, of different micro-batches, run side by side.
    """

    name: str
    microbatches: int
    placement: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[Action, ...], ...]
    directions: tuple[int, ...] = ()
    overlapped: frozenset[tuple[int, int]] = frozenset()

    @property
    def depth(self) -> int:
        """Stages that a micro-batch goes through."""
        return len(self.placement[0])

    @property
    def chunks(self) -> int:
        """Stages that a rank holds, copies for several directions included."""
        return len(self.placement) * self.depth // len(self.ranks)

    def direction(self, microbatch: int) -> int:
        """In which direction a micro-batch goes."""
        return self.directions[microbatch] if self.directions else 0

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that has ``stage`` in the direction of ``microbatch``."""
        return self.placement[self.direction(microbatch)][stage]

    def microbatches_of(self, stage: int, rank: int) -> int:
        """How many micro-batches ``rank`` takes through ``stage``."""
        return sum(self.rank_of(stage, m) == rank for m in range(self.microbatches))

    def needs(self, action: Action) -> list[Action]:
        """Actions that must be over before ``action`` begins. A B may stand for the BW that contains it."""
        op, stage, microbatch = action
        if op == "F":
            return [Action("F", stage - 1, microbatch)] if stage else []
        if op == "W":
            return [Action("B", stage, microbatch)]
        before = [Action("F", stage, microbatch)]
        return before if stage + 1 == self.depth else [*before, Action("B", stage + 1, microbatch)]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it; `validate.schedule_of` reads it."""
        found: dict[str, Any] = {
            "name": self.name,
            "microbatches": self.microbatches,
            "placement": [list(direction) for direction in self.placement],
            "ranks": [
                [{"op": a.op, "stage": a.stage, "microbatch": a.microbatch} for a in r] for r in self.ranks
            ],
        }
        if self.directions:
            found["directions"] = list(self.directions)
        if self.overlapped:
            found["overlapped"] = sorted(map(list, self.overlapped))
        return found
