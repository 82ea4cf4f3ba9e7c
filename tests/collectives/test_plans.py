"""Plans against what the collectives promise, against the formulas of their docstrings, and against broken plans."""

import dataclasses
import doctest
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.collectives import CollectiveError
from playbook_book.collectives import plans
from playbook_book.collectives.closed_forms import ALGORITHMS as NAMES
from playbook_book.collectives.plans import ALGORITHMS, DEFAULT, Plan, plan
from playbook_book.replay import end, replay

ALL = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def any_plan(draw: st.DrawFn, least: int = 1) -> Plan:
    """A plan of any collective and algorithm; at least ``least`` elements per rank."""
    collective, name = draw(st.sampled_from(ALL))
    ranks = draw(st.integers(1, 17))
    root = draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0
    per_node = draw(st.sampled_from(divisors(ranks))) if name == "two_level" else None
    return plan(
        collective, name, ranks=ranks, root=root, ranks_per_node=per_node,
        elements=draw(st.integers(least * ranks, 8 * ranks)), itemsize=draw(st.sampled_from((1, 2, 4, 8))),
    )  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(any_plan(least=1))
def test_every_plan_ends_with_what_its_collective_promises(p):
    held = replay(p)[-1]
    for rank, promised in enumerate(end(p)):
        for chunk, ranks in enumerate(promised):
            assert not ranks or held[rank][chunk] == ranks


#: Algorithms that deliver some chunk to a rank that has it already.
REDUNDANT = {
    ("all_gather", "naive"),
    ("all_gather", "recursive_doubling"),
    ("broadcast", "scatter_all_gather"),
}


@settings(max_examples=200, deadline=None)
@given(
    any_plan(least=1).filter(lambda p: p.messages and (p.collective, p.algorithm) not in REDUNDANT), st.data()
)
def test_no_message_can_be_left_out(p, data):
    dropped = data.draw(st.sampled_from(p.messages))
    broken = dataclasses.replace(p, messages=tuple(m for m in p.messages if m != dropped))
    try:
        held = replay(broken)[-1]
    except CollectiveError:
        return  # a message would carry what its sender never got
    pairs = [pair for rank, promised in enumerate(end(p)) for pair in zip(held[rank], promised, strict=True)]
    assert any(promised and has != promised for has, promised in pairs)


@settings(max_examples=200, deadline=None)
@given(any_plan(least=0))
def test_messages_say_what_they_carry(p):
    for m in p.messages:
        assert m.source != m.target
        assert m.bytes == (m.stop - m.start) * p.itemsize > 0
        assert 0 <= m.start < m.stop
        assert 0 <= m.step < p.steps
    assert list(p.messages) == sorted(p.messages, key=lambda m: m.step)
    sent = sum(p.bytes_sent(rank) for rank in range(p.ranks))
    assert sent == sum(p.bytes_received(rank) for rank in range(p.ranks)) == sum(m.bytes for m in p.messages)
    for rank in range(p.ranks):
        steps = p.of_rank(rank)
        assert [m for step in steps for m in step] == [m for m in p.messages if rank in (m.source, m.target)]
        assert all(len({m.step for m in step}) == 1 for step in steps)


# (steps, bytes sent by the busiest rank, bytes sent by all) for a vector of K bytes that N divides.
def log2(n: int) -> int:
    return (n - 1).bit_length()


