"""What the algorithms of collectives cost on a network of α–β links: closed forms.

The model is that in which Thakur, Rabenseifner and Gropp 2005 ("Optimization of Collective Communication Operations
in MPICH", section 3) compare collectives: a rank sends one message and receives one message at a time, both at once;
a message of n bytes takes α + β·n and begins when both ends are ready for it. The cost of adding numbers up is left
out. Between nodes, most of α keeps nobody busy: what counts is how often the longest chain of messages that wait for one
another crosses from node to node. For rings that is counted as NCCL's tuner does it (src/graph/tuning.cc).

There are two ways to a time, and they agree (tests): :func:`closed_form` counts what is on the critical path, a
simulation sends the messages of a plan one by one. K is the bytes of the whole vector, as nccl-tests count it: of what
every rank holds after an all-gather, and before a reduce-scatter or an all-to-all. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from playbook._checks import check_int, unknown
from playbook.errors import ConfigError
from playbook_book.collectives.network import Network

#: Algorithms by collective, the one first that it uses unless told otherwise.
ALGORITHMS = {
    "broadcast": ("binomial", "naive", "scatter_all_gather"),
    "reduce": ("binomial", "naive"),
    "gather": ("binomial", "naive"),
    "scatter": ("binomial", "naive"),
    "all_gather": ("ring", "naive", "recursive_doubling"),
    "reduce_scatter": ("ring", "naive", "recursive_halving"),
    "all_reduce": ("ring", "naive", "binomial", "recursive_doubling", "halving_doubling", "two_level"),
    "all_to_all": ("pairwise", "naive"),
    "barrier": ("dissemination", "naive"),
}


@dataclass(frozen=True)
class Cost:
    """What is on the critical path: messages inside nodes and between them, and how much of K each kind carries.

    ``inter_volume`` goes through one adapter, ``rail_volume`` through all those of a node side by side.
    """

    messages: int = 0
    volume: Fraction = Fraction(0)
    inter_messages: int = 0
    inter_volume: Fraction = Fraction(0)
    rail_volume: Fraction = Fraction(0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.messages + other.messages,
            self.volume + other.volume,
            self.inter_messages + other.inter_messages,
            self.inter_volume + other.inter_volume,
            self.rail_volume + other.rail_volume,
        )

    def time(self, bytes: float, network: Network) -> float:
        """Seconds for a vector of so many bytes."""
        return self.latency(network) + self.per_byte(network) * bytes

    def latency(self, network: Network) -> float:
        """Seconds for a vector of next to nothing."""
        return self.messages * network.intra.alpha + self.inter_messages * network.inter.alpha

    def per_byte(self, network: Network) -> float:
        """Seconds that each byte of the vector adds."""
        parts = (
            (self.volume, network.intra),
            (self.inter_volume, network.inter),
            (self.rail_volume, network.rails),
        )
        return sum(float(volume) * link.beta for volume, link in parts)


def closed_form(collective: str, algorithm: str | None, ranks: int, network: Network) -> Cost | None:
    """The cost of a collective from rank 0, for a K that divides by the ranks; None where there is no simple formula.

    One formula for each of ``ALGORITHMS``. The recursive ones need a power of two; across nodes, so do trees. A ring
    across nodes needs links between them that are slower in both α and β.
    """
    algorithm = algorithm_of(collective, algorithm)
    n, g = check_int("ranks", ranks, ConfigError), min(ranks, network.ranks_per_node)
    if algorithm == "two_level":
        return _two_level(g, n // g) if n % g == 0 else None
    if (collective, algorithm) in _RINGS:
        return _ring(_RINGS[collective, algorithm], n, network)
    if algorithm == "naive":
        return _naive(collective, n, g) if n == g or not network.inter.flight else None
    depth = _depths(n, g)
    if depth is None or not (_is_power(n) or (collective, algorithm) in _ANY_NUMBER):
        return _folded(n, g) if (collective, algorithm) == ("all_reduce", "recursive_doubling") else None
    return _logarithmic(collective, algorithm, n, g, *depth)


#: Rounds that each ring algorithm makes, a round being N − 1 steps of K/N.
_RINGS = {("reduce_scatter", "ring"): 1, ("all_gather", "ring"): 1, ("all_reduce", "ring"): 2}
#: Logarithmic algorithms whose formula holds for every number of ranks inside one node.
_ANY_NUMBER = {
    *((collective, "binomial") for collective in ("broadcast", "reduce", "gather", "scatter", "all_reduce")),
    ("barrier", "dissemination"),
    ("all_to_all", "pairwise"),
}


def algorithm_of(collective: str, algorithm: str | None) -> str:
    """``algorithm``, or the one that a collective uses unless told otherwise; ConfigError for unknown names."""
    if collective not in ALGORITHMS:
        raise ConfigError(unknown("collective", collective, ALGORITHMS))
    algorithm = algorithm or ALGORITHMS[collective][0]
    if algorithm not in ALGORITHMS[collective]:
        raise ConfigError(unknown(f"algorithm of {collective}", algorithm, ALGORITHMS[collective]))
    return algorithm


def _ring(rounds: int, n: int, network: Network) -> Cost | None:
    steps, volume = rounds * (n - 1), Fraction(rounds * (n - 1), n)
    if n <= network.ranks_per_node:
        return Cost(steps, volume)
    if network.inter.alpha < network.intra.alpha or network.inter.beta < network.intra.beta:
        return None
    crossings = rounds * (-(-n // network.ranks_per_node) - 1)
    return Cost(steps - crossings, inter_messages=crossings, rail_volume=volume)


def _naive(collective: str, n: int, g: int) -> Cost | None:
    """Rank 0 talks to g − 1 ranks of its node and N − g others, one after the other."""

    def through_root(volume: Fraction) -> Cost:
        return Cost(g - 1, (g - 1) * volume, n - g, (n - g) * volume)

    whole, chunk, token = through_root(Fraction(1)), through_root(Fraction(1, n)), through_root(Fraction(0))
    costs = {
        "broadcast": whole,
        "reduce": whole,
        "gather": chunk,
        "scatter": chunk,
        "all_gather": chunk + whole,
        "reduce_scatter": whole + chunk,
        "all_reduce": whole + whole,
        "barrier": token + token,
    }
    return costs.get(collective)


def _logarithmic(collective: str, algorithm: str, n: int, g: int, inside: int, across: int) -> Cost | None:
    whole = Cost(inside, Fraction(inside), across, Fraction(across))  # K in each step
    share = Cost(inside, Fraction(g - 1, n), across, Fraction(n - g, n))  # a chunk, two, four …
    if collective in ("barrier", "all_to_all") or algorithm == "scatter_all_gather":
        if across:
            return None  # some messages of a step cross nodes and some do not: simulate
        rounds = Fraction(n - 1, n)
        ring, empty = Cost(n - 1, rounds), Cost(inside)
        return {"barrier": empty, "all_to_all": ring, "broadcast": share + ring}[collective]
    costs = {
        "broadcast": whole, "reduce": whole, "gather": share, "scatter": share, "all_gather": share,
        "reduce_scatter": share,
    }  # fmt: skip
    if collective != "all_reduce":
        return costs[collective]
    return {"binomial": whole + whole, "recursive_doubling": whole, "halving_doubling": share + share}[
        algorithm
    ]


def _two_level(g: int, nodes: int) -> Cost:
    return Cost(2 * (g - 1), Fraction(2 * (g - 1), g), 2 * (nodes - 1), Fraction(2 * (nodes - 1), nodes * g))


def _folded(n: int, g: int) -> Cost | None:
    """Recursive doubling among the largest power of two, one step before it and one after."""
    steps = n.bit_length() - 1 + 2
    return Cost(steps, Fraction(steps)) if n == g else None


def _depths(n: int, g: int) -> tuple[int, int] | None:
    """Steps of a tree inside a node and across nodes; None where a tree would not follow the nodes."""
    if n == g:
        return (n - 1).bit_length(), 0
    if not (_is_power(n) and _is_power(g)):
        return None
    return g.bit_length() - 1, (n // g).bit_length() - 1


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0
