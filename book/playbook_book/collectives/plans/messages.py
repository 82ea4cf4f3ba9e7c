"""What plans are made of: messages, and a vector cut into one chunk for each rank. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Message(NamedTuple):
    """At ``step``, ``source`` sends its elements ``start:stop`` to ``target``, where they land from ``into`` on.

    With ``reduce`` the target combines them with what it has there, otherwise it stores them. All that a rank sends at
    a step is what it had when the step began.
    """

    step: int
    source: int
    target: int
    start: int
    stop: int
    into: int
    bytes: int
    reduce: bool

    def __str__(self) -> str:
        landing = f"[{self.into}:{self.into + self.stop - self.start}]"
        how = f"reduced into {landing}" if self.reduce else f"stored at {landing}"
        sent = f"[{self.start}:{self.stop}] {how}, {self.bytes} bytes"
        return f"step {self.step}: rank {self.source} → rank {self.target}, {sent}"


@dataclass(frozen=True)
class Vector:
    """A vector of which chunk i, the elements ``cuts[i]:cuts[i + 1]``, belongs to the i-th of the ranks ``members``."""

    cuts: tuple[int, ...]
    itemsize: int
    members: tuple[int, ...]

    @classmethod
    def even(cls, elements: int, ranks: int, itemsize: int) -> Vector:
        """``elements`` cut as evenly as they go: the first ``elements % ranks`` chunks have one more than the others."""
        least, more = divmod(elements, ranks)
        sizes = (least + (chunk < more) for chunk in range(ranks))
        return cls((0, *accumulate(sizes)), itemsize, tuple(range(ranks)))

    @property
    def ranks(self) -> int:
        return len(self.members)

    @property
    def elements(self) -> int:
        return self.cuts[-1] - self.cuts[0]

    def size(self, chunk: int) -> int:
        """Elements in one chunk."""
        return self.cuts[chunk + 1] - self.cuts[chunk]

    def send(
        self,
        step: int,
        source: int,
        target: int,
        first: int = 0,
        last: int | None = None,
        *,
        reduce: bool = False,
    ) -> Message:
        """The i-th member sends chunks ``first`` up to (without) ``last`` to the j-th, in place; all by default."""
        start, stop = self.cuts[first], self.cuts[self.ranks if last is None else last]
        size = (stop - start) * self.itemsize
        return Message(step, self.members[source], self.members[target], start, stop, start, size, reduce)


def in_turn(*phases: Iterable[Message]) -> Iterator[Message]:
    """The messages of all phases, each phase starting at the step after the last one of the phase before."""
    start = 0
    for phase in phases:
        after = start
        for message in phase:
            yield message._replace(step=start + message.step)
            after = max(after, start + message.step + 1)
        start = after


def at_once(*parts: Iterable[Message]) -> Iterator[Message]:
    """The messages of several groups of ranks that work side by side, step by step."""
    yield from sorted((message for part in parts for message in part), key=lambda message: message.step)