FORMULAS: dict[tuple[str, str], Callable[[int, float], tuple[float, float, float]]] = {
    ("broadcast", "naive"): lambda n, k: (n - 1, (n - 1) * k, (n - 1) * k),
    ("broadcast", "binomial"): lambda n, k: (log2(n), log2(n) * k, (n - 1) * k),
    ("reduce", "naive"): lambda n, k: (n - 1, k * (n > 1), (n - 1) * k),
    ("reduce", "binomial"): lambda n, k: (log2(n), k * (n > 1), (n - 1) * k),
    ("gather", "naive"): lambda n, k: (n - 1, k / n * (n > 1), (n - 1) * k / n),
    ("scatter", "naive"): lambda n, k: (n - 1, (n - 1) * k / n, (n - 1) * k / n),
    ("all_gather", "naive"): lambda n, k: (2 * (n - 1), (n - 1) * k, (n - 1) * k + (n - 1) * k / n),
    ("all_gather", "ring"): lambda n, k: (n - 1, (n - 1) * k / n, (n - 1) * k),
    ("reduce_scatter", "naive"): lambda n, k: (2 * (n - 1), max(k, (n - 1) * k / n) * (n > 1), (n - 1) * (k + k / n)),
    ("reduce_scatter", "ring"): lambda n, k: (n - 1, (n - 1) * k / n, (n - 1) * k),
    ("all_reduce", "naive"): lambda n, k: (2 * (n - 1), (n - 1) * k, 2 * (n - 1) * k),
    ("all_reduce", "ring"): lambda n, k: (2 * (n - 1), 2 * (n - 1) * k / n, 2 * (n - 1) * k),
    ("all_reduce", "binomial"): lambda n, k: (2 * log2(n), max(log2(n) * k, 2 * k * (n > 2)), 2 * (n - 1) * k),
    ("all_to_all", "naive"): lambda n, k: (n if n > 1 else 0, (n - 1) * k / n, (n - 1) * k),
    ("all_to_all", "pairwise"): lambda n, k: (n - 1, (n - 1) * k / n, (n - 1) * k),
}  # fmt: skip
OF_A_POWER_OF_TWO: dict[tuple[str, str], Callable[[int, float], tuple[float, float, float]]] = {
    ("gather", "binomial"): lambda n, k: (log2(n), k / 2 * (n > 1), log2(n) * k / 2),
    ("scatter", "binomial"): lambda n, k: (log2(n), (n - 1) * k / n, log2(n) * k / 2),
    ("all_gather", "recursive_doubling"): lambda n, k: (log2(n), (n - 1) * k / n, (n - 1) * k),
    ("reduce_scatter", "recursive_halving"): lambda n, k: (log2(n), (n - 1) * k / n, (n - 1) * k),
    ("all_reduce", "recursive_doubling"): lambda n, k: (log2(n), log2(n) * k, n * log2(n) * k),
    ("all_reduce", "halving_doubling"): lambda n, k: (2 * log2(n), 2 * (n - 1) * k / n, 2 * (n - 1) * k),
}


def counted(p: Plan) -> tuple[int, int, int]:
    sent = [p.bytes_sent(rank) for rank in range(p.ranks)]
    return p.steps, max(sent), sum(sent)


@pytest.mark.parametrize("key", [*FORMULAS, *OF_A_POWER_OF_TWO], ids=".".join)
def test_steps_and_bytes_are_those_of_the_formula(key):
    for n in range(1, 18):
        if key in OF_A_POWER_OF_TWO and n & (n - 1):
            continue
        p = plan(*key, ranks=n, elements=12 * n, itemsize=4)
        assert counted(p) == pytest.approx({**FORMULAS, **OF_A_POWER_OF_TWO}[key](n, 48 * n)), n


@settings(deadline=None)
@given(st.integers(1, 17), st.integers(0, 200), st.sampled_from((1, 2, 4, 8)))
def test_a_ring_sends_exactly_this_for_any_size(ranks, elements, itemsize):
    sizes = {"ranks": ranks, "elements": elements, "itemsize": itemsize}
    p = plan("all_reduce", "ring", **sizes)
    c = [(p.cuts[i + 1] - p.cuts[i]) * itemsize for i in range(ranks)]
    k = elements * itemsize
    for r in range(ranks):
        following = c[(r + 1) % ranks]
        assert p.bytes_sent(r) == (2 * k - c[r] - following if ranks > 1 else 0)
        assert plan("reduce_scatter", "ring", **sizes).bytes_sent(r) == k - c[r]
        assert plan("all_gather", "ring", **sizes).bytes_sent(r) == k - following
        assert plan("all_to_all", "pairwise", **sizes).bytes_sent(r) == k - c[r]


def test_no_all_reduce_gets_by_with_fewer_bytes_than_a_ring():
    for n in range(2, 17):
        least = sum(plan("all_reduce", "ring", ranks=n, elements=n).bytes_sent(r) for r in range(n))
        assert least == 2 * (n - 1) * n
        for name in ALGORITHMS["all_reduce"]:
            assert counted(plan("all_reduce", name, ranks=n, elements=n))[2] >= least


