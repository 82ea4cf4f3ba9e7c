"""The cost of talking: closed forms against messages sent one by one, bandwidths, fits, and what others have measured."""

import math
import random
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.collectives.links import AlphaBeta, Sample, errors, fit, ring
from playbook.errors import ConfigError
from playbook.hardware import CLUSTERS, load
from playbook_book.collective_costs import crossover, latency, seconds, simulate
from playbook_book.collectives.closed_forms import closed_form
from playbook_book.collectives.network import Network
from playbook_book.collectives.plans import ALGORITHMS, plan

ALL = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]
NVLINK, NETWORK = AlphaBeta(3e-6, 1 / 400e9), AlphaBeta(14e-6, 1 / 50e9)
NODES_OF_4 = Network(NVLINK, NETWORK, ranks_per_node=4)


def message_by_message(collective: str, name: str, ranks: int, bytes: int, network: Network) -> float:
    per_node = min(ranks, network.ranks_per_node) if name == "two_level" else None
    p = plan(collective, name, ranks=ranks, elements=bytes, ranks_per_node=per_node)
    return simulate(p, network).seconds


# ---- closed forms


@pytest.mark.parametrize(("collective", "name"), ALL)
def test_closed_forms_are_what_messages_take_one_by_one(collective, name):
    networks = [
        Network.uniform(NVLINK),
        NODES_OF_4,
        Network(AlphaBeta(1e-6, 0), AlphaBeta(5e-6, 1e-9), ranks_per_node=2),
        Network(AlphaBeta(0, 1e-9), AlphaBeta(0, 3e-9), ranks_per_node=8),
        Network(AlphaBeta(1e-6, 0), AlphaBeta(5e-6, 0), ranks_per_node=8),
    ]
    compared = 0
    for network in networks:
        for ranks in range(1, 33):
            cost = closed_form(collective, name, ranks, network)
            if cost is None or cost.rail_volume:  # rings across nodes: the next test
                continue
            for chunk in (1, 1000):
                k = ranks * chunk
                if collective == "barrier" and (network.intra.beta or network.inter.beta):
                    continue  # its messages carry a byte, which the formula takes for nothing
                expected = message_by_message(collective, name, ranks, k, network)
                assert cost.time(k, network) == pytest.approx(expected), (ranks, network)
                compared += 1
    assert compared >= 2 * 8 or (collective, name) == ("all_to_all", "naive")


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_measured_links_count_a_ring_as_its_closed_form_does(collective):
    for ranks in range(2, 65):
        cost = closed_form(collective, None, ranks, Network.uniform(NVLINK))
        assert ring(collective, ranks) == (cost.messages, float(cost.volume))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    st.integers(2, 6), st.integers(1, 8), st.integers(0, 7), st.sampled_from([0, 10, 10**4, 10**7]),
    st.sampled_from(list(CLUSTERS)),
)  # fmt: skip
def test_a_ring_across_nodes_is_counted_as_nccl_does_and_simulated_to_within_its_rounding(
    collective, nodes, per_node, missing, chunk, cluster
):
    """NCCL's tuner adds the latency of the longest chain to what the bytes take, as if neither hid behind the other, and
    counts one crossing less for each round than the chain can have. The last node need not be full."""
    network = Network.of(load(cluster), per_node)
    ranks, rounds = nodes * per_node - missing % per_node, 2 if collective == "all_reduce" else 1
    cost = closed_form(collective, "ring", ranks, network)
    assert cost is not None
    assert (cost.messages + cost.inter_messages, cost.inter_messages) == (
        rounds * (ranks - 1),
        rounds * (nodes - 1),
    )
    sent = message_by_message(collective, "ring", ranks, ranks * chunk, network)
    counted, slack = cost.time(ranks * chunk, network), rounds * (network.inter.alpha - network.intra.alpha)
    # One after the other at most; and no less than the slower of the two alone, in which the other is hidden.
    assert sent <= (counted + slack) * (1 + 1e-9)
    assert sent >= max(cost.latency(network), counted - cost.latency(network)) * (1 - 1e-9) or chunk == 0


