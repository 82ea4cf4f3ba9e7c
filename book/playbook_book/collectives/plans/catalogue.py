"""Every collective and its algorithms by name, and ``plan``, which makes any of them. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from playbook._checks import check_int, unknown
from playbook.collectives import CollectiveError
from playbook_book.collectives.closed_forms import ALGORITHMS as NAMES
from playbook_book.collectives.plans import exchange, recursive, rings, rooted
from playbook_book.collectives.plans.messages import Message, Vector

#: The generator of each algorithm, by collective; the naive twin first.
ALGORITHMS: dict[str, dict[str, Callable[..., Iterator[Message]]]] = {
    "broadcast": {
        "naive": rooted.broadcast_naive,
        "binomial": rooted.broadcast_binomial,
        "scatter_all_gather": rings.broadcast_scatter_all_gather,
    },
    "reduce": {"naive": rooted.reduce_naive, "binomial": rooted.reduce_binomial},
    "gather": {"naive": rooted.gather_naive, "binomial": rooted.gather_binomial},
    "scatter": {"naive": rooted.scatter_naive, "binomial": rooted.scatter_binomial},
    "all_gather": {
        "naive": rings.all_gather_naive,
        "ring": rings.all_gather_ring,
        "recursive_doubling": recursive.all_gather_recursive_doubling,
    },
    "reduce_scatter": {
        "naive": rings.reduce_scatter_naive,
        "ring": rings.reduce_scatter_ring,
        "recursive_halving": recursive.reduce_scatter_recursive_halving,
    },
    "all_reduce": {
        "naive": rings.all_reduce_naive,
        "ring": rings.all_reduce_ring,
        "binomial": rings.all_reduce_binomial,
        "recursive_doubling": recursive.all_reduce_recursive_doubling,
        "halving_doubling": recursive.all_reduce_halving_doubling,
        "two_level": rings.all_reduce_two_level,
    },
    "all_to_all": {"naive": exchange.all_to_all_naive, "pairwise": exchange.all_to_all_pairwise},
    "barrier": {"naive": exchange.barrier_naive, "dissemination": exchange.barrier_dissemination},
}
#: The algorithm that a collective uses unless told otherwise.
DEFAULT = {collective: algorithms[0] for collective, algorithms in NAMES.items()}
#: Collectives that one rank has all of at the start or in the end.
ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True, eq=False)
class Plan:
    """The messages of one collective on ``ranks`` ranks, in the order of their steps; empty ones are left out.

    ``elements`` is the whole vector's: what every rank holds before a reduce-scatter or an all-to-all and after an
    all-gather, and what the root of a scatter or gather holds. Chunk i, the elements ``cuts[i]:cuts[i + 1]``, belongs
    to rank i.
    """

    collective: str
    algorithm: str
    ranks: int
    elements: int
    itemsize: int
    root: int
    messages: tuple[Message, ...]

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Where one rank's chunk ends and the next one's begins, from 0 to ``elements``."""
        return Vector.even(self.elements, self.ranks, self.itemsize).cuts

    @cached_property
    def steps(self) -> int:
        """Steps from the first to the last message."""
        return max((message.step + 1 for message in self.messages), default=0)

    @cached_property
    def _of_rank(self) -> list[list[list[Message]]]:
        by_rank: list[dict[int, list[Message]]] = [{} for _ in range(self.ranks)]
        for message in self.messages:
            for rank in (message.source, message.target):
                by_rank[rank].setdefault(message.step, []).append(message)
        return [list(steps.values()) for steps in by_rank]

    def of_rank(self, rank: int) -> list[list[Message]]:
        """What one rank sends and receives, step by step; steps at which it does neither are left out."""
        return self._of_rank[rank]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that one rank sends."""
        return sum(message.bytes for message in self.messages if message.source == rank)

    def bytes_received(self, rank: int) -> int:
        """Bytes that one rank receives."""
        return sum(message.bytes for message in self.messages if message.target == rank)


@lru_cache(maxsize=512)
def plan(
    collective: str,
    algorithm: str | None = None,
    *,
    ranks: int,
    elements: int = 0,
    itemsize: int = 1,
    root: int = 0,
    ranks_per_node: int | None = None,
) -> Plan:
    """The plan of a collective by its name (``ALGORITHMS``; the algorithm of ``DEFAULT`` if none is given).

    ``elements`` of ``itemsize`` bytes are cut into one chunk per rank; ``ranks_per_node`` is for "two_level" alone.
    Raises :class:`CollectiveError` for an unknown name, a size below its least value, and a root outside the group.
    """
    if collective not in ALGORITHMS:
        raise CollectiveError(unknown("collective", collective, ALGORITHMS))
    algorithm = algorithm or DEFAULT[collective]
    if algorithm not in ALGORITHMS[collective]:
        raise CollectiveError(unknown(f"algorithm of {collective}", algorithm, ALGORITHMS[collective]))
    for label, value, least in (("ranks", ranks, 1), ("elements", elements, 0), ("itemsize", itemsize, 1)):
        check_int(label, value, CollectiveError, least=least)
    if check_int("root", root, CollectiveError, least=0) >= ranks:
        raise CollectiveError(f"root must be a rank of the group, 0 to {ranks - 1}, got {root}")
    if collective == "barrier":
        elements, itemsize = 2, 1  # a byte to send and a byte to receive
    options: dict[str, Any] = {"root": root} if collective in ROOTED else {}
    if algorithm == "two_level":
        options["ranks_per_node"] = check_int("ranks_per_node", ranks_per_node or ranks, CollectiveError)
    elif ranks_per_node is not None:
        raise CollectiveError(f"ranks_per_node is for the algorithm two_level, not for {algorithm}")
    messages = ALGORITHMS[collective][algorithm](Vector.even(elements, ranks, itemsize), **options)
    sent = tuple(message for message in messages if message.bytes)
    return Plan(collective, algorithm, ranks, elements, itemsize, root, sent)
