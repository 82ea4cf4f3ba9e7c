"""Broadcast, reduce, gather and scatter: one rank, the root, has it all at the start or in the end.

Each comes as the naive twin, in which the root talks to the others one after the other, and as a binomial tree, in
which every rank that has something helps: ⌈log2 N⌉ steps instead of N − 1. K is the bytes of the whole vector, N the
ranks. The trees are those of Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", sections 4.1 and 4.4. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from playbook_book.collectives.plans.messages import Message, Vector


def broadcast_naive(v: Vector, root: int = 0) -> Iterator[Message]:
    """The root sends the whole vector to every other rank in turn: N − 1 steps.

    The root sends (N − 1)·K, the others nothing.
    """
    for step in range(v.ranks - 1):
        yield v.send(step, root, (root + 1 + step) % v.ranks)


def reduce_naive(v: Vector, root: int = 0) -> Iterator[Message]:
    """Every other rank sends its whole vector to the root, one after the other: N − 1 steps.

    Each sends K, the root nothing.
    """
    for step in range(v.ranks - 1):
        yield v.send(step, (root + 1 + step) % v.ranks, root, reduce=True)


def gather_naive(v: Vector, root: int = 0) -> Iterator[Message]:
    """Every other rank sends its chunk to the root, one after the other: N − 1 steps.

    Each sends K/N, the root nothing.
    """
    for step in range(v.ranks - 1):
        rank = (root + 1 + step) % v.ranks
        yield v.send(step, rank, root, rank, rank + 1)


def scatter_naive(v: Vector, root: int = 0) -> Iterator[Message]:
    """The root sends every other rank its chunk in turn: N − 1 steps; it sends (N − 1)·K/N, the others nothing."""
    for step in range(v.ranks - 1):
        rank = (root + 1 + step) % v.ranks
        yield v.send(step, root, rank, rank, rank + 1)


def broadcast_binomial(v: Vector, root: int = 0) -> Iterator[Message]:
    """Whoever has the vector passes it on: 1, 2, 4 … ranks have it after each of ⌈log2 N⌉ steps.

    The root sends ⌈log2 N⌉·K. In all, N − 1 messages of K bytes: each rank receives the vector once.
    """
    for step, parent, child, _ in _tree(v.ranks):
        yield v.send(step, _rank(v, root, parent), _rank(v, root, child))


def reduce_binomial(v: Vector, root: int = 0) -> Iterator[Message]:
    """The tree of :func:`broadcast_binomial` backwards: ⌈log2 N⌉ steps, in which half of the sums go into the others.

    Every rank but the root sends K, once.
    """
    for step, parent, child, _ in _backwards(v.ranks):
        yield v.send(step, _rank(v, root, child), _rank(v, root, parent), reduce=True)


def scatter_binomial(v: Vector, root: int = 0) -> Iterator[Message]:
    """Each rank keeps the nearer half of the chunks that it has and passes the farther half on: ⌈log2 N⌉ steps.

    The root sends (N − 1)·K/N, a rank with s chunks in its subtree (s − 1)·K/N. A subtree that runs over the end of
    the vector (a root other than 0) takes two messages.
    """
    for step, parent, child, size in _tree(v.ranks):
        for first, last in _subtree(v, root, child, size):
            yield v.send(step, _rank(v, root, parent), _rank(v, root, child), first, last)


def gather_binomial(v: Vector, root: int = 0) -> Iterator[Message]:
    """:func:`scatter_binomial` backwards: ⌈log2 N⌉ steps.

    A rank with s chunks in its subtree sends s·K/N, the root nothing.
    """
    for step, parent, child, size in _backwards(v.ranks):
        for first, last in _subtree(v, root, child, size):
            yield v.send(step, _rank(v, root, child), _rank(v, root, parent), first, last)


def tree_depth(ranks: int) -> int:
    """Steps that a binomial tree needs to reach ``ranks`` ranks: ⌈log2 N⌉."""
    return (ranks - 1).bit_length()


def _tree(ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """(step, parent, child, size of the child's subtree), ranks counted from the root: far children first."""
    for step in range(tree_depth(ranks)):
        distance = 1 << (tree_depth(ranks) - 1 - step)
        for parent in range(0, ranks - distance, 2 * distance):
            child = parent + distance
            yield step, parent, child, min(distance, ranks - child)


def _backwards(ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """The tree from its leaves to its root."""
    for step, *edge in reversed(list(_tree(ranks))):
        yield tree_depth(ranks) - 1 - step, *edge  # type: ignore[misc]


def _rank(v: Vector, root: int, place: int) -> int:
    """The rank at a place counted from the root."""
    return (root + place) % v.ranks


def _subtree(v: Vector, root: int, child: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of the chunks that belong to a child and those below it: two where they run over the vector's end."""
    first = _rank(v, root, child)
    yield first, min(first + size, v.ranks)
    if first + size > v.ranks:
        yield 0, first + size - v.ranks
