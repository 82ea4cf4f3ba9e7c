"""Wrong answers that readers of the chapter on memory access may well give, and what they are told."""

import math
import operator

import pytest

from playbook_book.exercises import grade


def row_by_row(row, column):
    return row * 8 + column


def padded(row, column):
    return row * 9 + column


def by_the_whole_row(row, column):
    return row * 8 + (column ^ row)


def rows_side_by_side(row, column):
    return column * 64 + row


def same_for_all(row, column):
    return row * 8


def rotated_by_half(row, column):
    return row * 8 + (column + row // 2) % 8


def with_a_float(row, column):
    return row * 8 + column / 1


def swizzled(row, column):
    return row * 8 + (column ^ row % 8)


def rotated(row, column):
    return row * 8 + (column + row) % 8


def halves(t, s, combine):
    stride = t.block_dim.x // 2
    while stride:
        if t.x < stride:
            s[t.x] = combine(s[t.x], s[t.x + stride])
        yield
        stride //= 2


def softmax(before=0, between=0, branch=False, after=1):
    """The kernel with so many barriers before the maximum is read, after that, and before the sum."""

    def kernel(t, x, y, s):
        s[t.x] = x[t.x]
        yield
        yield from halves(t, s, max)
        for _ in range(before):
            yield
        top = s[0]
        for _ in range(between):
            yield
        if branch and t.x:
            yield
        s[t.x] = mine = math.exp(x[t.x] - top)
        for _ in range(after):
            yield
        yield from halves(t, s, operator.add)
        y[t.x] = mine / s[0]

    return kernel


def without_any(t, x, y, s):
    s[t.x] = x[t.x]
    s[t.x] = mine = math.exp(x[t.x] - s[0])
    y[t.x] = mine / s[0]


def everybody_reads_everything(t, x, y, s):
    top = max(x[i] for i in range(32))
    s[t.x] = mine = math.exp(x[t.x] - top)
    yield
    yield from halves(t, s, operator.add)
    y[t.x] = mine / s[0]


def not_divided(t, x, y, s):
    y[t.x] = math.exp(x[t.x])


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("sectors", 32, "that is one of the nine loads"),
        ("sectors", 36, "what nine arrays would cost"),
        ("sectors", 324, "one load does not touch all of them"),
        ("sectors", 288 * 32, "that is in bytes"),
        ("sectors", 100, "100 is too small. In one load, how far apart"),
        ("padding", 32, "that is without padding"),
        ("padding", 1, "rows of 33 words"),
        ("padding", 8, "the number of different banks"),
        ("padding", 2, "a bank is 4 bytes wide"),
        ("swizzle", row_by_row, "reading column 0 of rows 0 to 31 takes 32"),
        ("swizzle", padded, "chunk(57, 0) is 513, outside the tile's 512 places"),
        ("swizzle", by_the_whole_row, "outside the tile's 512 places"),
        ("swizzle", rows_side_by_side, "writing rows 0 to 3 takes 32 wavefronts"),
        ("swizzle", same_for_all, "chunks (0, 0) and (0, 1) lie in the same place, 0"),
        ("swizzle", rotated_by_half, "reading column 0 of rows 0 to 31 takes 8"),
        ("swizzle", with_a_float, "chunk(0, 0) is 0.0, but a place is a whole number"),
        (
            "race",
            softmax(),
            "right in this order of threads, but thread 0 writes s[0], which thread 31 reads",
        ),
        ("race", softmax(before=1), "right in this order of threads, but thread 0 writes s[0]"),
        ("race", softmax(branch=True), "while thread 0 waits at one, thread 1 is at another one"),
        ("race", softmax(between=1, after=0), "but thread 16 writes s[16], which thread 0 reads"),
        ("race", without_any, "wrong: thread 0 writes s[0]"),
        ("race", everybody_reads_everything, "right, but the threads read x 1056 times"),
        ("race", not_divided, "no race, but the result is not the softmax of x"),
        ("race", softmax(before=1, between=1), "14 barriers are more than it needs"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"memory-access.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("sectors", 288),
        ("padding", 4),
        ("swizzle", swizzled),
        ("swizzle", rotated),
        ("race", softmax(between=1)),
    ],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"memory-access.{name}", answer).right
