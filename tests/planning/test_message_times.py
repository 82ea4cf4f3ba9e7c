"""Seconds of messages: where ranks are, and what the links carry."""

from collections import Counter
from dataclasses import replace

import pytest

from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.planning.calibration import Calibration
from playbook.planning.jobs import run_of
from playbook.planning.message_times import Links
from playbook.planning.nccl import REACHED, seconds
from playbook.planning.terms import label
from playbook.planning.traffic import traffic
from playbook.shapes import load

CLUSTER = load_cluster("h100-8")
PLAIN = Calibration("plain", collective=0.0)


def links(text, calibration=PLAIN, cluster=CLUSTER):
    return Links(cluster, Layout.parse(text), calibration)


def rate(here, axis, ranks, collective="all_gather", payload=1e14):
    """Bytes/s that a rank sends in a long collective."""
    return payload * (ranks - 1) / ranks / here.collective(collective, payload, ranks, axis)


def test_axes_are_inside_a_node_as_long_as_they_fit():
    intra, inter = REACHED.ring * CLUSTER.intra_bandwidth, REACHED.network * CLUSTER.inter_bandwidth
    here = links("dp=16,tp=8")
    assert rate(here, "tp", 8) == pytest.approx(intra, rel=1e-2)
    assert rate(here, "dp", 16) == pytest.approx(inter, rel=1e-2)  # one rank of each node, its own adapter
    # Without tensor parallelism all eight of a node are in the ring: it leaves each node over all adapters.
    assert rate(links("dp=128"), "dp", 128) == pytest.approx(min(intra, 8 * inter), rel=1e-2)
    assert rate(links("dp=4,tp=2"), "dp", 4) == pytest.approx(intra, rel=1e-2)
    assert rate(links("tp=16"), "tp", 16) == pytest.approx(min(intra, 8 * inter), rel=1e-2)


def test_ranks_of_a_group_may_lie_apart():
    """The same place of two nodes, as the first of two steps to experts has it, is reached through adapters."""
    here, payload = links("dp=16"), 1e9
    inside, across = (here.collective("all_to_all", payload, 2, "ep", apart) for apart in (4, 8))
    assert inside == pytest.approx(payload / 2 / CLUSTER.intra_bandwidth, rel=0.01)
    assert across == pytest.approx(payload / 2 / CLUSTER.inter_bandwidth, rel=0.01)


def test_whole_experts_are_nearer_than_those_that_are_cut():
    """A group of four among ranks that are neighbours in a node, or eight apart in as many nodes."""
    found = []
    for text in ("dp=8,tp=8,sp,ep=4", "dp=8,tp=8,sp,ep=4,etp=1"):
        here = links(text)
        assert here.spread("ep", 4)[0] == len({rank // 8 for rank in here.layout.groups("ep")[0]})
        found.append(here.collective("all_to_all", 2**26, 4, "ep"))
    assert found[0] > 5 * found[1]


def test_stages_are_as_far_apart_as_what_is_inside_them():
    payload = 1e9
    near, far = links("tp=2,pp=4").hop(payload), links("tp=8,pp=4").hop(payload)
    assert near == pytest.approx(payload / CLUSTER.intra_bandwidth, rel=2e-3)
    assert far == pytest.approx(payload / CLUSTER.inter_bandwidth, rel=2e-3)


def test_a_calibration_scales_links():
    slow = links("dp=4,tp=8", replace(PLAIN, intra=0.5, inter=0.25, congestion=1.0))
    inside, across = REACHED.ring * CLUSTER.intra_bandwidth, REACHED.network * CLUSTER.inter_bandwidth
    assert rate(slow, "tp", 8) == pytest.approx(0.5 * inside, rel=1e-2)
    assert rate(slow, "dp", 4) == pytest.approx(0.25 * across / 2, rel=1e-2)  # four nodes
    late = links("tp=8", replace(PLAIN, collective=1e-3))
    assert late.collective("all_reduce", 1.0, 8, "tp") >= 1e-3


def test_collectives_take_what_nccl_takes_for_them():
    """On whole nodes a vector costs what `nccl.seconds` says; a part of a node, or a rank in each, are other groups."""
    for text, axis, ranks, within in (
        ("dp=64", "dp", 64, 8),
        ("dp=8,tp=8", "dp", 8, 1),
        ("dp=16,tp=4", "dp", 16, 2),
    ):
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            for size in (4096, 25 << 20, 1 << 30):
                found = links(text).collective(collective, size, ranks, axis)
                assert found == seconds(collective, size, ranks, CLUSTER, within)


def test_a_node_that_is_slower_inside_slows_what_goes_outside():
    cluster = replace(CLUSTER, intra_bandwidth=30e9)
    assert rate(links("dp=16", cluster=cluster), "dp", 16) == pytest.approx(30e9, rel=0.05)


def test_all_to_alls_across_nodes_go_through_adapters():
    here, payload = links("dp=16"), 1e9
    seconds = here.collective("all_to_all", payload, 16, "ep")
    expected = payload * (7 / 16 / CLUSTER.intra_bandwidth + 8 / 16 / CLUSTER.inter_bandwidth)
    assert seconds == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("model", "text", "options"),
    [
        ("llama3-8b", "dp=2,tp=4,sp,grad_acc=3", {}),
        ("llama3-8b", "tp=2,cp=2,recompute=full,grad_acc=2,dp=2", {"context": "gather"}),
        ("llama3-8b", "dp=2,tp=8", {}),
        ("mixtral-8x7b", "dp=4,ep=4,tp=2,sp,grad_acc=2", {}),
        ("llama1-7b", "tp=2,sp,dp=2,recompute=selective,cp=2", {}),
    ],
)
def test_what_blocks_are_timed_with_is_what_ranks_send(model, text, options):
    """Messages of one block, times blocks and micro-batches, are those that `traffic` counts of the whole model."""
    shape, layout = load(model), Layout.parse(text).replace(**options)
    run = run_of({"model": model, "cluster": "h100-8", "layout": text, "seq": 1024})
    run = replace(run, job=run.job.relayout(**options))
    blocks = {f"{label(kind)} block": count for kind, count in shape.blocks().items()}
    counted: Counter[tuple] = Counter()
    for part, message, _ in run.times.messages():
        times = layout.grad_acc * (1 if part == "head" else blocks[part])
        counted[message.axis, message.collective, message.phase, message.payload] += message.count * times
    expected: Counter[tuple] = Counter()
    for message in traffic(shape, layout, 1024):
        if message.phase in ("forward", "backward") and message.axis in ("tp", "cp", "ep"):
            expected[message.axis, message.collective, message.phase, message.payload] += message.count
    assert counted == expected
