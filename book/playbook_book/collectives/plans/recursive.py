"""Recursive doubling and halving: partners at distance 1, 2, 4 … exchange, and all is done in log2 N steps.

Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", sections 4.2, 4.3
and 4.5. Partners pair up without rest only among a power of two, P ≤ N ranks. With others, E = N − P of them are
folded away first: ranks 0 … 2E − 1 form pairs, the even one hands its part to the odd one, sits out, and gets the
result back at the end. K is the bytes of the whole vector. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from playbook_book.collectives.plans.messages import Message, Vector, in_turn


def all_reduce_recursive_doubling(v: Vector) -> Iterator[Message]:
    """Partners exchange and add their whole vectors: fewest steps, most bytes; for short vectors.

    log2 P steps, each rank sending log2 P·K. With E > 0 two steps more: a rank that is folded away sends K, its
    partner (log2 P + 1)·K. Partners add the same two numbers, so that all ranks end with the same bits.
    """
    power, extra = _fold(v.ranks)
    return in_turn(
        (v.send(0, 2 * i, 2 * i + 1, reduce=True) for i in range(extra)),
        _exchange_whole(v, power, extra),
        (v.send(0, 2 * i + 1, 2 * i) for i in range(extra)),
    )


def reduce_scatter_recursive_halving(v: Vector) -> Iterator[Message]:
    """Partners share the work: each sends the half that the other is to sum up, then halves what is left.

    log2 P steps, each rank sending (N − 1)/N·K where N = P. With E > 0 two steps more: a rank that is folded away
    sends K, its partner sends its chunk back.
    """
    power, extra = _fold(v.ranks)
    return in_turn(
        (v.send(0, 2 * i, 2 * i + 1, reduce=True) for i in range(extra)),
        _halve(v, power, extra),
        (v.send(0, 2 * i + 1, 2 * i, 2 * i, 2 * i + 1) for i in range(extra)),
    )


def all_gather_recursive_doubling(v: Vector) -> Iterator[Message]:
    """Halving backwards: partners exchange all the chunks that they have, 1, 2, 4 … of them.

    log2 P steps, each rank sending (N − 1)/N·K where N = P. With E > 0 two steps more: a rank that is folded away
    sends its chunk, and receives K from its partner.
    """
    power, extra = _fold(v.ranks)
    return in_turn(
        (v.send(0, 2 * i, 2 * i + 1, 2 * i, 2 * i + 1) for i in range(extra)),
        _double(v, power, extra),
        (v.send(0, 2 * i + 1, 2 * i) for i in range(extra)),
    )


def all_reduce_halving_doubling(v: Vector) -> Iterator[Message]:
    """Reduce-scatter by halving, all-gather by doubling (Rabenseifner): the bytes of a ring in 2·log2 P steps.

    Each rank sends 2(N − 1)/N·K where N = P. With E > 0 two steps more: a rank that is folded away sends K, and
    receives K.
    """
    power, extra = _fold(v.ranks)
    return in_turn(
        (v.send(0, 2 * i, 2 * i + 1, reduce=True) for i in range(extra)),
        _halve(v, power, extra),
        _double(v, power, extra),
        (v.send(0, 2 * i + 1, 2 * i) for i in range(extra)),
    )


def _fold(ranks: int) -> tuple[int, int]:
    """P, the largest power of two that is not above ``ranks``, and E, how many ranks are folded away."""
    power = 1 << (ranks.bit_length() - 1)
    return power, ranks - power


def _active(place: int, extra: int) -> int:
    """The rank at a place among the P that take part: the odd one of a pair, then those without a pair."""
    return 2 * place + 1 if place < extra else place + extra


def _first(place: int, extra: int) -> int:
    """The first chunk that a place is responsible for: two chunks for a pair, then one each."""
    return place + min(place, extra)


def _exchange_whole(v: Vector, power: int, extra: int) -> Iterator[Message]:
    for step in range(power.bit_length() - 1):
        for place in range(power):
            partner = place ^ (1 << step)
            yield v.send(step, _active(place, extra), _active(partner, extra), reduce=True)


def _halve(v: Vector, power: int, extra: int) -> Iterator[Message]:
    """Distance P/2, P/4 … 1: each place sends the chunks of the half in which its partner is."""
    for step in range(power.bit_length() - 1):
        distance = power >> (step + 1)
        for place in range(power):
            partner = place ^ distance
            half = partner - partner % distance
            chunks = _first(half, extra), _first(half + distance, extra)
            yield v.send(step, _active(place, extra), _active(partner, extra), *chunks, reduce=True)


def _double(v: Vector, power: int, extra: int) -> Iterator[Message]:
    """Distance 1, 2 … P/2: each place sends the chunks of the half in which it is itself."""
    for step in range(power.bit_length() - 1):
        distance = 1 << step
        for place in range(power):
            half = place - place % distance
            chunks = _first(half, extra), _first(half + distance, extra)
            yield v.send(step, _active(place, extra), _active(place ^ distance, extra), *chunks)
