"""What collectives take on a network of α–β links: by closed forms, or message by message as a plan says.

Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from playbook._checks import check_int
from playbook.errors import ConfigError
from playbook_book.collectives.closed_forms import algorithm_of, closed_form
from playbook_book.collectives.network import Network
from playbook_book.collectives.plans import Message, Plan, plan


@dataclass(frozen=True)
class Flight:
    """A message on its way, from ``start`` to ``end`` seconds."""

    message: Message
    start: float
    end: float


@dataclass(frozen=True)
class MessageTimeline:
    """All messages of a plan in time."""

    plan: Plan
    spans: tuple[Flight, ...]

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


def simulate(plan: Plan, network: Network) -> MessageTimeline:
    """Send the messages of a plan: each begins when its sender is done with earlier steps and with what comes before it,
    and early enough to arrive when its receiver is.

    A rank that sends several messages at one step sends them one after the other, and receives them so. Those of a ring
    go to the next node over the rails of all its ranks, others through their sender's adapter.
    """
    ports = [_Ports() for _ in range(plan.ranks)]
    striped = plan.algorithm == "ring"
    spans = []
    for message in sorted(plan.messages, key=lambda message: message.step):
        source, target = ports[message.source], ports[message.target]
        source.enter(message.step)
        target.enter(message.step)
        link = network.link(message.source, message.target, striped=striped)
        start = max(
            source.ready, source.sending_until, max(target.ready, target.receiving_until) - link.flight
        )
        end = start + link.time(message.bytes)
        source.sending_until, target.receiving_until = end - link.flight, end
        spans.append(Flight(message, start, end))
    return MessageTimeline(plan, tuple(spans))


class _Ports:
    """One rank: which step it is at, since when, and until when its two ports are taken."""

    def __init__(self) -> None:
        self.step = -1
        self.ready = self.sending_until = self.receiving_until = 0.0

    def enter(self, step: int) -> None:
        if step > self.step:
            self.step, self.ready = step, max(self.sending_until, self.receiving_until)


def seconds(collective: str, bytes: int, ranks: int, network: Network, algorithm: str | None = None) -> float:
    """Seconds of a collective on a vector of ``bytes``: by the closed form, else message by message."""
    algorithm = algorithm_of(collective, algorithm)
    check_int("bytes", bytes, ConfigError, least=0)
    cost = closed_form(collective, algorithm, ranks, network)
    if cost is not None:
        return cost.time(bytes, network)
    return simulate(_plan(collective, algorithm, ranks, bytes, network), network).seconds


def latency(collective: str, ranks: int, network: Network, algorithm: str | None = None) -> float:
    """Seconds that a collective takes however little it carries: messages on the critical path, times α.

    Around a ring they grow with the ranks: 2(N − 1) messages in an all-reduce, of which every node adds two that cross
    to another one.
    """
    algorithm = algorithm_of(collective, algorithm)
    cost = closed_form(collective, algorithm, ranks, network)
    if cost is not None:
        return cost.latency(network)
    intra, inter = (dataclasses.replace(link, beta=0.0) for link in (network.intra, network.inter))
    free = Network(intra, inter, network.ranks_per_node)
    return simulate(_plan(collective, algorithm, ranks, ranks, network), free).seconds


def _plan(collective: str, algorithm: str, ranks: int, bytes: int, network: Network) -> Plan:
    per_node = min(ranks, network.ranks_per_node) if algorithm == "two_level" else None
    return plan(collective, algorithm, ranks=ranks, elements=bytes, ranks_per_node=per_node)


def crossover(collective: str, first: str, second: str, ranks: int, network: Network) -> float | None:
    """Bytes at which two algorithms take the same time; None where one is never slower than the other.

    Raises :class:`ConfigError` where one of them has no closed form on this network.
    """
    costs = [closed_form(collective, name, ranks, network) for name in (first, second)]
    if costs[0] is None or costs[1] is None:
        raise ConfigError(
            f"no closed form of {first if costs[0] is None else second} on {ranks} ranks of this network"
        )
    slopes = [cost.per_byte(network) for cost in costs if cost]
    waits = [cost.latency(network) for cost in costs if cost]
    if slopes[0] == slopes[1]:
        return None
    bytes = (waits[0] - waits[1]) / (slopes[1] - slopes[0])
    return bytes if bytes > 0 else None
