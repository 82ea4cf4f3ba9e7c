"""What a collective asks of the connection between ranks: to carry out this rank's part of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from playbook_book.collectives.plans import Message, Plan

#: The messages that a rank sent and received, in the order of their steps.
Transcript = list[Message]


class Transport(ABC):
    """What carries plans out: one of ``size`` ranks, over one kind of connection, on one kind of array."""

    rank: int
    size: int

    @abstractmethod
    def flat(self, data: Any) -> Any:
        """A one-dimensional view of an array; raises :class:`CollectiveError` where only a copy could be had."""

    @abstractmethod
    def empty(self, like: Any, elements: int) -> Any:
        """A new flat array of the same kind, its contents undefined."""

    @abstractmethod
    def itemsize(self, flat: Any) -> int:
        """Bytes of an element."""

    @abstractmethod
    def divide(self, flat: Any, by: int) -> None:
        """Divide in place; raises :class:`CollectiveError` for integers."""

    @abstractmethod
    def execute(self, plan: Plan, source: Any, target: Any, op: str) -> Transcript:
        """Carry out this rank's part: send slices of ``source``, receive into slices of ``target`` (they may be one)."""
