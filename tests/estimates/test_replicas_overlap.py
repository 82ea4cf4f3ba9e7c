"""The timeline of replicas that send while they compute: its limits, and what the two ways of counting agree on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError
from playbook.planning.flops import step_flops
from playbook.shapes import load
from playbook_book.collective_costs import seconds
from playbook_book.collectives.network import Network
from playbook_book.overlap_estimates import cut, data_parallel_ratio, replicas_step


def test_the_timeline_by_hand():
    """Backward takes 4 s and completes a quarter each second; a message of 1 byte takes 2 s."""
    step = replicas_step(3.0, 4.0, [1, 1, 1, 1], lambda size: 2.0 * size)
    # ready at 1, 2, 3, 4; sent from 1, 3, 5, 7, the last one until 9.
    assert (step.compute, step.sending, step.exposed) == (7.0, 8.0, 5.0)
    assert (step.total, step.hidden, step.efficiency) == (12.0, 0.375, 7 / 12)


sizes = st.lists(st.integers(1, 10**6), min_size=1, max_size=30)


@given(sizes, st.floats(0.01, 100), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_overlap_hides_no_more_than_there_is(messages, backward, alpha, beta):
    def cost(size: int) -> float:
        return alpha + beta * size

    apart = replicas_step(1.0, backward, messages, cost, overlap=False)
    step = replicas_step(1.0, backward, messages, cost)
    assert apart.exposed == pytest.approx(apart.sending)
    assert step.sending == apart.sending
    last = cost(messages[-1])
    # The last message always comes after backward, and no more than backward can be hidden.
    assert step.exposed >= max(last, step.sending - backward) - 1e-9
    assert step.exposed <= apart.exposed + 1e-9


@given(st.integers(1, 10**9), st.integers(10**5, 10**8), st.none() | st.integers(1, 10**8))
def test_buckets_hold_everything(total, size, first):
    buckets = cut(total, size, first)
    assert sum(buckets) == total
    assert buckets[0] <= (first or size)
    assert all(bucket == size for bucket in buckets[1:-1])
    assert all(bucket <= size for bucket in buckets[1:])


def test_a_bucket_holds_something():
    with pytest.raises(ConfigError, match="size must be"):
        cut(10, 0)


def test_the_ratio_of_eight_thousand_tokens():
    """989 TFLOP/s and 450 GB/s: 0.27 with many replicas, in bf16."""
    many = data_parallel_ratio(8192, 10**9, peak_flops=989e12, bandwidth=450e9)
    assert many == pytest.approx(0.268, abs=5e-4)
    assert data_parallel_ratio(8192, 1, peak_flops=989e12, bandwidth=450e9) == 0
    assert data_parallel_ratio(8192, 10**9, peak_flops=989e12, bandwidth=450e9, gradient_bytes=4) == 2 * many


@pytest.mark.parametrize("model", ["llama3.2-1b", "llama3-8b"])
def test_the_ratio_is_that_of_a_counted_model(model):
    """Bytes by the ring's formula and FLOPs matrix by matrix: within what attention and an embedding add."""
    shape, seq, n = load(model), 1024, 64
    network = Network.uniform(AlphaBeta(0, 1 / 450e9))
    sending = seconds("all_reduce", 2 * shape.num_parameters, n, network)
    backward = step_flops(shape, 8, seq).backward / 989e12
    ratio = data_parallel_ratio(8 * seq, n, peak_flops=989e12, bandwidth=450e9)
    assert sending / backward == pytest.approx(ratio, rel=0.1)
