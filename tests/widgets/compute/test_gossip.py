"""The gossip widget's function: the library's matrices and gaps, steps that its bounds hold for, and words that hold."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.gossip import (
    CLOSE,
    COUNTED,
    DEFAULTS,
    EPSILON,
    NODES,
    SHOWN,
    TITLES,
    compute,
    mixed,
    places,
    promised,
    read,
)
from playbook_widgets.gossip import EXAMPLES

from playbook.decentralized.topology import NAMES, mix, topology
from playbook.errors import PlaybookError
from playbook_book.gaps import spectral_gap

INPUTS = st.fixed_dictionaries(
    {
        "topology": st.sampled_from([name for name in NAMES if name != "hypercube"]),
        "nodes": st.integers(2, 20),
    },
    optional={
        "values": st.lists(st.integers(-100, 100), min_size=1, max_size=24).map(
            lambda all: ",".join(map(str, all))
        ),
        "parameters": st.integers(10**6, 10**12),
        "itemsize": st.sampled_from([1, 2, 4]),
    },
)


@given(INPUTS)
@settings(max_examples=60, deadline=None)
def test_values_mix_as_the_librarys_and_stay_under_the_bound(inputs):
    answer, graph = compute(inputs), topology(inputs["topology"], inputs["nodes"])
    texts = [float(text) for text in inputs.get("values", "10").split(",")]
    now = (texts + [0.0] * graph.n)[: graph.n]
    mean = fmean(now)
    assert answer["mean"] == pytest.approx(mean, abs=1e-9)
    first = math.dist(now, [mean] * graph.n)
    assert len(answer["frames"]) == len(answer["left"]) >= 2
    for step, (frame, left) in enumerate(zip(answer["frames"], answer["left"], strict=True)):
        assert frame == pytest.approx(now, rel=1e-5, abs=1e-9)
        assert left * first == pytest.approx(math.dist(now, [mean] * graph.n), rel=1e-6, abs=1e-9)
        if inputs["topology"] != "matching" and step % graph.period == 0:
            assert left <= answer["rate"] ** step * (1 + 1e-6) + 1e-9
        if step < len(answer["mixing"]):
            assert [[j for j, _ in row] for row in answer["mixing"][step]] == [
                [j for j, _ in row] for row in graph.at(step)
            ]
        now = mix(graph.at(step), now)
    assert answer["left"][-1] <= CLOSE or len(answer["frames"]) == SHOWN + 1
    if inputs["topology"] != "matching":
        assert answer["reached"] is None or answer["reached"] <= promised(inputs["topology"], graph.n)


@pytest.mark.parametrize("name", NAMES)
def test_the_rate_is_that_of_the_spectral_gap(name):
    for nodes in (4, 16):
        graph, rate = topology(name, nodes), compute({"topology": name, "nodes": nodes})["rate"]
        if graph.period == 1:
            assert 1 - rate == pytest.approx(spectral_gap(graph.at(0)), rel=1e-6)
        elif name == "one-peer-exponential":
            assert (rate, promised(name, nodes)) == (0, math.log2(nodes))


@pytest.mark.parametrize("nodes", [3, 5, 6, 7, 12])
def test_one_peer_in_turn_with_any_number_of_nodes_has_the_rate_of_its_slowest_pattern(nodes):
    """Steps are circulant: on the Fourier mode m, a hop h has the eigenvalue (1 + exp(2πi·m·h/n))/2."""
    period = (nodes - 1).bit_length()
    slowest = max(
        math.prod(abs(math.cos(math.pi * m * 2**k / nodes)) for k in range(period)) for m in range(1, nodes)
    )
    answer = compute({"topology": "one-peer-exponential", "nodes": nodes})
    assert answer["rate"] ** period == pytest.approx(slowest, rel=1e-6)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6])
def test_the_rate_of_matchings_is_that_of_the_mean_over_all_of_them(nodes):
    """‖W·x‖² on average over every matching, for the x of each coordinate: E[W] is the same in all directions."""
    orders = list(itertools.permutations(range(nodes)))
    x = [1 - 1 / nodes] + [-1 / nodes] * (nodes - 1)
    total = 0.0
    for order in orders:
        pairs = dict(zip(order[::2], order[1::2], strict=False))
        pairs |= {b: a for a, b in pairs.items()}
        total += sum((x[i] / 2 + x[pairs.get(i, i)] / 2) ** 2 for i in range(nodes))
    left = total / len(orders) / sum(value * value for value in x)
    assert compute({"topology": "matching", "nodes": nodes})["rate"] ** 2 == pytest.approx(left, abs=1e-12)


def test_bytes_beside_ring_all_reduce():
    facts = {name: number for name, number, _ in compute({"topology": "one-peer-exponential"})["facts"]}
    assert facts["A node sends in a step"] == "2 GB"
    assert facts["Ring all-reduce sends"] == "3.75 GB"  # 2·15/16 of 2 GB
    assert facts["Sent until ε"] == "8 GB"  # four steps
    star = compute({"topology": "star", "nodes": 32, "parameters": "10M", "itemsize": 4})
    assert "the hub sends 1.24 GB" in star["machine"]  # 31 messages of 40 MB


def test_values_that_agree_take_no_step_and_slow_graphs_are_counted_beyond_what_is_shown():
    agreed = compute({"nodes": 4, "values": "3,3,3,3"})
    assert (agreed["reached"], agreed["left"]) == (0, [0.0, 0.0])
    slow = compute({"nodes": 64})
    assert len(slow["frames"]) == SHOWN + 1 < slow["reached"] <= promised("ring", 64)
    _, left, reached = mixed(topology("grid", 61), [1.0] + [0.0] * 60)
    assert reached is None
    assert left[-1] > EPSILON
    assert f"> {COUNTED:,}" in compute({"topology": "grid", "nodes": 61})["facts"][1]


@pytest.mark.parametrize("name", NAMES)
def test_nodes_are_drawn_apart(name):
    for nodes in [n for n in (2, 3, 8, 16, 61, 64) if name != "hypercube" or n & (n - 1) == 0]:
        drawn = places(name, nodes)
        assert len(drawn) == nodes
        assert min(math.dist(a, b) for a, b in itertools.combinations(drawn, 2)) > 0.09


def test_words_of_the_examples_hold():
    answers = {name: compute(inputs) for name, inputs, _ in EXAMPLES}
    steps = {name: answer["reached"] for name, answer in answers.items()}
    assert round(steps["Ring"] / steps["Torus"]) == 9
    assert answers["Exponential"]["rate"] == pytest.approx(answers["Torus"]["rate"])
    assert steps["Star"] > 100
    assert steps["One peer in turn"] == 4
    assert answers["One peer in turn"]["frames"][-1] == pytest.approx([0.625] * 16, abs=1e-12)
    assert answers["One peer, 6 nodes"]["left"][-1] > 0
    assert answers["Random pairs"]["rate"] ** 2 == pytest.approx(0.5, abs=0.04)
    assert TITLES.keys() == set(NAMES)


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ({"topology": "rings"}, "topology"), ({"nodes": 1}, "nodes"), ({"nodes": NODES[1] + 1}, "nodes"),
        ({"topology": "hypercube", "nodes": 12}, "nodes"), ({"values": "1,x"}, "values"), ({"values": "101"}, "values"),
        ({"values": "nan"}, "values"), ({"values": ""}, "values"), ({"parameters": "many"}, "parameters"),
        ({"itemsize": 3}, "itemsize"), ({"node": -1}, "node"), ({"step": -1}, "step"), ({"mean": 1}, "mean"),
    ],
)  # fmt: skip
def test_refusals_name_the_control(inputs, field):
    assert compute(inputs)["error"]["field"] == field
    with pytest.raises(PlaybookError):
        read(inputs)


def test_what_is_not_set_is_the_default():
    assert compute({}) == compute(DEFAULTS)