def test_a_latency_is_no_occupancy():
    """Messages over one link overlap their latencies; a chain of messages that wait for one another adds them up."""
    network = Network(AlphaBeta(1e-6, 0), AlphaBeta(10e-6, 0, flight=9e-6), ranks_per_node=1)
    fan_out = simulate(plan("scatter", "naive", ranks=5, elements=5), network)
    assert [span.start for span in fan_out.spans] == pytest.approx([0, 1e-6, 2e-6, 3e-6])
    assert fan_out.seconds == pytest.approx(13e-6)
    fan_in = simulate(plan("gather", "naive", ranks=5, elements=5), network)
    assert fan_in.seconds == pytest.approx(13e-6)
    around = simulate(plan("all_gather", "ring", ranks=5, elements=5), network)
    assert around.seconds == pytest.approx(40e-6)  # each waits for what it passes on
    with pytest.raises(ConfigError, match="flight must be at most alpha, 1e-06, got 2e-06"):
        AlphaBeta(1e-6, 0, 2e-6)


def test_every_algorithm_has_a_closed_form_in_a_node_of_any_power_of_two():
    flat = Network.uniform(NVLINK)
    for collective, name in ALL:
        costs = [closed_form(collective, name, 1 << i, flat) for i in range(7)]
        if (collective, name) != ("all_to_all", "naive"):  # a queue at one door: only message by message
            assert None not in costs, (collective, name)
    assert closed_form("reduce_scatter", "recursive_halving", 6, flat) is None


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALL), st.integers(1, 24), st.integers(1, 8), st.integers(0, 10**6))
def test_every_algorithm_has_a_cost_on_every_network(which, ranks, per_node, bytes):
    collective, name = which
    network = Network(NVLINK, NETWORK, per_node)
    if name == "two_level" and ranks % min(ranks, per_node):
        with pytest.raises(ValueError, match="ranks_per_node must divide"):
            seconds(collective, bytes, ranks, network, name)
        return
    time, wait = seconds(collective, bytes, ranks, network, name), latency(collective, ranks, network, name)
    if ranks == 1:
        assert time == wait == 0
        return
    assert wait >= NVLINK.alpha
    assert wait <= latency(collective, ranks, Network.uniform(NETWORK), name) * (
        1 + 1e-9
    )  # the slower link alone
    if bytes >= ranks:  # no chunk is empty, so no message is left out
        assert time >= wait * (1 - 1e-9)


def test_the_plan_of_a_large_collective_is_never_made():
    flat = Network.uniform(NVLINK)
    assert seconds("all_reduce", 1 << 40, 1 << 16, flat, "ring") > 2 * (1 << 40) / 400e9


def test_formulas_of_the_textbook():
    """Thakur, Rabenseifner and Gropp 2005, sections 4.1 to 4.5, without the cost of adding."""
    flat, a, b = Network.uniform(NVLINK), NVLINK.alpha, NVLINK.beta
    for i in range(1, 8):
        n, k = 1 << i, 1 << 20
        textbook = {
            ("broadcast", "binomial"): i * (a + k * b),
            ("broadcast", "scatter_all_gather"): (i + n - 1) * a + 2 * (n - 1) / n * k * b,
            ("all_gather", "ring"): (n - 1) * a + (n - 1) / n * k * b,
            ("all_gather", "recursive_doubling"): i * a + (n - 1) / n * k * b,
            ("reduce_scatter", "recursive_halving"): i * a + (n - 1) / n * k * b,
            ("all_reduce", "recursive_doubling"): i * (a + k * b),
            ("all_reduce", "halving_doubling"): 2 * i * a + 2 * (n - 1) / n * k * b,
            ("all_reduce", "ring"): 2 * (n - 1) * a + 2 * (n - 1) / n * k * b,
            ("all_to_all", "pairwise"): (n - 1) * a + (n - 1) / n * k * b,
            ("barrier", "dissemination"): i * a,
        }
        for (collective, name), expected in textbook.items():
            bytes = 0 if collective == "barrier" else k
            assert seconds(collective, bytes, n, flat, name) == pytest.approx(expected), (collective, name)


