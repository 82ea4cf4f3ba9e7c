"""Sectors, bank conflicts and divergence beside values worked out by hand."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as some

from playbook.errors import ConfigError
from playbook_book.kernels.warps import (
    Counted,
    Dim,
    Thread,
    banks,
    branch,
    count,
    load,
    passes,
    sectors,
    shared,
    store,
    touched,
)


def one_warp(kernel, threads: int = 32) -> Counted:
    return count(kernel, Dim(1), Dim(threads))


@pytest.mark.parametrize(
    ("index", "size", "expected"),
    [
        (lambda i: i, 4, 4),  # 128 bytes side by side
        (lambda i: i + 1, 4, 5),  # the same, beginning inside of a sector
        (lambda i: 31 - i, 4, 4),  # the order among threads does not matter
        (lambda i: 0, 4, 1),  # all want the same
        (lambda i: 2 * i, 4, 8),
        (lambda i: 8 * i, 4, 32),  # a sector for each
        (lambda i: 1000 * i, 4, 32),
        (lambda i: i, 2, 2),
        (lambda i: i, 1, 1),
        (lambda i: i, 16, 16),
        (lambda i: i // 16 * 64 + i % 16, 4, 4),  # two rows of 16
    ],
)
def test_sectors_of_a_request(index, size, expected):
    assert sectors([load("x", index(i), size) for i in range(32)]) == expected


@pytest.mark.parametrize(
    ("index", "size", "expected"),
    [
        (lambda i: i, 4, 1),
        (lambda i: 0, 4, 1),  # broadcast
        (lambda i: i // 16, 4, 1),  # two words in two banks
        (lambda i: i // 16 * 32, 4, 2),  # two words in one
        (lambda i: 32 * i, 4, 32),  # a column of 32 × 32
        (lambda i: 33 * i, 4, 1),  # a column of 32 × 33
        (lambda i: i, 2, 1),  # two threads to a word
        (lambda i: 64 * i, 2, 32),
        (lambda i: i, 8, 2),  # 256 bytes come in two passes
        (lambda i: i, 16, 4),
        (lambda i: 8 * i, 16, 32),  # 8 rows of 128 bytes at a time: all in four banks
        (lambda i: 9 * i, 16, 4),  # rows 16 bytes longer
    ],
)
def test_passes_of_shared_memory(index, size, expected):
    assert passes([shared("s", index(i), size) for i in range(32)]) == expected


@given(some.integers(0, 200), some.integers(0, 40))
def test_a_stride_conflicts_by_its_greatest_common_divisor_with_32(stride, offset):
    expected = gcd(stride, 32) if stride else 1
    assert passes([shared("s", offset + stride * i) for i in range(32)]) == expected


@given(some.integers(1, 8), some.integers(0, 7))
def test_a_stride_touches_the_sectors_it_covers(stride, offset):
    """Strides of up to a sector leave none out between the first and the last."""
    last = 4 * (offset + 31 * stride) // 32
    assert sectors([load("x", offset + stride * i) for i in range(32)]) == last + 1


def test_threads_that_idle_take_no_part():
    lonely = [None] * 31 + [shared("s", 5, 16)]
    assert (passes(lonely), sectors(lonely)) == (1, 1)
    two = [shared("s", 0, 16), *[None] * 14, shared("s", 8, 16), *[None] * 16]
    assert passes(two) == 2  # the same banks, but served in two parts in any case


def test_which_sectors_and_which_banks():
    assert touched([load("x", 8 * i + 7) for i in range(4)]) == {0, 1, 2, 3}
    assert banks([shared("s", i) for i in (0, 32, 33, 0)]) == [{0: {0, 32}, 1: {33}}]
    first, second = banks([shared("s", i, 8) for i in range(32)])
    assert (first, second) == ({b: {b} for b in range(32)}, {b: {b + 32} for b in range(32)})
    assert (touched([None] * 32), banks([None] * 32), passes([None] * 32)) == (set(), [], 0)


def test_branches_that_a_warp_agrees_on_cost_nothing():
    def by(decide):
        def kernel(t: Thread):
            yield branch("yes" if decide(t.x) else "no")

        return kernel

    assert one_warp(by(lambda i: i % 2)).active == {"no": 0.5, "yes": 0.5}
    assert one_warp(by(lambda i: i % 2)).divergence == 0.5
    assert one_warp(by(lambda i: i == 0)).active == {"yes": 1 / 32, "no": 31 / 32}
    whole = one_warp(by(lambda i: i < 32), threads=64)
    assert (whole.active, whole.divergence) == ({"yes": 1.0, "no": 1.0}, 0.0)


def test_loops_meet_round_by_round():
    """Thread i goes round i + 1 times: after the first round one fewer each."""

    def triangle(t: Thread):
        for r in range(t.x + 1):
            yield branch("loop")
            yield load("x", 32 * r + t.x)

    counted = one_warp(triangle)
    assert counted.costs["load", "x"].requests == 32
    assert counted.active["loop"] == (32 * 33 / 2) / (32 * 32)
    assert counted.costs["load", "x"].active == 32 * 33 / 2


def test_a_launch_is_the_sum_of_its_warps():
    def copy(t: Thread):
        row, column = t.block.y * t.block_dim.y + t.y, t.block.x * t.block_dim.x + t.x
        yield load("x", row * 48 + column)
        yield store("y", row * 48 + column)

    whole = count(copy, Dim(3, 2), Dim(16, 4))  # 8 × 48; a warp has two rows of 16
    assert whole.sectors == 2 * 8 * 48 * 4 // 32
    assert (whole.efficiency, whole.sectors_per_request) == (1.0, 4.0)
    assert count(copy, Dim(3, 2), Dim(16, 4), warps=[1]).sectors == whole.sectors // 2
    assert one_warp(copy, threads=40).costs["load", "x"].active == 40  # the second warp has 8 threads
    assert (whole.bank_conflicts, whole.divergence) == (0, 0.0)


def test_what_is_refused():
    with pytest.raises(ConfigError, match="has 2048 threads, but must have 1 to 1024"):
        count(lambda t: iter(()), Dim(1), Dim(64, 32))
    with pytest.raises(ConfigError, match="x is accessed at byte 12 with 12 bytes"):
        sectors([load("x", 1, 12)])
