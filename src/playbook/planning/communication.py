"""What a collective sends, and the bandwidths by which it is judged. Standard library only."""

from __future__ import annotations

from playbook._checks import check_int, check_positive, unknown
from playbook.errors import ConfigError


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth: the bytes per byte of K that some rank's link must carry in any
    algorithm.

    As nccl-tests define it (doc/PERFORMANCE.md and the source of each test): 2(N − 1)/N of an all-reduce; (N − 1)/N
    of a reduce-scatter, all-gather, all-to-all, gather and scatter; 1 of a broadcast and a reduce.
    """
    n = check_int("ranks", ranks, ConfigError)
    factors = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"), (n - 1) / n)
    if collective not in factors:
        raise ConfigError(unknown("collective with a bus bandwidth", collective, factors))
    return factors[collective]


def bus_bandwidth(collective: str, ranks: int, bytes: float, seconds: float) -> float:
    """Bytes/s to hold against what a link can carry, whatever the number of ranks: K/t · :func:`bus_factor`."""
    check_positive("seconds", seconds, ConfigError)
    return bytes / seconds * bus_factor(collective, ranks)


def ring_bytes_sent(
    collective: str, elements: int, itemsize: int, ranks: int, rank: int, root: int = 0
) -> int:
    """Bytes that one rank sends around a ring, exactly, whether K divides by the ranks or not.

    All-reduce, reduce-scatter and all-gather as their ring plans. Broadcast and reduce go along a chain that starts or
    ends at the root, gather, scatter and all-to-all straight to where each chunk belongs.
    """
    least, more = divmod(elements, ranks)  # as evenly as it goes: the first chunks have one element more
    own, following = (least + (chunk < more) for chunk in (rank, (rank + 1) % ranks))
    last = (root - 1) % ranks
    sent = {
        "all_reduce": 2 * elements - own - following if ranks > 1 else 0,
        "reduce_scatter": elements - own,
        "all_gather": elements - following,
        "all_to_all": elements - own,
        "broadcast": elements if ranks > 1 and rank != last else 0,
        "reduce": elements if rank != root else 0,
        "gather": own if rank != root else 0,
        "scatter": elements - own if rank == root else 0,
        "barrier": 0,
        "send": elements,
        "recv": 0,
    }
    return sent[collective] * itemsize
