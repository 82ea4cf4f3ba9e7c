"""What the busiest rank of a collective sends, as a formula. Standard library only.

K is the bytes of the whole vector, N the ranks. Where N is not a power of two, P is the largest one below it; "two_level"
has g ranks in each of M nodes. The docstring of each plan in ``collectives.plans`` derives its formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Volume:
    """A formula as text, and the bytes that it comes to: whole ones where the ranks divide K."""

    text: str
    bytes: Fraction


def busiest_rank_sends(
    collective: str, algorithm: str, ranks: int, bytes: int, ranks_per_node: int | None = None
) -> Volume | None:
    """The formula of one algorithm of ``plans.ALGORITHMS`` for at least two ranks, the root being any of them.

    None where there is no simple one: two algorithms among a number of ranks that is not a power of two.
    """
    if collective == "barrier":  # counts bytes, whatever K is
        steps = (ranks - 1).bit_length()
        text, count = ("N − 1 bytes", ranks - 1) if algorithm == "naive" else ("⌈log₂ N⌉ bytes", steps)
        return Volume(text, Fraction(count))
    found = _FORMULAS[collective, algorithm](ranks, min(ranks_per_node or ranks, ranks))
    return found and Volume(found[0], found[1] * bytes)


#: A formula as text and its value over K.
_Share = tuple[str, Fraction]


def _of_all(n: int, g: int) -> _Share:
    return "(N − 1)/N · K", Fraction(n - 1, n)


def _twice_of_all(n: int, g: int) -> _Share:
    return "2(N − 1)/N · K", Fraction(2 * (n - 1), n)


def _to_each(n: int, g: int) -> _Share:
    return "(N − 1) · K", Fraction(n - 1)


def _once(n: int, g: int) -> _Share:
    return "K", Fraction(1)


def _chunk(n: int, g: int) -> _Share:
    return "K/N", Fraction(1, n)


def _each_step(n: int, g: int) -> _Share:
    return "⌈log₂ N⌉ · K", Fraction((n - 1).bit_length())


def _largest_subtree(n: int, g: int) -> _Share:
    """The root's first two children have the largest subtrees: N − P and P/2 chunks, P being below N."""
    power = 1 << (n - 1).bit_length() - 1
    if power * 2 == n:
        return "K/2", Fraction(1, 2)
    return "max(N − P, P/2)/N · K", Fraction(max(n - power, power // 2), n)


def _folded_sends_all(n: int, g: int) -> _Share:
    """Recursive halving: a rank that is folded away sends all that it has."""
    return _of_all(n, g) if _is_power(n) else _once(n, g)


def _whole_each_step(n: int, g: int) -> _Share:
    """Recursive doubling of whole vectors; the partner of a rank that is folded away sends once more."""
    steps = n.bit_length() - 1
    return ("log₂ N · K", Fraction(steps)) if _is_power(n) else ("(log₂ P + 1) · K", Fraction(steps + 1))


def _two_level(n: int, g: int) -> _Share:
    nodes = n // g
    inside, across = Fraction(2 * (g - 1), g), Fraction(2 * (nodes - 1), nodes * g)
    return "2(g − 1)/g · K + 2(M − 1)/M · K/g", inside + across


def _of_a_power(formula: Callable[[int, int], _Share]) -> Callable[[int, int], _Share | None]:
    return lambda n, g: formula(n, g) if _is_power(n) else None


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


_FORMULAS: dict[tuple[str, str], Callable[[int, int], _Share | None]] = {
    ("broadcast", "naive"): _to_each,
    ("broadcast", "binomial"): _each_step,
    ("broadcast", "scatter_all_gather"): _twice_of_all,
    ("reduce", "naive"): _once,
    ("reduce", "binomial"): _once,
    ("gather", "naive"): _chunk,
    ("gather", "binomial"): _largest_subtree,
    ("scatter", "naive"): _of_all,
    ("scatter", "binomial"): _of_all,
    ("all_gather", "naive"): _to_each,
    ("all_gather", "ring"): _of_all,
    ("all_gather", "recursive_doubling"): _of_a_power(_of_all),
    ("reduce_scatter", "naive"): _once,
    ("reduce_scatter", "ring"): _of_all,
    ("reduce_scatter", "recursive_halving"): _folded_sends_all,
    ("all_reduce", "naive"): _to_each,
    ("all_reduce", "ring"): _twice_of_all,
    ("all_reduce", "binomial"): _each_step,
    ("all_reduce", "recursive_doubling"): _whole_each_step,
    ("all_reduce", "halving_doubling"): _of_a_power(_twice_of_all),
    ("all_reduce", "two_level"): _two_level,
    ("all_to_all", "naive"): _of_all,
    ("all_to_all", "pairwise"): _of_all,
}
