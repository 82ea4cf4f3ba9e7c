"""The fast walk through a schedule against the timeline."""

import random

import pytest

from playbook.layout import Layout
from playbook.layout.stages import split_layers
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.catalogue import of_layout
from playbook.schedules.makespan import Order, ends
from playbook.schedules.timeline import Times, simulate

KINDS = (
    "naive",
    "afab",
    "1f1b",
    "interleaved",
    "breadth-first",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe",
    "dualpipev",
)


def makespan(layout, forward, backward, weights, comm, blocking):
    times = Times(f=forward, b=backward, w=weights, comm=comm, overlap=not blocking)
    return simulate(of_layout(layout, layout.grad_acc), times).makespan


@pytest.mark.parametrize("name", KINDS)
def test_a_walk_ends_when_the_timeline_does(name):
    rng = random.Random(name)
    for _ in range(12):
        pp, vpp = rng.choice([2, 4, 6]), rng.choice([2, 3]) if name in ("interleaved", "breadth-first") else 1
        layout = Layout(pp=pp, vpp=vpp, schedule=name, grad_acc=pp * rng.choice([2, 3, 4]))
        forward, backward, weights = (
            tuple(rng.uniform(0.5, 2) for _ in range(layout.stages)) for _ in range(3)
        )
        comm, blocking = rng.choice([0.0, 0.1, 0.5]), rng.random() < 0.3
        found = ends(layout, forward, backward, weights, comm, blocking)
        assert len(found) == pp
        assert max(found) == pytest.approx(
            makespan(layout, forward, backward, weights, comm, blocking), rel=1e-12
        )


@pytest.mark.parametrize("name", ["naive", "1f1b", "interleaved", "zb-h1"])
def test_of_a_long_step_the_middle_repeats(name):
    """Stages of as many layers, or one more, with an embedding before and a head behind, as models have them."""
    rng = random.Random(name)
    for pp, vpp, count in ((2, 3, 80), (4, 2, 100), (4, 1, 77), (8, 3, 96), (6, 1, 131), (8, 1, 64)):
        vpp = vpp if name == "interleaved" else 1
        count -= count % pp if name == "interleaved" else 0
        layout = Layout(pp=pp, vpp=vpp, schedule=name, grad_acc=count)
        layers = [len(cut) for cut in split_layers(layout.stages * 5 + rng.choice([0, 0, 3]), layout.stages)]
        layers[-1] += rng.uniform(0, 2)
        forward = tuple(float(n) for n in layers)
        backward, weights = forward, tuple(0.9 * n for n in layers)
        comm = rng.choice([0.0, 0.05, 0.2])
        found = max(ends(layout, forward, backward, weights, comm))
        assert found == pytest.approx(makespan(layout, forward, backward, weights, comm, False), rel=5e-3)


def test_sixty_four_stages_are_walked_through_in_little():
    """What a step of 512 micro-batches takes follows from walks of 128 and 192."""
    layout = Layout(pp=64, grad_acc=512)
    assert max(ends(layout, (1.0,) * 64, (2.0,) * 64, (0.0,) * 64)) == pytest.approx((512 + 63) * 3)


def test_actions_that_wait_for_one_another_are_refused():
    ranks = ((Action("F", 0, 0), Action("BW", 0, 0)), (Action("BW", 1, 0), Action("F", 1, 0)))
    with pytest.raises(Exception, match="rank 1 waits with BW of micro-batch 0"):
        Order.of(Schedule("wrong", 1, ((0, 1),), ranks))
