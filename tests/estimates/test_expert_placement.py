"""Experts replicated and packed onto ranks: by hand, against brute force, and what holds for any load."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook_book.expert_placement import balanced, in_order, place, replicate

rows = st.integers(0, 1000)


@st.composite
def problems(draw, experts: int = 12) -> tuple[list[int], int, int]:
    """Loads, ranks that divide the experts, slots of a rank."""
    ranks = draw(st.integers(1, 6))
    needed = draw(st.integers(1, max(1, experts // ranks)))
    # A few experts are hot, as they are in life.
    load = st.one_of(rows, st.integers(0, 5), st.sampled_from([5000, 20000]))
    loads = draw(st.lists(load, min_size=ranks * needed, max_size=ranks * needed))
    return loads, ranks, draw(st.integers(needed, len(loads)))


def test_by_hand():
    """Expert 0 has half of all rows and gets a replica on each of two ranks, and so does one of those with a sixth."""
    found = balanced([60, 20, 20, 20, 0, 0, 0, 0], ranks=2, slots=5)
    assert found.before.experts == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.before.rows == (120, 0)
    assert found.before.imbalance == 2.0
    assert found.counts == (2, 2, 1, 1, 1, 1, 1, 1)
    assert found.rows == (60, 60)  # 30 + 20 + 10
    assert found.imbalance == 1.0


def test_what_travels():
    found = balanced([30, 10], ranks=2, slots=2)
    assert found.experts == ((0, 1), (0, 1))
    assert found.moved == 2  # each rank gets the other's
    assert in_order([30, 10], 2).moved == 0


def test_a_node_of_deepseek_v3():
    """256 experts on 32 GPUs, one slot more on each (section 3.4.1), under a load that falls off as 1/n."""
    found = balanced([1e6 / (n + 1) ** 0.5 for n in range(256)], ranks=32, slots=9)
    assert sum(found.counts) == 288
    assert found.before.imbalance > 3
    assert found.imbalance < 1.02


@given(problems())
def test_every_slot_is_filled_and_every_expert_is_there(problem):
    loads, ranks, slots = problem
    found = balanced(loads, ranks, slots)
    assert [len(rank) for rank in found.experts] == [slots] * ranks
    assert all(len({*rank}) == slots for rank in found.experts)  # no expert twice
    assert min(found.counts) >= 1
    assert sum(found.counts) == ranks * slots
    assert sum(found.rows) == pytest.approx(sum(loads))
    assert 0 <= found.moved <= ranks * slots
    assert found.before.counts == (1,) * len(loads)


@given(problems())
def test_no_load_is_further_from_even_than_one_replica(problem):
    """Greedy: the busiest rank had the fewest rows before it got its last expert, or got it instead of more."""
    loads, ranks, slots = problem
    found = balanced(loads, ranks, slots)
    largest = max(load / count for load, count in zip(loads, found.counts, strict=True))
    assert max(found.rows) <= sum(loads) / ranks + largest * (1 - 1 / ranks) + 1e-6
    assert 1 - 1e-9 <= found.imbalance <= ranks + 1e-9


@given(problems(), st.randoms(use_true_random=False))
def test_names_do_not_matter(problem, random):
    loads, ranks, slots = problem
    order = list(range(len(loads)))
    random.shuffle(order)
    found, other = balanced(loads, ranks, slots), balanced([loads[e] for e in order], ranks, slots)
    assert sorted(other.rows) == pytest.approx(sorted(found.rows))
    assert Counter(zip(loads, found.counts, strict=True)) == Counter(
        (loads[e], count) for e, count in zip(order, other.counts, strict=True)
    )


@given(problems(), st.floats(0.001, 1000))
def test_the_unit_does_not_matter(problem, unit):
    loads, ranks, slots = problem
    scaled = balanced([load * unit for load in loads], ranks, slots)
    assert scaled.before.imbalance == pytest.approx(in_order(loads, ranks).imbalance)
    assert all(len(rank) == slots for rank in scaled.experts)


@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 4), st.integers(1, 3))
def test_no_counts_are_better_than_the_greedy_ones(loads, more, most):
    slots = min(len(loads) + more, most * len(loads))
    counts = replicate(loads, slots, most)
    assert sum(counts) == slots
    assert 1 <= min(counts) <= max(counts) <= most

    def fullest(counts):
        return max(load / count for load, count in zip(loads, counts, strict=True))

    others = itertools.product(range(1, most + 1), repeat=len(loads))
    assert fullest(counts) == min(fullest(other) for other in others if sum(other) == slots)


@given(st.lists(rows, min_size=1, max_size=20), st.integers(0, 30))
def test_more_slots_are_never_worse(loads, more):
    """One more slot is one more replica of one expert, and the fullest replica has no more rows than before."""
    fewer, counts = replicate(loads, len(loads) + more), replicate(loads, len(loads) + more + 1)
    assert sum(b - a for a, b in zip(fewer, counts, strict=True)) == 1
    assert all(a <= b for a, b in zip(fewer, counts, strict=True))
    largest = [max(n / c for n, c in zip(loads, found, strict=True)) for found in (fewer, counts)]
    assert largest[1] <= largest[0]


@given(problems())
def test_a_slot_for_every_expert_is_perfect(problem):
    loads, ranks, _ = problem
    assert balanced(loads, ranks, len(loads)).imbalance == pytest.approx(1.0)


def partitions(items: list[int], slots: int) -> list[list[list[int]]]:
    """All ways to put items into ranks of ``slots`` each, no two alike on one; ranks have no names."""
    if not items:
        return [[]]
    first, rest = items[0], items[1:]
    found = []
    for others in set(itertools.combinations(rest, slots - 1)):
        if len({first, *others}) == slots:
            left = list((Counter(rest) - Counter(others)).elements())
            found += [[[first, *others], *more] for more in partitions(left, slots)]
    return found


@given(problems(experts=6))
def test_brute_force_is_better_by_less_than_a_third(problem):
    """LPT's bound, 4/3 − 1/(3 · ranks) (Graham 1969), also with as many slots on each rank."""
    loads, ranks, slots = problem
    assume(ranks * slots <= 9)
    counts = replicate(loads, ranks * slots, ranks)
    found = place(loads, counts, ranks)
    each = [load / count for load, count in zip(loads, counts, strict=True)]

    def busiest(placed):
        return max(sum(each[e] for e in rank) for rank in placed)

    items = [e for e, count in enumerate(counts) for _ in range(count)]
    best = min(busiest(way) for way in partitions(items, slots))
    assert best - 1e-6 <= busiest(found) <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-6


