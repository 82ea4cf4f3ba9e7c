"""What NCCL would take, against its own logs; and what that takes, against published runs of nccl-tests."""

import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from playbook.errors import ConfigError
from playbook.hardware import NETWORK_LATENCY, load
from playbook.planning.communication import bus_bandwidth
from playbook.planning.nccl import AMPERE, HOPPER, Fabric, Reached, chosen, on, seconds, ways

KIB, MIB = 2**10, 2**20
H100 = Fabric(HOPPER, 360e9, 50e9)

# ---- NCCL's own numbers

#: Microseconds and GB/s of its tuner for an all-reduce, and for an all-gather, of 6 H100 of one node, as NCCL 2.29.2
#: printed them (waynehacking8/nccl-collectives-bench, results/scaling_attributed/g6_auto.log).
OF_SIX = {
    ("all_reduce", "tree LL"): (12.8, 43.6), ("all_reduce", "tree LL128"): (26.5, 128.8),
    ("all_reduce", "tree Simple"): (48.4, 165.6), ("all_reduce", "ring LL"): (12.6, 84.6),
    ("all_reduce", "ring LL128"): (33.0, 198.7), ("all_reduce", "ring Simple"): (42.4, 216.0),
    ("all_gather", "ring LL"): (9.6, 169.2), ("all_gather", "ring LL128"): (23.5, 397.4),
    ("all_gather", "ring Simple"): (25.4, 432.0),
}  # fmt: skip
#: What NCCL logged that it took for an all-reduce, by ranks and nodes, up to so many bytes: 8 H100 or 8 H200, and two and
#: four nodes of H200, NCCL 2.30.7 ("Inside NCCL's all-reduce: ring, double binary tree, or neither?", 2026-08-02).
LOGGED = {
    (8, 1): ((1 * MIB, "ring LL"), (4096 * MIB, "NVLS")),
    (16, 2): (
        (128 * KIB, "tree LL"), (8 * MIB, "tree LL128"), (16 * MIB, "ring LL128"), (4096 * MIB, "NVLS tree"),
    ),
    (32, 4): (
        (128 * KIB, "tree LL"), (16 * MIB, "tree LL128"), (256 * MIB, "ring LL128"), (4096 * MIB, "ring Simple"),
    ),
}  # fmt: skip
#: The same of 2, 4 and 6 of 8 H100, from 256 MiB on: source as of OF_SIX.
OF_A_NODE = {2: "ring Simple", 4: "ring Simple", 6: "NVLS"}


@pytest.mark.parametrize(("collective", "way"), OF_SIX)
def test_the_tuner_s_numbers_are_those_that_nccl_prints(collective, way):
    found = next(one for one in ways(collective, 6, 1, H100) if str(one) == way)
    microseconds, gigabytes = OF_SIX[collective, way]
    assert (found.inside + found.across) * 1e6 == pytest.approx(microseconds, abs=0.06)
    assert found.bandwidth / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_the_algorithm_is_the_one_that_nccl_logged():
    right = []
    for (ranks, nodes), bands in LOGGED.items():
        for size in (2**e for e in range(8, 33)):
            logged = next(way for most, way in bands if size <= most)
            right.append(str(chosen("all_reduce", size, ranks, nodes, H100)) == logged)
    assert len(right) == 75
    assert sum(right) / len(right) > 0.9  # the others are at a border
    for ranks, logged in OF_A_NODE.items():
        for mib in (256, 1024, 4096, 8192):
            assert str(chosen("all_reduce", mib * MIB, ranks, 1, H100)) == logged


# ---- published runs


