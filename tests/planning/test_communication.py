"""What a collective sends, and the bandwidths by which it is judged."""

import pytest

from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError
from playbook.planning.communication import bus_bandwidth, bus_factor
from playbook_book.collective_costs import seconds
from playbook_book.collectives.network import Network


def test_bus_bandwidth_is_that_of_nccl_tests():
    """doc/PERFORMANCE.md of nccl-tests: the factors by which the algorithm bandwidth S/t is multiplied."""
    for n in (2, 3, 8, 100):
        assert bus_factor("all_reduce", n) == pytest.approx(2 * (n - 1) / n)
        for collective in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"):
            assert bus_factor(collective, n) == pytest.approx((n - 1) / n)
        assert bus_factor("broadcast", n) == bus_factor("reduce", n) == 1
    assert bus_bandwidth("all_reduce", 8, 1e9, 0.01) == pytest.approx(1.75e11)


@pytest.mark.parametrize(
    ("collective", "name"),
    [("all_reduce", "ring"), ("reduce_scatter", "ring"), ("all_gather", "ring"), ("all_to_all", "pairwise")],
)
def test_bus_bandwidth_of_a_long_vector_is_the_links_whatever_the_ranks(collective, name):
    flat = Network.uniform(AlphaBeta(1e-6, 1 / 100e9))
    for n in (2, 5, 8, 64):
        time = seconds(collective, 1 << 40, n, flat, name)
        assert bus_bandwidth(collective, n, 1 << 40, time) == pytest.approx(100e9, rel=1e-4)


def test_bad_requests_end_with_one_sentence():
    with pytest.raises(ConfigError, match="unknown collective with a bus bandwidth 'barrier'"):
        bus_factor("barrier", 4)
    with pytest.raises(ConfigError, match="seconds must be a number above 0, got 0"):
        bus_bandwidth("all_reduce", 4, 1, 0)
