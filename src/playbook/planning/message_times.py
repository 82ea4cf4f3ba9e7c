"""When each message of a collective is on its way: a plan sent message by message over a network. Standard library
only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from playbook.collectives.plans import Message, Plan
from playbook.planning.links import Network


@dataclass(frozen=True)
class Span:
    """A message on its way, from ``start`` to ``end`` seconds."""

    message: Message
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """All messages of a plan in time."""

    plan: Plan
    spans: tuple[Span, ...]

    @cached_property
    def seconds(self) -> float:
        """When the last message has arrived."""
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, rank: int) -> float:
        """Seconds during which a rank sends or receives."""
        mine = sorted((s.start, s.end) for s in self.spans if rank in (s.message.source, s.message.target))
        total, until = 0.0, 0.0
        for start, end in mine:
            total += max(0.0, end - max(start, until))
            until = max(until, end)
        return total

    @cached_property
    def bytes_per_link(self) -> dict[tuple[int, int], int]:
        """Bytes from each rank to each other one, where there are any."""
        links: dict[tuple[int, int], int] = defaultdict(int)
        for message in self.plan.messages:
            links[message.source, message.target] += message.bytes
        return dict(links)


def simulate(plan: Plan, network: Network) -> Timeline:
    """Send the messages of a plan: each begins when both ends are done with their earlier steps and with what comes
    before it.

    A rank that sends several messages at one step sends them one after the other, and receives them so.
    """
    ports = [_Ports() for _ in range(plan.ranks)]
    spans = []
    for message in sorted(plan.messages, key=lambda message: message.step):
        source, target = ports[message.source], ports[message.target]
        source.enter(message.step)
        target.enter(message.step)
        start = max(source.ready, target.ready, source.sending_until, target.receiving_until)
        end = start + network.link(message.source, message.target).time(message.bytes)
        source.sending_until = target.receiving_until = end
        spans.append(Span(message, start, end))
    return Timeline(plan, tuple(spans))


class _Ports:
    """One rank: which step it is at, since when, and until when its two ports are taken."""

    def __init__(self) -> None:
        self.step = -1
        self.ready = self.sending_until = self.receiving_until = 0.0

    def enter(self, step: int) -> None:
        if step > self.step:
            self.step, self.ready = step, max(self.sending_until, self.receiving_until)
