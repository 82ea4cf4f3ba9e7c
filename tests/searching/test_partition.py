"""Cuts of a pipeline: two programs that find what trying all cuts finds, on small random problems."""

import math
import random
from itertools import product

import pytest

from playbook.errors import LayoutError
from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.search import Problem
from playbook.shapes import load
from playbook_book.searching.partition import (
    PARTITIONS,
    Blocks,
    blocks_of,
    brute_force,
    dynamic,
    even,
    integer,
)


def random_blocks(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    seconds = tuple(rng.choice([1.0, 2.0, 0.5, 0.0, rng.random()]) for _ in range(count))
    return Blocks(seconds, 3 * rng.random(), 4 * rng.random()), rng.randint(1, count)


@pytest.mark.parametrize("seed", range(40))
def test_dynamic_and_integer_programming_find_what_brute_force_finds(seed):
    blocks, stages = random_blocks(seed)
    least = brute_force(blocks, stages).seconds
    for method in (dynamic, integer):
        cut = method(blocks, stages)
        assert cut.seconds == pytest.approx(least, rel=1e-6)
        assert cut.seconds == max(blocks.stages(cut.sizes))
        assert len(cut.sizes) == stages
        assert sum(cut.sizes) == len(blocks.seconds)
        assert all(cut.sizes[1:-1])
    assert even(blocks, stages).seconds >= least


@pytest.mark.parametrize(("count", "stages"), [(5, 1), (5, 2), (5, 3), (6, 4)])
def test_brute_force_weighs_every_cut_once(count, stages):
    cuts = [
        sizes
        for sizes in product(range(count + 1), repeat=stages)
        if sum(sizes) == count and all(sizes[1:-1])
    ]
    assert brute_force(Blocks((1.0,) * count), stages).weighed == len(cuts)
    assert dynamic(Blocks((1.0,) * count), stages).weighed <= (stages * (count + 1) ** 2) / 2 + count + 1


def test_a_long_head_takes_blocks_from_the_last_stage():
    blocks = Blocks((1.0,) * 12, after=3.0)
    assert even(blocks, 3).seconds == 7
    assert {method(blocks, 3).seconds for method in (brute_force, dynamic, integer)} == {5}


def test_a_head_as_long_as_a_stage_has_one_to_itself():
    assert dynamic(Blocks((1.0,) * 4, after=9.0), 3).sizes[-1] == 0


@pytest.mark.parametrize(("model", "text"), [("llama3-8b", "pp=4"), ("deepseek-v3", "dp=4,pp=4,ep=4")])
def test_blocks_are_those_of_the_simulator(model, text):
    layout = Layout.parse(text).replace(grad_acc=8)
    cluster = load_cluster("h100-8").with_gpus(layout.world_size)
    problem = Problem(Job(load(model), seq=1024), cluster, 8 * layout.dp)
    blocks = blocks_of(problem, layout)
    assert len(blocks.seconds) == problem.shape.layers
    stages = [one.seconds for one in problem.run(layout).times.stages]
    sizes = even(blocks, layout.pp).sizes
    assert blocks.stages(sizes) == pytest.approx(stages)


def test_a_cut_can_be_simulated_and_is_faster_than_an_even_one():
    layout = Layout.parse("pp=8").replace(grad_acc=32)
    cluster = load_cluster("h100-8").with_gpus(8)
    shape = load("llama3.2-1b")
    problem = Problem(Job(shape, seq=1024), cluster, 32)
    cut = dynamic(blocks_of(problem, layout), 8)
    cut_step = problem.run(layout.replace(stage_layers=cut.sizes)).step()
    assert cut_step.seconds < problem.run(layout).step().seconds


@pytest.mark.parametrize("name", PARTITIONS)
def test_stages_must_be_as_many_as_blocks_at_most(name):
    for stages in (0, 4):
        with pytest.raises(LayoutError, match=f"stages must be between 1 and the 3 blocks, got {stages}"):
            PARTITIONS[name](Blocks((1.0, 1.0, 1.0)), stages)


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_seconds_are_finite(wrong):
    with pytest.raises(LayoutError, match="seconds of blocks must be finite"):
        Blocks((1.0, wrong))