def test_folding_costs_two_steps_and_the_bytes_its_docstrings_say():
    n, k = 6, 6 * 12  # four take part, two are folded away
    doubling = plan("all_reduce", "recursive_doubling", ranks=n, elements=k)
    assert [doubling.bytes_sent(r) for r in range(n)] == [k, 3 * k, k, 3 * k, 2 * k, 2 * k]
    assert doubling.steps == 4
    halving = plan("reduce_scatter", "recursive_halving", ranks=n, elements=k)
    assert [halving.bytes_sent(r) for r in (0, 2)] == [k, k]
    assert halving.steps == 4


def test_two_levels_keep_most_bytes_inside_the_nodes():
    g, nodes, k = 4, 3, 12 * 40
    p = plan("all_reduce", "two_level", ranks=g * nodes, elements=k, ranks_per_node=g)
    for rank in range(p.ranks):
        mine = [m for m in p.messages if m.source == rank]
        outside = sum(m.bytes for m in mine if m.target // g != rank // g)
        assert outside == 2 * (nodes - 1) * k // (nodes * g)
        assert p.bytes_sent(rank) - outside == 2 * (g - 1) * k // g
        assert {m.target % g for m in mine if m.target // g != rank // g} == {rank % g}


def test_pairwise_exchange_never_sends_two_messages_to_one_rank_at_a_step():
    p = plan("all_to_all", "pairwise", ranks=9, elements=81)
    for step in range(p.steps):
        targets = [m.target for m in p.messages if m.step == step]
        assert len(targets) == len(set(targets)) == 9
    naive = plan("all_to_all", "naive", ranks=9, elements=81)
    assert all(len({m.target for m in naive.messages if m.step == step}) == 1 for step in range(9))


def test_nobody_leaves_a_barrier_before_all_have_come():
    for n in range(2, 18):
        p = plan("barrier", ranks=n)
        assert p.steps == math.ceil(math.log2(n))
        assert replay(p)[-1] == [[frozenset(range(n))]] * n
        assert replay(p)[-2] != [[frozenset(range(n))]] * n


def test_replay_refuses_plans_that_are_wrong():
    p = plan("all_reduce", "ring", ranks=4, elements=4)
    again = dataclasses.replace(p, messages=(*p.messages, p.messages[0]._replace(step=p.steps)))
    with pytest.raises(CollectiveError, match="would count ranks"):
        replay(again)
    p = plan("broadcast", "binomial", ranks=4, elements=4)
    backwards = dataclasses.replace(
        p, messages=tuple(m._replace(source=m.target, target=m.source) for m in p.messages)
    )
    with pytest.raises(CollectiveError, match="has no chunk"):
        replay(backwards)
    p = plan("all_gather", "ring", ranks=2, elements=2)
    clash = dataclasses.replace(p, messages=(p.messages[0], p.messages[1]._replace(start=0, stop=1, into=0)))
    with pytest.raises(CollectiveError, match=r"has no chunk|overwrites"):
        replay(clash)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"collective": "allreduce"}, "unknown collective 'allreduce'; did you mean all_reduce"),
        ({"algorithm": "rings"}, "did you mean ring"),
        ({"ranks": 0}, "ranks must be at least 1, got 0"),
        ({"elements": -1}, "elements must be at least 0, got -1"),
        ({"collective": "reduce", "root": 4}, "root must be a rank of the group, 0 to 3, got 4"),
        ({"algorithm": "two_level", "ranks_per_node": 3}, "ranks_per_node must divide the 4 ranks of the group, got 3"),
        ({"algorithm": "ring", "ranks_per_node": 2}, "ranks_per_node is for the algorithm two_level, not for ring"),
    ],
)  # fmt: skip
def test_bad_requests_end_with_one_sentence(wrong, sentence):
    arguments = {"collective": "all_reduce", "algorithm": None, "ranks": 4, "elements": 8, "root": 0, **wrong}
    with pytest.raises(CollectiveError, match=sentence):
        plan(arguments.pop("collective"), arguments.pop("algorithm"), **arguments)


def test_defaults_name_algorithms_and_the_listing_of_the_package_is_true():
    assert all(name in ALGORITHMS[collective] for collective, name in DEFAULT.items())
    assert {kind: set(names) for kind, names in NAMES.items()} == {k: set(a) for k, a in ALGORITHMS.items()}
    assert all(next(iter(algorithms)) == "naive" for algorithms in ALGORITHMS.values())
    assert doctest.testmod(plans).attempted == 1
    assert doctest.testmod(plans).failed == 0
