"""Wrong answers that readers of the chapter on collectives may well give, and what they are told."""

import pytest
import torch
import torch.distributed as dist

from playbook.collectives.plans import plan, rooted
from playbook.collectives.plans.replay import end
from playbook_book.exercises import grade


def one_friend(v):
    yield v.send(0, 0, 1)


def passes_on_what_it_lacks(v):
    yield v.send(0, 0, 1, 0, 1)
    yield v.send(0, 3, 2, 0, 1)


def only_for_eight(v):
    for step in range(14):
        for rank in range(min(7, v.ranks - 1)):
            chunk = step - rank
            if 0 <= chunk < min(8, v.ranks):
                yield v.send(step, rank, rank + 1, chunk, chunk + 1)


def chain_of_seven(v):
    for step in range(2 * (v.ranks - 1)):
        for rank in range(v.ranks - 2):
            chunk = step - rank
            if 0 <= chunk < v.ranks:
                yield v.send(step, rank, rank + 1, chunk, chunk + 1)


def as_ready(buckets, ready):
    for work in [dist.all_reduce(buckets[name], async_op=True) for name in ready]:
        work.wait()


def as_ready_and_waiting(buckets, ready):
    for name in ready:
        dist.all_reduce(buckets[name])


def never_waits(buckets, ready):
    global kept
    kept = [dist.all_reduce(buckets[name], async_op=True) for name in sorted(buckets)]


def only_one_rank_logs(buckets, ready):
    if dist.get_rank() == 0:
        dist.all_reduce(torch.zeros(3))
    in_one_order(buckets, ready)


def one_rank_more(buckets, ready):
    in_one_order(buckets, ready)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.zeros(1000))
        dist.all_reduce(torch.zeros(1000))


def in_one_order(buckets, ready):
    for work in [dist.all_reduce(buckets[name], async_op=True) for name in sorted(buckets)]:
        work.wait()


def all_send_first(x, world):
    y = torch.empty_like(x)
    dist.send(x, (world.rank + 1) % world.size)
    dist.recv(y, (world.rank - 1) % world.size)
    return y


def to_the_left(x, world):
    y = torch.empty_like(x)
    sending = dist.isend(x, (world.rank - 1) % world.size)
    dist.recv(y, (world.rank + 1) % world.size)
    sending.wait()
    return y


def own(x, world):
    return x


def from_rank_0(x, world):
    dist.broadcast(x, src=0)
    return x


def by_turns(x, world):
    y = torch.empty_like(x)
    for sender in range(world.size):
        if world.rank == sender:
            dist.send(x, (sender + 1) % world.size)
        elif world.rank == (sender + 1) % world.size:
            dist.recv(y, sender)
    return y


ONCE = 140 / 50


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("tree", ONCE, "that is one message"),
        ("tree", 99 * ONCE, "one node after the other"),
        ("tree", 100 * ONCE, "has the weights already"),
        ("tree", 6 * ONCE, "64 nodes have the weights"),
        ("tree", 8 * 7 * ONCE, "no bits to convert"),
        ("tree", 1.0, "1 is too small. How many nodes"),
        ("broadcast", one_friend, "ranks 2, 3, 4, 5, 6 and 7 are without some chunk"),
        ("broadcast", passes_on_what_it_lacks, "rank 3 has no chunk 0"),
        ("broadcast", chain_of_seven, "with 8 ranks, rank 7 is without some chunk"),
        ("broadcast", rooted.broadcast_binomial, "after 15.00 s; the tree needs 15.00"),
        ("broadcast", lambda v: [], "are without some chunk"),
        (
            "order",
            as_ready,
            "where ranks complete their buckets in different orders, bucket 'embedding' of rank 0 holds",
        ),
        ("order", as_ready_and_waiting, "where ranks complete their buckets in different orders"),
        ("order", never_waits, "where all ranks complete their buckets in the same order"),
        ("order", only_one_rank_logs, "calls of different sizes met"),
        ("order", one_rank_more, "the 3 ranks wait for each other, and were ended"),
        ("shift", all_send_first, "the 3 ranks wait for each other, and were ended"),
        ("shift", to_the_left, "of its right neighbour"),
        ("shift", own, "each returns its own tensor"),
        ("shift", from_rank_0, "not their left neighbour's"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"collectives.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [("tree", 7 * ONCE), ("broadcast", only_for_eight), ("order", in_one_order), ("shift", by_turns)],
)
def test_right_answers_pass(name, answer):
    assert grade(f"collectives.{name}", answer).right


def test_who_ends_with_a_result():
    """What the chapter says: reduce and gather end on the root alone, all others on every rank."""
    ranks = {
        collective: sum(any(chunks) for chunks in end(plan(collective, ranks=3, elements=3)))
        for collective in (
            "broadcast",
            "reduce",
            "all_reduce",
            "gather",
            "all_gather",
            "scatter",
            "reduce_scatter",
        )
    }
    assert {collective for collective, many in ranks.items() if many == 1} == {"reduce", "gather"}
    assert all(many in (1, 3) for many in ranks.values())
