"""A schedule by hand: one action after the other on any rank, and why one is not possible now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.kept import CHANGES

#: The letter of an action in the text of a board.
LETTERS = {"F": "F", "B": "B", "W": "W", "BW": "X"}
_OPS = {letter: op for op, letter in LETTERS.items()}


class Move(NamedTuple):
    """An action that a rank could do next; ``refused`` says why it cannot, and is empty where it can."""

    rank: int
    action: Action
    refused: str


class Board:
    """Actions placed on the ranks of ``plan``, whose stages are where it has them; its own actions do not matter.

    ``limit`` is how many micro-batches' activations a rank keeps at most, counted as ``plan``'s ranks hold the model: a
    stage of a rank with two counts a half. ``rest`` is the part of them that is kept from B to W.
    """

    def __init__(self, plan: Schedule, limit: float | None = None, rest: float = 1.0):
        self.plan, self.limit, self.rest = plan, limit, rest
        self.placed: list[tuple[int, Action]] = []
        self.done: set[Action] = set()  # B and W apart, though they came as one
        self.kept = [0.0] * len(plan.ranks)
        self.share = len(plan.ranks) / plan.depth

    # --- what is there

    @property
    def left(self) -> int:
        """Passes that nobody has done yet, of F, B and W of every micro-batch on every stage."""
        return 3 * self.plan.microbatches * self.plan.depth - len(self.done)

    def schedule(self) -> Schedule:
        """What has been placed so far. Actions run side by side where the plan's do, as long as a rank follows it."""
        ranks: list[list[Action]] = [[] for _ in self.plan.ranks]
        for rank, action in self.placed:
            ranks[rank].append(action)
        plan, own = self.plan, tuple(map(tuple, ranks))
        follows = [mine == theirs[: len(mine)] for mine, theirs in zip(own, plan.ranks, strict=True)]
        overlapped = frozenset((r, i) for r, i in plan.overlapped if follows[r] and i + 1 < len(own[r]))
        return Schedule("own", plan.microbatches, plan.placement, own, plan.directions, overlapped)

    def stages(self, rank: int) -> list[tuple[int, int]]:
        """The stages that ``rank`` holds, as (direction, stage)."""
        directions = enumerate(self.plan.placement)
        return [
            (direction, stage)
            for direction, homes in directions
            for stage, home in enumerate(homes)
            if home == rank
        ]

    # --- what can come next

    def moves(self, rank: int) -> list[Move]:
        """The next F, B, W and BW of each stage of ``rank``; none where all are done."""
        return [
            Move(rank, action, self.refusal(rank, action))
            for direction, stage in self.stages(rank)
            for action in self._next(direction, stage)
        ]

    def _next(self, direction: int, stage: int) -> Iterator[Action]:
        """The first micro-batch of the direction that lacks it, for each operation."""
        microbatches = [m for m in range(self.plan.microbatches) if self.plan.direction(m) == direction]
        for op in LETTERS:
            for m in microbatches:
                if all(Action(part, stage, m) not in self.done for part in op):
                    yield Action(op, stage, m)
                    break

    def refusal(self, rank: int, action: Action) -> str:
        """Why ``rank`` cannot do ``action`` now; empty where it can."""
        op, stage, microbatch = action
        plan = self.plan
        if not (
            0 <= rank < len(plan.ranks) and 0 <= stage < plan.depth and 0 <= microbatch < plan.microbatches
        ):
            return f"there is no {action} on rank {rank}"
        home = plan.rank_of(stage, microbatch)
        if home != rank:
            return f"{action} belongs to rank {home}, which holds that stage"
        if any(action._replace(op=part) in self.done for part in op):
            return f"{action} has been done"
        for need in plan.needs(action):
            if need not in self.done:
                other = plan.rank_of(need.stage, need.microbatch)
                return f"{action} needs {need}, which rank {other} has not done yet"
        after = self.kept[rank] + self._change(action)
        if op == "F" and self.limit is not None and after > self.limit + 1e-9:
            return (
                f"{action} would make rank {rank} keep the activations of {after:g} micro-batches, but {self.limit:g} "
                "fit: something must go backward first"
            )
        return ""

    def place(self, rank: int, action: Action) -> None:
        """Put ``action`` at the end of what ``rank`` does. Raises ScheduleError with the reason where that cannot be."""
        if refused := self.refusal(rank, action):
            raise ScheduleError(f"own: {refused}")
        self.placed.append((rank, action))
        self.done.update(action._replace(op=part) for part in action.op)
        self.kept[rank] += self._change(action)

    def _change(self, action: Action) -> float:
        whole, part = CHANGES[action.op]
        return self.share * (whole + part * self.rest)

    # --- as text

    def read(self, text: str) -> Board:
        """Place what a text says, "0F0.1F0.1X0": rank, operation (X is BW), micro-batch, and a letter for the rank's
        second stage and later ones (b, c, …). Raises ScheduleError for what cannot be read or placed."""
        for word in filter(None, text.split(".")):
            found = re.fullmatch(r"(\d{1,3})([FBWX])(\d{1,4})([b-z]?)", word)
            if not found:
                raise ScheduleError(
                    f"own has {word!r}, but an action is written 0F3: rank, F, B, W or X, micro-batch"
                )
            rank, microbatch, chunk = (
                int(found[1]),
                int(found[3]),
                "abcdefghijklmnopqrstuvwxyz".find(found[4] or "a"),
            )
            stages = self._stages_of(rank, microbatch)
            if chunk >= len(stages):
                raise ScheduleError(
                    f"own has {word!r}, but rank {rank} has no such stage for micro-batch {microbatch}"
                )
            self.place(rank, Action(_OPS[found[2]], stages[chunk], microbatch))
        return self

    def word(self, move: tuple[int, Action]) -> str:
        """An action as `read` takes it."""
        rank, (op, stage, microbatch) = move
        chunk = self._stages_of(rank, microbatch).index(stage)
        return f"{rank}{LETTERS[op]}{microbatch}{chr(ord('a') + chunk) if chunk else ''}"

    def text(self, placed: Sequence[tuple[int, Action]] | None = None) -> str:
        """All that has been placed, as `read` takes it."""
        return ".".join(map(self.word, self.placed if placed is None else placed))

    def _stages_of(self, rank: int, microbatch: int) -> list[int]:
        if not 0 <= microbatch < self.plan.microbatches:
            return []
        direction = self.plan.direction(microbatch)
        return [stage for stage, home in enumerate(self.plan.placement[direction]) if home == rank]