def test_the_last_replicas_swap_their_way_in():
    """Two replicas are left, and two slots, both on the rank that has expert 0: one of the others makes room."""
    found = place([12, 3, 3, 3, 2], [1, 1, 1, 1, 2], 2)
    assert found == ((0, 1, 4), (2, 3, 4))


@given(st.integers(2, 5), st.lists(st.tuples(rows, st.integers(1, 5)), min_size=1, max_size=8))
def test_any_counts_find_their_places(ranks, experts):
    """Also such as `replicate` would not give, which need swaps more often."""
    loads, counts = [load for load, _ in experts], [min(count, ranks) for _, count in experts]
    loads += [0] * (-sum(counts) % ranks)
    counts += [1] * (len(loads) - len(counts))
    found = place(loads, counts, ranks)
    assert Counter(e for rank in found for e in rank) == Counter(dict(enumerate(counts)))
    assert {len(rank) for rank in found} == {len({*rank}) for rank in found} == {sum(counts) // ranks}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: balanced([], 1, 1), "loads must be a finite number of rows for each expert, got []"),
        (lambda: balanced([1, -2], 1, 2), "loads must be a finite number of rows for each expert, got [1, -2]"),
        (lambda: in_order([1, math.nan], 1), "loads must be a finite number of rows for each expert, got [1, nan]"),
        (lambda: balanced([1, 2, 3], 2, 2), "ranks must divide experts = 3 (1, 3), got 2"),
        (lambda: balanced([1, 2], 0, 2), "ranks must be at least 1, got 0"),
        (lambda: balanced([1, 2, 3, 4], 2, 1), "slots must be at least 2, got 1"),
        (lambda: balanced([1, 2, 3, 4], 2, 5), "slots must be at most 4, got 5"),
        (lambda: replicate([1, 2], 1), "slots must be at least 2, got 1"),
        (lambda: replicate([1, 2], 5, most=2), "slots must be at most 4, got 5"),
        (lambda: replicate([1, 2], 2, most=0), "most must be at least 1, got 0"),
        (lambda: place([1, 2], [1], 1), "counts must be a number for each of 2 experts, got 1"),
        (lambda: place([1, 2], [3, 1], 2), "replicas of an expert must be at most 2, got 3"),
        (lambda: place([1, 2], [0, 2], 2), "replicas of an expert must be at least 1, got 0"),
        (lambda: place([1, 2], [2, 1], 2), "ranks must divide replicas = 3 (1, 3), got 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused(call, words):
    with pytest.raises(ConfigError) as error:
        call()
    assert str(error.value) == words


def test_no_rows_at_all_are_even():
    assert balanced([0, 0], 2, 1).imbalance == 1.0