# ---- hierarchy and scale


def test_two_levels_need_fewer_messages_than_a_ring_and_no_fewer_bytes():
    """Between nodes both send 2(N − 1)/N of the vector, a ring over all adapters side by side, two levels by each of them
    an eighth. Inside, two levels go around once more."""
    cluster = load("h100-8")
    for nodes in (2, 8, 64):
        n, network = 8 * nodes, Network.of(cluster)
        ring, two = (closed_form("all_reduce", name, n, network) for name in ("ring", "two_level"))
        assert ring is not None
        assert two is not None
        assert ring.rail_volume == Fraction(2 * (n - 1), n)
        assert 8 * two.inter_volume == Fraction(2 * (nodes - 1), nodes) < ring.rail_volume
        assert two.inter_messages == ring.inter_messages == 2 * (nodes - 1)
        assert two.messages == 14 < ring.messages
        assert two.time(1 << 16, network) < ring.time(1 << 16, network)
        assert two.time(1 << 34, network) > ring.time(1 << 34, network)


def test_a_ring_waits_in_proportion_to_its_ranks():
    network = Network.of(load("h100-8"))
    waits = {n: latency("all_reduce", n, network, "ring") for n in (64, 128, 512)}
    inside, across = network.intra.alpha, network.inter.alpha
    assert waits[512] == pytest.approx(2 * (511 - 63) * inside + 2 * 63 * across)
    assert waits[512] / waits[64] == pytest.approx(8, rel=0.1)
    # At 512 ranks, of 64 MB, more than half of the time of a ring is waiting.
    assert waits[512] > seconds("all_reduce", 64 << 20, 512, network, "ring") / 2


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_network_of_every_cluster(name):
    cluster = load(name)
    network, g = Network.of(cluster), cluster.gpus_per_node
    assert network.intra == AlphaBeta(cluster.intra_latency, 1 / cluster.intra_bandwidth)
    assert network.inter.bandwidth == pytest.approx(cluster.inter_bandwidth)
    assert network.inter.alpha - network.inter.flight == pytest.approx(cluster.inter_overhead)
    assert network.rails.bandwidth == pytest.approx(min(g * cluster.inter_bandwidth, cluster.intra_bandwidth))
    assert network.link(0, g - 1) == network.intra == network.hop(g) == network.link(0, g - 1, striped=True)
    assert network.link(g - 1, g) == network.inter == network.hop(g + 1)
    assert network.link(g - 1, g, striped=True) == network.rails
    alone = Network.of(cluster, 1)
    assert alone.link(0, 1) == alone.rails == network.inter


def test_crossover_is_where_two_algorithms_take_the_same_time():
    flat = Network.uniform(NVLINK)
    k = crossover("all_reduce", "recursive_doubling", "ring", 64, flat)
    assert k is not None
    times = [closed_form("all_reduce", name, 64, flat) for name in ("recursive_doubling", "ring")]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].time(k, flat) == pytest.approx(times[1].time(k, flat))
    assert times[0].time(k / 2, flat) < times[1].time(k / 2, flat)
    assert times[0].time(k * 2, flat) > times[1].time(k * 2, flat)
    # Halving and doubling sends what a ring sends, in fewer messages: a ring is never faster.
    for n in (2, 8, 64, 512):
        assert crossover("all_reduce", "halving_doubling", "ring", n, flat) is None
    with pytest.raises(ConfigError, match="no closed form of halving_doubling on 6 ranks"):
        crossover("all_reduce", "halving_doubling", "ring", 6, flat)


# ---- fits


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-7, 1e-2), st.floats(1e-13, 1e-6), st.integers(1, 30))
def test_a_fit_finds_what_made_the_times(alpha, beta, messages):
    link = AlphaBeta(alpha, beta)
    knee = alpha * messages / beta  # where both cost the same
    sizes = [knee * 10.0**e for e in (-3, -1, 0, 1, 3)]
    found = fit([Sample(k, link.time(k, messages), messages) for k in sizes])
    assert found.alpha == pytest.approx(alpha, rel=1e-6)
    assert found.beta == pytest.approx(beta, rel=1e-6)
    assert found.bandwidth == pytest.approx(1 / beta, rel=1e-6)


