"""Blocks of threads on the CPU: results, races whatever the order, barriers that not all threads reach."""

from __future__ import annotations

import pytest

from playbook.errors import ConfigError
from playbook_book.block import run
from playbook_book.kernels.warps import Dim

ORDERS = ("forward", "backward", 0, 1)


def reverse(t, x, y, s):
    s[t.x] = x[t.x]
    yield
    y[t.x] = s[t.block_dim.x - 1 - t.x]


def reverse_without_barrier(t, x, y, s):
    s[t.x] = x[t.x]
    y[t.x] = s[t.block_dim.x - 1 - t.x]


def halves(t, s):
    stride = t.block_dim.x // 2
    while stride:
        if t.x < stride:
            s[t.x] += s[t.x + stride]
        yield
        stride //= 2


def total(t, x, y, s):
    s[t.x] = x[t.x]
    yield
    yield from halves(t, s)
    y[t.x] = s[0]


@pytest.mark.parametrize("order", ORDERS)
def test_what_barriers_keep_apart(order):
    x, y = list(range(64)), [None] * 64
    ran = run(reverse, Dim(64), x, y, shared={"s": 64}, order=order)
    assert (y, ran.races, ran.barriers) == (x[::-1], [], 1)
    ran = run(total, Dim(64), x, y, shared={"s": 64}, order=order)
    assert (y, ran.races, ran.barriers) == ([sum(x)] * 64, [], 1 + 6)


@pytest.mark.parametrize("order", ORDERS)
def test_a_race_is_found_in_any_order(order):
    ran = run(reverse_without_barrier, Dim(4), [1, 2, 3, 4], [0] * 4, shared={"s": 4}, order=order)
    assert {(race.writer, race.other, race.other_writes) for race in ran.races} == {
        (0, 3, False), (1, 2, False), (2, 1, False), (3, 0, False)
    }  # fmt: skip


def test_a_race_says_who():
    ran = run(reverse_without_barrier, Dim(2), [1, 2], [0, 0], shared={"s": 2})
    assert str(ran.races[0]) == "thread 1 writes s[1], which thread 0 reads between the same two barriers"

    def all_write(t, s):
        s[0] = t.x
        s[0] = t.x

    assert str(run(all_write, Dim(2), shared={"s": 1}).races[0]).startswith(
        "thread 1 writes s[0], which thread 0 writes"
    )


def test_one_thread_does_not_race_with_itself_nor_readers_with_each_other():
    def kernel(t, y, s):
        if t.x == 0:
            s[0] = 1.0
            s[0] += 1.0
        yield
        y[t.x] = s[0]

    y = [0.0] * 3
    assert (run(kernel, Dim(3), y, shared={"s": 1}).races, y) == ([], [2.0] * 3)


def test_what_is_not_written_is_not_a_number():
    y = [0.0]

    def kernel(t, y, s):
        y[0] = s[0]

    run(kernel, Dim(1), y, shared={"s": 1})
    assert y[0] != y[0]


def test_barriers_that_not_all_threads_reach():
    def inside_a_branch(t, s):
        if t.x < 2:
            yield
        s[t.x] = 0.0

    def two_of_them(t, s):
        if t.x < 2:
            yield
        else:
            yield

    with pytest.raises(ConfigError, match="while thread 0 waits at one, thread 2 is at its end"):
        run(inside_a_branch, Dim(4), shared={"s": 4})
    with pytest.raises(ConfigError, match="while thread 0 waits at one, thread 2 is at another one"):
        run(two_of_them, Dim(4), shared={"s": 4})


@pytest.mark.parametrize("place", [-1, 4])
def test_places_outside(place):
    def kernel(t, s):
        s[place] = 0.0

    with pytest.raises(ConfigError, match=f"place must be 0 to 3 in s, got {place}"):
        run(kernel, Dim(1), shared={"s": 4})
