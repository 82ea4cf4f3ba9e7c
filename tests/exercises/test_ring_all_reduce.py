"""Wrong answers that readers of the chapter on the ring all-reduce may well give, and what they are told."""

import pytest

from playbook.hardware import load
from playbook.planning.communication import Network, closed_form
from playbook_book.exercises import grade

GIB = 2**30
BYTES = 2 * 63 / 64 * 100e6  # that a rank sends of 100 MB


def one_way(step, rank, ranks):
    return (rank - step) % ranks, None


def own_chunk_for_ever(step, rank, ranks):
    return rank, rank


def signs_exchanged(step, rank, ranks):
    return (rank + step) % ranks, (rank - step) % ranks


def both_at_the_last_step(step, rank, ranks):
    return (rank - step) % ranks, (rank + step) % ranks


def never_both_at_the_end(step, rank, ranks):
    left = (rank + step) % ranks if step < ranks // 2 - 1 else None
    return (rank - step) % ranks, left


def no_modulo(step, rank, ranks):
    return rank - step, rank + step


def one_chunk(step, rank, ranks):
    return (rank - step) % ranks


def right_directions(step, rank, ranks):
    left = (rank + step) % ranks if step < (ranks - 1) // 2 else None
    return (rank - step) % ranks, left


def planted(x, exchange, rank, ranks):
    for step in range(ranks - 1):
        comes = exchange(x[(rank - step) % ranks])
        x[(rank - step - 1) % ranks] += comes
    for step in range(ranks - 1):
        comes = exchange(x[(rank - step - 1) % ranks])
        x[(rank - step) % ranks] = comes


def mended(x, exchange, rank, ranks):
    for step in range(ranks - 1):
        comes = exchange(x[(rank - step) % ranks])
        x[(rank - step - 1) % ranks] += comes
    for step in range(ranks - 1):
        comes = exchange(x[(rank - step + 1) % ranks])
        x[(rank - step) % ranks] = comes


def adds_twice(x, exchange, rank, ranks):
    for step in range(2 * (ranks - 1)):
        comes = exchange(x[(rank - step) % ranks])
        x[(rank - step - 1) % ranks] += comes


def half_a_ring(x, exchange, rank, ranks):
    for step in range(ranks - 1):
        comes = exchange(x[(rank - step) % ranks])
        x[(rank - step - 1) % ranks] += comes


def all_around(x, exchange, rank, ranks):
    for chunk in range(ranks):
        comes = x[chunk]
        for _ in range(ranks - 1):
            comes = exchange(comes)
            x[chunk] += comes


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("wait", GIB / 463.6e6, "takes the reported number for K/t"),
        ("wait", 1.75 * GIB / 463.6e9, "in seconds"),
        ("wait", 1.75 * 1e9 / 463.6e6, "1 GiB is 2³⁰ bytes"),
        ("wait", 7 / 8 * GIB / 463.6e6, "one trip around the ring"),
        ("wait", 2 * 1.75 * GIB / 463.6e6, "counts both trips"),
        ("wait", 100, "100 is too large. Solve the definition"),
        ("nodes", 96 * 3.4e-3 + 30 * 14e-3 + BYTES / 50e6, "a node has four adapters"),
        ("nodes", 96 * 3.4e-3 + 30 * 14e-3 + BYTES / 400e6, "four adapters each"),
        ("nodes", 112 * 3.4e-3 + 14 * 14e-3 + BYTES / 400e6, "eight nodes of eight"),
        ("nodes", 126 * 14e-3 + BYTES / 200e6, "not every hop crosses"),
        ("nodes", 126 * 3.4e-3 + BYTES / 200e6, "some of the hops cross"),
        ("nodes", 94 * 3.4e-3 + 32 * 14e-3 + BYTES / 200e6, "2(m − 1) crossings"),
        ("nodes", BYTES / 200e6, "add the latencies"),
        ("directions", one_way, "3 ranks: after 1 step rank 0 still lacks 1 chunk"),
        ("directions", own_chunk_for_ever, "2 ranks, step 0: rank 1 is sent chunk 0, which it already has"),
        ("directions", signs_exchanged, "2 ranks, step 0: rank 1 is sent chunk 0, which it already has"),
        ("directions", both_at_the_last_step, "rank 1 is sent chunk 0, which it already has: wasted bytes"),
        ("directions", never_both_at_the_end, "3 ranks: after 1 step rank 0 still lacks 1 chunk"),
        ("directions", no_modulo, "which it already has: wasted bytes"),
        ("directions", one_chunk, "return two things"),
        ("phases", planted, "right with 2 ranks; with 3 ranks, rank 0 ends with"),
        ("phases", adds_twice, "with 2 ranks, rank 0 ends with"),
        ("phases", half_a_ring, "with 2 ranks, rank 0 ends with"),
        ("phases", all_around, "rank 0 of 3 sent 6 chunks; 4 are enough"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"ring-all-reduce.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def of_four_a_node() -> float:
    network = Network.of(load("h100-8"), ranks_per_node=4)
    cost = closed_form("all_reduce", "ring", 64, network)
    assert cost is not None
    return cost.time(100e6, network) * 1e3


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("wait", 1.75 * GIB / 463.6e6),
        ("nodes", of_four_a_node()),
        ("directions", right_directions),
        ("phases", mended),
    ],
)
def test_right_answers(name, answer):
    assert grade(f"ring-all-reduce.{name}", answer).right
