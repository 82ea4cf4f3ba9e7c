"""DualPipe and DualPipeV: micro-batches from both ends, one's forward pass beside another's backward pass.

DeepSeek-AI 2024 (arXiv 2412.19437, section 3.2.1) and its repository github.com/deepseek-ai/DualPipe. In DualPipe a rank
holds two stages, one of each direction; DualPipeV folds the pipeline in the middle, so that one direction is enough.
"""

from __future__ import annotations

from collections import deque

from playbook.errors import ScheduleError
from playbook.layout.stages import least_microbatches, on_ranks
from playbook.schedules.actions import Action, Schedule


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """``stages`` ranks, each with one stage of each direction; half of the micro-batches come from each end.

    Raises ScheduleError for odd numbers, and for fewer micro-batches than 2·``stages``."""
    if stages % 2:
        raise ScheduleError(f"stages is {stages}, but DualPipe meets in the middle: it must be even")
    least, half = least_microbatches("dualpipe", stages), microbatches // 2
    if microbatches % 2 or microbatches < least:
        raise ScheduleError(
            f"microbatches is {microbatches}, but DualPipe on {stages} stages needs an even number of at least {least}"
        )
    found = [_dual_rank(rank, stages, half) for rank in range(stages)]
    return Schedule(
        "dualpipe",
        microbatches,
        on_ranks("dualpipe", stages),
        tuple(tuple(one.actions) for one in found),
        directions=(0,) * half + (1,) * half,
        overlapped=frozenset((r, i) for r, one in enumerate(found) for i in one.overlapped),
    )


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """``stages`` ranks, rank r with the stages r and 2·``stages`` − 1 − r: down on one side of a V, up on the other.

    Raises ScheduleError for fewer micro-batches than 2·``stages``."""
    if microbatches < (least := least_microbatches("dualpipev", stages)):
        raise ScheduleError(
            f"microbatches is {microbatches}, but DualPipeV on {stages} ranks needs at least {least}"
        )
    found = []
    for rank in range(stages):
        places = (rank, 0), (2 * stages - 1 - rank, 0)
        found.append(_Rank(places).run(rank, stages, microbatches))
    return Schedule(
        "dualpipev",
        microbatches,
        on_ranks("dualpipev", stages),
        tuple(tuple(one.actions) for one in found),
        overlapped=frozenset((r, i) for r, one in enumerate(found) for i in one.overlapped),
    )


def _dual_rank(rank: int, stages: int, half: int) -> _Rank:
    down, up = (rank, 0), (stages - 1 - rank, half)  # the stage, and its first micro-batch
    near_end = min(rank, stages - 1 - rank)
    places = (down, up) if rank < stages // 2 else (up, down)
    return _Rank(places).run(near_end, stages // 2, half)


class _Rank:
    """One rank's actions. Side 0 is the way whose beginning is nearer to this rank, side 1 the other."""

    def __init__(self, places: tuple[tuple[int, int], tuple[int, int]]):
        self.stage = [stage for stage, _ in places]
        self.forward, self.backward = [m for _, m in places], [m for _, m in places]
        self.actions: list[Action] = []
        self.overlapped: list[int] = []
        self.owed: deque[Action] = deque()  # weight gradients deferred

    def f(self, side: int) -> None:
        self.actions.append(Action("F", self.stage[side], self.forward[side]))
        self.forward[side] += 1

    def b(self, side: int, later: bool = False) -> None:
        """Backward, its weight gradients deferred or not."""
        place = self.stage[side], self.backward[side]
        self.actions.append(Action("B" if later else "BW", *place))
        if later:
            self.owed.append(Action("W", *place))
        self.backward[side] += 1

    def w(self) -> None:
        self.actions.append(self.owed.popleft())

    def fb(self, side: int) -> None:
        """Forward on ``side``, side by side with backward on the other."""
        self.overlapped.append(len(self.actions))
        self.f(side)
        self.b(1 - side)

    def run(self, rank: int, ranks: int, microbatches: int) -> _Rank:
        """The eight phases; ``rank`` of ``ranks`` counts from the near end to where the two directions turn or meet."""
        inner = ranks - rank - 1
        for _ in range(2 * inner):
            self.f(0)
        for _ in range(rank + 1):
            self.f(0)
            self.f(1)
        for _ in range(inner):
            self.b(1, later=True)
            self.w()
            self.f(1)
        for i in range(microbatches - 2 * ranks + rank + 1):
            self._main(first=i == 0, turns=inner == 0)
        for _ in range(inner):
            self.b(1)
            self.fb(1)
        # From the middle of this phase on, what a rank further on waits for goes first.
        half, odd = (rank + 1) // 2, rank % 2
        for i in range(rank + 1):
            self.b(1, later=i > half or (i == half and odd == 1))
            self.b(0, later=i >= half)
        for _ in range(inner):
            self.w()
            self.b(0, later=True)
        for _ in range(rank + 1):
            self.w()
        assert not self.owed
        return self

    def _main(self, first: bool, turns: bool) -> None:
        if first and turns:  # what comes back is what has just gone forward: one after the other
            self.f(0)
            self.b(1)
        else:
            self.fb(0)
        self.fb(1)
