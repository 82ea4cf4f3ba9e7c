"""The network of a cluster beside what others have measured, and beside the numbers by which NCCL chooses."""

import pytest

from playbook.collectives.costs import seconds
from playbook.hardware import load
from playbook.planning.communication import (
    Network,
    Sample,
    bus_bandwidth,
    bus_factor,
    closed_form,
    errors,
    fit,
)

MIB = 2**20

# ---- in a node

#: Bus bandwidth in GB/s of an all-reduce on the 8 GPUs of a node: (cluster, MiB, GB/s). Stas Bekman, "Machine Learning
#: Engineering", network/README.md: three experiments, of which the last is a sweep whose log says what NCCL chose: a ring
#: with protocol LL up to 1 MiB, and from 2 MiB on NVLS with Simple, in which the switch adds up and a rank sends less
#: than a ring does. No row of the sweep is a ring with protocol Simple, which is what the model predicts.
IN_A_NODE = {
    "A100": ("a100-8", 16_384, 234.9),
    "H200, ring": ("h200-8", 16_384, 367.6),
    "H200, NVLS": ("h200-8", 16_384, 482.3),
    "H200, ring LL, 1 MiB": ("h200-8", 1, 39.9),
    "H200, NVLS, 16 MiB": ("h200-8", 16, 219.9),
    "H200, NVLS, 64 MiB": ("h200-8", 64, 346.5),
    "H200, NVLS, 1 GiB": ("h200-8", 1024, 463.6),
}
#: What was one sweep: on one machine, NVLS allowed.
SWEEP = [row for which, row in IN_A_NODE.items() if "LL" in which or "NVLS, " in which]


def predicted(cluster: str, mib: int) -> float:
    """Bus bandwidth in GB/s of a ring with protocol Simple on the 8 GPUs of a node, by the model."""
    time = seconds("all_reduce", mib * MIB, 8, Network.of(load(cluster)), "ring")
    return bus_bandwidth("all_reduce", 8, mib * MIB, time) / 1e9


@pytest.mark.parametrize("which", IN_A_NODE)
def test_a_ring_of_the_model_is_within_20_percent_of_whatever_nccl_ran(which):
    cluster, mib, measured = IN_A_NODE[which]
    assert predicted(cluster, mib) == pytest.approx(measured, rel=0.2)


def test_the_one_bandwidth_of_the_model_lies_between_rings_and_nvls():
    """It is no measured number: rings of long vectors are slower than it, and the switch's sums are faster."""
    long = {which: row for which, row in IN_A_NODE.items() if row[1] >= 1024}
    too_fast = {which for which, (cluster, mib, gb) in long.items() if predicted(cluster, mib) > 1.05 * gb}
    too_slow = {which for which, (cluster, mib, gb) in long.items() if predicted(cluster, mib) < 0.95 * gb}
    assert too_fast == {"A100", "H200, ring"}
    assert too_slow == {"H200, NVLS", "H200, NVLS, 1 GiB"}


def test_two_constants_describe_a_sweep_in_which_nccl_changes_its_algorithm():
    """So a good fit does not tell which algorithm ran, nor is its constant the latency of a hop."""
    assert len(SWEEP) == 4
    factor = bus_factor("all_reduce", 8)
    samples = [Sample(factor * mib * MIB, factor * mib * MIB / (gb * 1e9), 1) for _, mib, gb in SWEEP]
    link = fit(samples)
    assert max(map(abs, errors(link, samples))) < 0.15
    assert 2 * 3.4e-6 < link.alpha < 100e-6  # of a whole call


# ---- across nodes

#: Bus bandwidth in GB/s by nodes of 8 H100; the size of the vector is not stated. Tazi et al. 2025, "The Ultra-Scale
#: Playbook", communication bandwidth by number of nodes.
ACROSS_NODES = {
    "all_reduce": {4: 160.14, 8: 99.56, 16: 84.74, 32: 64.93, 64: 32.94},
    "all_gather": {2: 184.61, 4: 118.97, 8: 69.0, 16: 54.97, 32: 27.97, 64: 11.04},
    "reduce_scatter": {2: 181.55, 4: 115.76, 8: 68.55, 16: 54.52, 32: 27.94, 64: 11.07},
}


