"""Where the rows of a mixture of experts go: which rank has which experts, who sends how much to whom, over which links.

Slots are the places for experts, rank by rank; without replicas there are as many as experts. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from playbook_book.expert_placement import balanced, in_order
from playbook_widgets.compute.routing_rule import Choices

#: The experts of each rank.
Placement = tuple[tuple[int, ...], ...]


class Level(NamedTuple):
    """Rows that travel to another rank of their node, and to another node."""

    inside: int
    across: int


@dataclass(frozen=True)
class Rows:
    """``sent``: rows of each rank's tokens to each slot; ``dropped``: choices of each rank's tokens that nobody computes,
    and (``missed``) by the slots that would have. What one dispatch sends ``plain``, and in ``two_steps``."""

    placement: Placement
    sent: list[list[int]]
    dropped: list[int]
    missed: list[int]
    plain: Level
    two_steps: Level

    @property
    def slots(self) -> list[int]:
        """Rows of each slot."""
        return [sum(column) for column in zip(*self.sent, strict=True)]

    @property
    def ranks(self) -> list[int]:
        """Rows of each rank."""
        return self.by_rank(self.slots)

    def by_rank(self, of_slots: Sequence[int]) -> list[int]:
        """Sums over the slots of each rank."""
        own = iter(of_slots)
        return [sum(next(own) for _ in experts) for experts in self.placement]

    @property
    def imbalance(self) -> float:
        """Rows of the busiest rank over the mean."""
        return max(self.ranks) * len(self.ranks) / sum(self.ranks)


def placed(loads: Sequence[int], ranks: int, spare: int | None, parts: int = 1) -> Placement:
    """Experts on ranks: in order or, with ``spare`` slots a rank, hot ones in several replicas.

    With ``parts`` an expert's replicas stay in the part of the ranks that has it, a node.
    """
    if spare is None:
        return in_order(loads, ranks).experts
    each, own = len(loads) // parts, ranks // parts
    found: list[tuple[int, ...]] = []
    for first in range(0, len(loads), each):
        part = balanced(loads[first : first + each], own, each // own + spare)
        found += [tuple(first + e for e in experts) for experts in part.experts]
    return tuple(found)


def travel(chosen: Choices, kept: Choices, placement: Placement, loads: Sequence[int], node: int) -> Rows:
    """The rows of ``kept``, which load experts with ``loads``; sample i is on rank i, and ``node`` ranks are a node."""
    rank_of = [rank for rank, experts in enumerate(placement) for _ in experts]
    nodes_of = [rank // node for rank in rank_of]
    route = _routes(placement, loads)
    sent, across = [[0] * len(rank_of) for _ in placement], 0
    for source, sample in enumerate(kept):
        row, home = sent[source], source // node
        for token in sample:
            slots = [next(route[e]) for e in token]
            for slot in slots:
                row[slot] += 1
            across += len({nodes_of[slot] for slot in slots} - {home})
    dropped, missed = _lost(chosen, kept, placement, len(loads))
    return Rows(
        placement, sent, dropped, missed, _plain(sent, rank_of, node), Level(_on(sent, rank_of, node), across)
    )


def _routes(placement: Placement, loads: Sequence[int]) -> list[Iterator[int]]:
    """For each expert the slots that its rows go to, one after the other: every replica gets as many."""
    homes: list[list[int]] = [[] for _ in loads]
    for slot, e in enumerate(e for experts in placement for e in experts):
        homes[e].append(slot)
    return [
        _in_turn(own, load) if len(own) > 1 else repeat(own[0])
        for own, load in zip(homes, loads, strict=True)
    ]


def _in_turn(slots: list[int], load: int) -> Iterator[int]:
    """The first rows to the first replica, and so on."""
    return (slots[i * len(slots) // load] for i in range(load))


def _lost(chosen: Choices, kept: Choices, placement: Placement, experts: int) -> tuple[list[int], list[int]]:
    """Choices that are not kept: by the rank of their tokens, and by the slots that would have computed them."""
    by_rank, by_expert = [0] * len(placement), [0] * experts
    for source, (sample, left) in enumerate(zip(chosen, kept, strict=True)):
        for token, some in zip(sample, left, strict=True):
            for e in token if len(some) < len(token) else ():
                if e not in some:
                    by_rank[source] += 1
                    by_expert[e] += 1
    missed = [0] * sum(map(len, placement))
    for route, count in zip(_routes(placement, by_expert), by_expert, strict=True):
        for slot, _ in zip(route, range(count), strict=False):
            missed[slot] += 1
    return by_rank, missed


def _plain(sent: list[list[int]], rank_of: Sequence[int], node: int) -> Level:
    """A row for each choice, straight to the rank of its expert."""
    inside = across = 0
    for source, row in enumerate(sent):
        for rows, rank in zip(row, rank_of, strict=True):
            if rank // node != source // node:
                across += rows
            elif rank != source:
                inside += rows
    return Level(inside, across)


def _on(sent: list[list[int]], rank_of: Sequence[int], node: int) -> int:
    """What travels in nodes in the second step: a token has arrived at the rank with its own rank's place in the node,
    and its rows go on from there."""
    return sum(
        rows
        for source, row in enumerate(sent)
        for rows, rank in zip(row, rank_of, strict=True)
        if rank % node != source % node
    )
