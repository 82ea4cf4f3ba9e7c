"""What the ranks of one launch gave: values, output, and the failure of the rank that failed first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload


@dataclass(frozen=True)
class Rank:
    """One rank: what it returned and what it printed."""

    rank: int
    value: Any
    output: str


class Ranks(Sequence[Rank]):
    """The ranks of one launch: ``ranks[2].value``, ``ranks[2].output``; printed, their output in rank order."""

    def __init__(self, ranks: Iterable[Rank]):
        self._ranks = tuple(ranks)

    @overload
    def __getitem__(self, index: int) -> Rank: ...
    @overload
    def __getitem__(self, index: slice) -> Ranks: ...
    def __getitem__(self, index: int | slice) -> Rank | Ranks:
        return Ranks(self._ranks[index]) if isinstance(index, slice) else self._ranks[index]

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def values(self) -> list[Any]:
        """The values in rank order."""
        return [rank.value for rank in self._ranks]

    @property
    def grouped(self) -> str:
        """All output, grouped by rank in rank order, each line after its rank; empty if no rank printed anything."""
        return "".join(
            f"{prefix(rank.rank, len(self))}{line}\n"
            for rank in self._ranks
            for line in rank.output.splitlines()
        )

    def __repr__(self) -> str:
        return self.grouped.rstrip("\n") or f"<{len(self)} ranks, no output>"


class RankError(RuntimeError):
    """The failure of the rank that failed first: one sentence that names it and the reason, then its traceback.

    Not a ``PlaybookError``: what went wrong is in the code that the ranks ran, and its traceback is what helps.
    """

    def __init__(self, sentence: str, traceback: str = "", rank: int | None = None):
        super().__init__(f"{sentence}\n\n{traceback}".rstrip())
        self.sentence = sentence
        self.traceback = traceback
        self.rank = rank
        self.ranks = Ranks(())  # what they printed, and the values of those that had ended

    def _render_traceback_(self) -> list[str]:
        """For IPython: the rank's traceback says it all, the launcher's own frames nothing."""
        return [f"{type(self).__name__}: {self}"]


def prefix(rank: int, ranks: int) -> str:
    """What stands before each line that a rank printed."""
    return f"rank {rank:>{len(str(ranks - 1))}} | "


def names(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0 and 3``, ``ranks 0, 1 and 3``."""
    *most, last = [str(rank) for rank in sorted(ranks)]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
