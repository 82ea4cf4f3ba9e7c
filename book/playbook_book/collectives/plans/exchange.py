"""All-to-all, in which every rank has something for every other; and barrier, in which nobody has anything to say.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from playbook_book.collectives.plans.messages import Message, Vector, in_turn
from playbook_book.collectives.plans.rooted import tree_depth


def all_to_all_naive(v: Vector) -> Iterator[Message]:
    """All to one, N times: at step t every rank sends rank t its chunk; they queue at one door, others stay idle.

    N steps; every rank sends (N − 1)/N·K [rank r: K − c[r]], as in :func:`all_to_all_pairwise`; only the order is bad.
    """
    for target in range(v.ranks):
        for source in range(v.ranks):
            if source != target:
                yield _deliver(v, target, source, target)


def all_to_all_pairwise(v: Vector) -> Iterator[Message]:
    """At step d every rank sends to the one d + 1 to its right, and receives from the one d + 1 to its left.

    N − 1 steps; every rank sends (N − 1)/N·K [rank r: K − c[r]], and no two ranks send to the same one at once. Thakur,
    Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", section 4.6.
    """
    for step in range(v.ranks - 1):
        for source in range(v.ranks):
            yield _deliver(v, step, source, (source + step + 1) % v.ranks)


def _deliver(v: Vector, step: int, source: int, target: int) -> Message:
    """Chunk ``target`` of the source's vector, to the place ``source`` of the target's result."""
    message = v.send(step, source, target, target, target + 1)
    return message._replace(into=source * v.size(target))


def barrier_naive(v: Vector) -> Iterator[Message]:
    """All to one, one to all: one byte from each rank to rank 0, and when it has all of them, one byte back.

    2(N − 1) steps; rank 0 sends N − 1 bytes, the others one.
    """
    others = range(1, v.ranks)
    return in_turn(
        (_token(rank - 1, rank, 0) for rank in others), (_token(rank - 1, 0, rank) for rank in others)
    )


def barrier_dissemination(v: Vector) -> Iterator[Message]:
    """After step k every rank has heard, at first or second hand, of the 2^(k + 1) − 1 ranks to its left.

    ⌈log2 N⌉ steps; every rank sends ⌈log2 N⌉ bytes. Hensgen, Finkel and Manber 1988, "Two algorithms for barrier
    synchronization", section 3.
    """
    for step in range(tree_depth(v.ranks)):
        for rank in range(v.ranks):
            yield _token(step, rank, (rank + (1 << step)) % v.ranks)


def _token(step: int, source: int, target: int) -> Message:
    """One byte that says "I am here": sent from the first place of a two-byte vector, received in the second."""
    return Message(step, source, target, start=0, stop=1, into=1, bytes=1, reduce=False)
