"""Reduce-scatter, all-gather and all-reduce around a ring, and their naive twins through one rank.

Around a ring every rank sends to its right neighbour and receives from its left one at every step, so that all links
are busy all the time and none carries more than it must: a ring moves the fewest bytes that any algorithm can
(Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3), at the
price of a number of steps that grows with N. K is the bytes of the whole vector, N the ranks. Where K does not
divide, a rank sends what the formulas in brackets say, c[i] being the bytes of chunk i. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from playbook.collectives import CollectiveError
from playbook_book.collectives.plans.messages import Message, Vector, at_once, in_turn
from playbook_book.collectives.plans.rooted import (
    broadcast_binomial,
    broadcast_naive,
    gather_naive,
    reduce_binomial,
    reduce_naive,
    scatter_binomial,
    scatter_naive,
)


def reduce_scatter_naive(v: Vector) -> Iterator[Message]:
    """All to one, one to all: rank 0 sums up everything, then hands out the chunks. 2(N − 1) steps.

    Rank 0 sends (N − 1)·K/N and receives (N − 1)·K; the others send K each.
    """
    return in_turn(reduce_naive(v), scatter_naive(v))


def all_gather_naive(v: Vector) -> Iterator[Message]:
    """All to one, one to all: rank 0 collects the chunks, then sends the whole vector to each. 2(N − 1) steps.

    Rank 0 sends (N − 1)·K; the others send K/N each.
    """
    return in_turn(gather_naive(v), broadcast_naive(v))


def all_reduce_naive(v: Vector) -> Iterator[Message]:
    """All to one, one to all: a parameter server. 2(N − 1) steps, all of them through rank 0.

    Rank 0 sends and receives (N − 1)·K; the others send and receive K each.
    """
    return in_turn(reduce_naive(v), broadcast_naive(v))


def reduce_scatter_ring(v: Vector) -> Iterator[Message]:
    """Chunk i starts at rank i + 1 and travels once around, growing by each rank's share, until it ends at rank i.

    N − 1 steps; every rank sends (N − 1)·K/N [rank r: K − c[r]].
    """
    n = v.ranks
    for step in range(n - 1):
        for rank in range(n):
            chunk = (rank - 1 - step) % n
            yield v.send(step, rank, (rank + 1) % n, chunk, chunk + 1, reduce=True)


def all_gather_ring(v: Vector) -> Iterator[Message]:
    """Every chunk travels once around; each rank keeps a copy and passes it on.

    N − 1 steps; every rank sends (N − 1)·K/N [rank r: K − c[r + 1]].
    """
    n = v.ranks
    for step in range(n - 1):
        for rank in range(n):
            chunk = (rank - step) % n
            yield v.send(step, rank, (rank + 1) % n, chunk, chunk + 1)


def all_reduce_ring(v: Vector) -> Iterator[Message]:
    """Once around to sum (:func:`reduce_scatter_ring`), once around to copy (:func:`all_gather_ring`).

    2(N − 1) steps; every rank sends 2(N − 1)/N·K [rank r: 2K − c[r] − c[r + 1]].
    """
    return in_turn(reduce_scatter_ring(v), all_gather_ring(v))


def all_reduce_binomial(v: Vector) -> Iterator[Message]:
    """Up a binomial tree to sum, down the same tree to copy: 2⌈log2 N⌉ steps.

    In all, 2(N − 1) messages of K bytes; the root sends ⌈log2 N⌉·K, a leaf K.
    """
    return in_turn(reduce_binomial(v), broadcast_binomial(v))


def broadcast_scatter_all_gather(v: Vector, root: int = 0) -> Iterator[Message]:
    """Scatter down a tree, then all-gather around a ring: broadcast for long vectors. ⌈log2 N⌉ + N − 1 steps.

    The root sends 2(N − 1)/N·K. Thakur, Rabenseifner and Gropp 2005, section 4.4, after van de Geijn.
    """
    return in_turn(scatter_binomial(v, root), all_gather_ring(v))


def all_reduce_two_level(v: Vector, ranks_per_node: int) -> Iterator[Message]:
    """Ring reduce-scatter inside each node, ring all-reduce of each chunk across the nodes, ring all-gather inside.

    g ranks in each of M nodes: 2(g − 1) + 2(M − 1) steps; every rank sends 2(g − 1)/g·K inside its node and
    2(M − 1)/M·K/g to other nodes, over its own adapter. Raises :class:`CollectiveError` unless g divides N.
    """
    g, nodes = ranks_per_node, v.ranks // ranks_per_node
    if g * nodes != v.ranks:
        raise CollectiveError(f"ranks_per_node must divide the {v.ranks} ranks of the group, got {g}")
    # One chunk for each local index, itself cut into one chunk for each node.
    inside = [
        Vector(v.cuts[::nodes], v.itemsize, v.members[node * g : (node + 1) * g]) for node in range(nodes)
    ]
    across = [
        Vector(v.cuts[local * nodes : (local + 1) * nodes + 1], v.itemsize, v.members[local::g])
        for local in range(g)
    ]
    return in_turn(
        at_once(*map(reduce_scatter_ring, inside)),
        at_once(*map(all_reduce_ring, across)),
        at_once(*map(all_gather_ring, inside)),
    )