def fits():
    path = Path(__file__).parents[2] / "benchmarks/fit_collectives.py"
    spec = importlib.util.spec_from_file_location("fit_collectives", path)
    assert spec
    assert spec.loader
    module = sys.modules["fit_collectives"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_published_runs_are_predicted_by_a_fit_to_those_of_others():
    """Of 42 tables of some twenty authors, each by a fit to what the others measured."""
    known = fits()
    rows = known.published()
    missed = known.left_out(rows)
    tables = {
        table: median(abs(missed[row]) for row in rows if row.table == table)
        for table in {row.table for row in rows}
    }
    assert len(tables) >= 40
    assert len({row.author for row in rows}) >= 8
    assert median(map(abs, missed.values())) < 0.12
    assert median(tables.values()) < 0.12
    assert max(tables.values()) < 0.4  # of 128 nodes, whose like is in no other table
    assert sum(abs(error) > 0.4 for error in missed.values()) / len(missed) < 0.08


def test_the_constants_are_those_of_the_fit():
    known = fits()
    reached, hops = known.fitted(known.published())
    assert vars(Reached()) == pytest.approx(vars(reached), rel=0.02)
    assert hops["EFA"] > 2  # messages over it take longer than on InfiniBand


# ---- what follows


def test_a_long_ring_has_the_bandwidth_of_its_links_and_nvls_more():
    """Bus bandwidth of 16 GiB on eight GPUs: Stas Bekman, "Machine Learning Engineering", network/README.md."""
    for cluster, gb in (("a100-8", 234.9), ("h200-8", 482.3)):
        time = seconds("all_reduce", 16_384 * MIB, 8, load(cluster))
        assert bus_bandwidth("all_reduce", 8, 16_384 * MIB, time) / 1e9 == pytest.approx(gb, rel=0.08)
    assert on(load("a100-8"), "all_reduce", 1 << 30, 8).algorithm == "ring"  # its switches do not add up
    gathered = seconds("all_gather", 1 << 34, 8, load("h100-8"))
    assert bus_bandwidth("all_gather", 8, 1 << 34, gathered) / 1e9 == pytest.approx(362, rel=0.06)


def test_small_vectors_cross_many_nodes_by_trees():
    """Twice the nodes are two more crossings of a tree, where a ring has as many more as there are nodes."""
    h100 = load("h100-8")
    times = [seconds("all_reduce", 4 * KIB, 8 * nodes, h100) for nodes in (8, 16, 32, 64)]
    steps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert steps == pytest.approx([steps[0]] * 3, rel=0.01)
    assert seconds("all_gather", 4 * KIB, 512, h100) > 4 * seconds("all_reduce", 4 * KIB, 512, h100)


def test_where_a_rank_is_alone_in_its_node_gathers_may_take_pat():
    far = [way.algorithm for way in ways("all_gather", 16, 16, H100)]
    assert "PAT" in far
    assert "PAT" not in [way.algorithm for way in ways("all_gather", 16, 2, H100)]
    assert on(load("h100-8"), "all_gather", 64 * KIB, 64, per_node=1).algorithm == "PAT"


def test_what_a_network_lacks_is_not_taken():
    names = {way.algorithm for way in ways("all_reduce", 32, 4, H100)}
    assert names == {"ring", "tree", "NVLS tree"}
    assert {w.algorithm for w in ways("all_reduce", 32, 4, replace(H100, sharp=True))} == {*names, "CollNet"}
    assert {w.algorithm for w in ways("all_reduce", 8, 1, replace(H100, generation=AMPERE))} == {
        "ring",
        "tree",
    }
    assert {w.algorithm for w in ways("all_reduce", 8, 1, replace(H100, nvlink=False))} == {"ring", "tree"}


def test_slow_hops_cost_short_messages():
    h100 = load("h100-8")
    slow = replace(h100, inter_latency=3 * NETWORK_LATENCY)
    assert seconds("all_reduce", KIB, 64, slow) > 1.8 * seconds("all_reduce", KIB, 64, h100)
    assert seconds("all_reduce", 1 << 34, 64, slow) < 1.1 * seconds("all_reduce", 1 << 34, 64, h100)


def test_a_tuner_that_knows_of_slow_hops_takes_trees_for_longer():
    """NCCL adds the latency that a network states to that of each hop (tuning.cc, latencyInter)."""
    found = [
        chosen("all_reduce", 50 * MIB, 32, 32, replace(H100, hops=hops)).algorithm for hops in (1.0, 3.7)
    ]
    assert found == ["ring", "tree"]


@pytest.mark.parametrize(
    ("collective", "ranks", "per_node", "sentence"),
    [
        ("broadcast", 8, None, "unknown collective of NCCL's tuner 'broadcast'"),
        ("all_reduce", 1, None, "ranks must be at least 2, got 1"),
        ("all_reduce", 8, 9, "per_node must be at most 8, got 9"),
    ],
)
def test_bad_requests_end_with_one_sentence(collective, ranks, per_node, sentence):
    with pytest.raises(ConfigError, match=sentence):
        seconds(collective, 1024, ranks, load("h100-8"), per_node)