def fitted(collective: str, size: float) -> tuple[float, list[float]]:
    """One latency for every message that crosses nodes, and one bandwidth, if all vectors had this size."""
    samples = []
    for nodes, gb in ACROSS_NODES[collective].items():
        n = 8 * nodes
        cost = closed_form(collective, "ring", n, Network.of(load("h100-8")))
        assert cost is not None
        time = bus_factor(collective, n) * size / (gb * 1e9)
        samples.append(Sample(float(cost.rail_volume) * size, time, cost.inter_messages))
    link = fit(samples)
    return link.alpha, errors(link, samples)


@pytest.mark.parametrize("collective", ACROSS_NODES)
def test_the_published_fall_with_nodes_does_not_tell_the_size_from_the_latency(collective):
    """A line fits as well whatever the size: twice the vector is twice the latency. The curve alone fixes their ratio."""
    (small, missed), (large, missed_too) = fitted(collective, 64 * MIB), fitted(collective, 1024 * MIB)
    assert large == pytest.approx(16 * small, rel=1e-6)
    assert missed_too == pytest.approx(missed, abs=1e-9)
    assert max(map(abs, missed)) < 0.25


def test_with_the_latencies_of_nccl_the_published_curve_is_one_of_vectors_of_some_60_megabytes():
    """Solved for the size, row by row: from 4 to 64 nodes it is the same within a factor of three."""
    network, found = Network.of(load("h100-8")), []
    for nodes, gb in ACROSS_NODES["all_reduce"].items():
        n = 8 * nodes
        cost = closed_form("all_reduce", "ring", n, network)
        assert cost is not None
        per_byte = bus_factor("all_reduce", n) / (gb * 1e9) - cost.per_byte(network)
        found.append(cost.latency(network) / per_byte)
    assert 30e6 < min(found) < max(found) < 100e6


# ---- NCCL's own model

#: Seconds per hop of NCCL's tuner, protocol Simple (src/graph/tuning.cc, hwLatencies), and its count of hops. Of its
#: estimate the model leaves out 8.4 µs per call, and the factor of 1.4 on a ring's latency across nodes.
HOPS = {"ring": (3.4e-6, 14e-6), "nccl_tree": (4.0e-6, 14e-6)}


def tuned(algorithm: str, nodes: int, per_node: int) -> tuple[int, int, float]:
    """Hops of an all-reduce inside nodes and between them, and the share of the bus bandwidth that it reaches."""
    ranks = nodes * per_node
    if algorithm == "ring":
        steps, across = 2 * (ranks - 1), 2 * (nodes - 1)
        return steps - across, across, ranks / steps
    return 2 * (ranks // nodes - 1), 2 * (nodes - 1).bit_length(), 0.5


@pytest.mark.parametrize("algorithm", HOPS)
@pytest.mark.parametrize("nodes", [1, 2, 8, 64])
def test_hops_and_their_latencies_are_those_of_nccls_tuner(algorithm, nodes):
    network, n = Network.of(load("h100-8")), 8 * nodes
    cost = closed_form("all_reduce", algorithm, n, network)
    assert cost is not None
    inside, across, share = tuned(algorithm, nodes, 8)
    assert (cost.messages, cost.inter_messages) == (inside, across)
    fast, slow = HOPS[algorithm]
    bandwidth = (network.intra if nodes == 1 else network.rails).bandwidth * share
    for mib in (0, 1, 25, 1024):
        theirs = inside * fast + across * slow + mib * MIB / bandwidth
        assert cost.time(mib * MIB, network) == pytest.approx(
            theirs, rel=1e-9 if algorithm == "ring" else 0.16
        )


def test_25_mib_on_64_gpus():
    """14 crossings at 14 µs, 112 hops at 3.4 µs, and the bytes over eight adapters of 50 GB/s."""
    time = seconds("all_reduce", 25 * MIB, 64, Network.of(load("h100-8")), "ring")
    assert time == pytest.approx(14 * 14e-6 + 112 * 3.4e-6 + 2 * 63 / 64 * 25 * MIB / 400e9)
    assert time == pytest.approx(0.71e-3, rel=0.01)