def test_a_fit_weighs_errors_in_proportion_and_forgives_noise():
    rng = random.Random(0)
    link = AlphaBeta(20e-6, 1 / 10e9)
    samples = [Sample(2.0**i, link.time(2.0**i) * rng.uniform(0.95, 1.05)) for i in range(8, 30)]
    found = fit(samples)
    assert found.alpha == pytest.approx(link.alpha, rel=0.05)
    assert found.beta == pytest.approx(link.beta, rel=0.05)
    assert max(map(abs, errors(found, samples))) < 0.1


def test_a_fit_is_never_negative():
    assert fit([Sample(1e3, 1.0), Sample(1e6, 0.5)]).beta == 0  # faster with more bytes: noise
    assert fit([Sample(1.0, 1e-9), Sample(1000.0, 2e-6)]).alpha == 0  # slower than in proportion
    same = fit([Sample(0.0, 2e-6), Sample(0.0, 2e-6)])
    assert (same.alpha, same.beta, same.bandwidth) == (pytest.approx(2e-6), 0, math.inf)
    with pytest.raises(ConfigError, match="a fit needs at least 2 samples, got 1"):
        fit([Sample(1.0, 1.0)])


# ---- errors


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: seconds("allreduce", 1, 2, NODES_OF_4),
            "unknown collective 'allreduce'; did you mean all_reduce",
        ),
        (
            lambda: seconds("all_reduce", 1, 2, NODES_OF_4, "rings"),
            "unknown algorithm of all_reduce 'rings'; did you",
        ),
        (
            lambda: seconds("broadcast", 1, 2, NODES_OF_4, "trees"),
            "unknown algorithm of broadcast",
        ),
        (lambda: seconds("all_reduce", -1, 2, NODES_OF_4), "bytes must be at least 0, got -1"),
        (lambda: seconds("all_reduce", 1, 0, NODES_OF_4), "ranks must be at least 1, got 0"),
        (lambda: seconds("all_reduce", 1, 2.0, NODES_OF_4), "ranks must be an integer, got 2.0"),  # type: ignore[arg-type]
        (
            lambda: seconds("all_reduce", 1, 6, NODES_OF_4, "two_level"),
            "ranks_per_node must divide the 6 ranks",
        ),
        (lambda: latency("all_reduce", 0, NODES_OF_4), "ranks must be at least 1, got 0"),
        (lambda: AlphaBeta(-1e-6, 0), "alpha must be at least 0"),
        (lambda: AlphaBeta(0, float("nan")), "beta must be"),
        (lambda: Sample(1, 0), "seconds must be a number above 0, got 0"),
        (lambda: Network(NVLINK, NETWORK, 0), "ranks_per_node must be at least 1, got 0"),
        (lambda: Network.of(load("h100-8"), 9), "ranks_per_node must be at most 8 on h100-8, got 9"),
    ],
)
def test_bad_requests_end_with_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_neither_torch_nor_numpy_is_needed():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from playbook_book import collective_costs as c\n"
        "from playbook.hardware import load\n"
        "print(c.seconds('all_reduce', 1 << 20, 16, c.Network.of(load('h100-8')), 'recursive_doubling'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=True
    )
    expected = seconds("all_reduce", 1 << 20, 16, Network.of(load("h100-8")), "recursive_doubling")
    assert float(result.stdout) == expected


def test_a_timeline_says_who_is_busy_and_what_each_link_carries():
    p = plan("broadcast", "naive", ranks=3, elements=8)
    timeline = simulate(p, Network.uniform(AlphaBeta(1.0, 0.5)))
    assert [(span.start, span.end) for span in timeline.spans] == [(0, 5), (5, 10)]
    assert timeline.seconds == 10
    assert [timeline.busy(rank) for rank in range(3)] == [10, 5, 5]
    assert timeline.bytes_per_link == {(0, 1): 8, (0, 2): 8}
