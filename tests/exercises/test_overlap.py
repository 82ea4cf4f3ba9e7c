"""Wrong answers that readers of the chapter on overlap may well give, and what they are told."""

import pytest

from playbook.estimates.overlap_ratios import tensor, zero3
from playbook.layout import Layout
from playbook.shapes import load
from playbook_book.exercises import grade
from playbook_book.exercises.overlap import _CASES

RIGHT = 63 / 64 * 700e12 / (2 * 40e9)


def most_ranks(weights, hidden, flops, bandwidth):
    return 1 + int(weights * bandwidth / (4 * hidden * flops))


def in_elements(weights, hidden, flops, bandwidth):
    return 1 + int(weights * bandwidth / (2 * hidden * flops))


def one_message(weights, hidden, flops, bandwidth):
    return 1 + int(weights * bandwidth / (hidden * flops))


def without_itself(weights, hidden, flops, bandwidth):
    return int(weights * bandwidth / (4 * hidden * flops))


def not_rounded(weights, hidden, flops, bandwidth):
    return 1 + weights * bandwidth / (4 * hidden * flops)


def as_a_float(weights, hidden, flops, bandwidth):
    return float(most_ranks(weights, hidden, flops, bandwidth))


def nothing(weights, hidden, flops, bandwidth):
    return None


def everything(weights, hidden, flops, bandwidth):
    return 1024


def prefetched(blocks, gather, run, free):
    coming = gather(0)
    for i in range(blocks):
        coming.wait()
        if i + 1 < blocks:
            coming = gather(i + 1)
        run(i)
        free(i)


def planted(blocks, gather, run, free):
    for i in range(blocks):
        gather(i).wait()
        run(i)
        free(i)


def waits_too_early(blocks, gather, run, free):
    gather(0).wait()
    for i in range(blocks):
        if i + 1 < blocks:
            gather(i + 1).wait()
        run(i)
        free(i)


def all_at_once(blocks, gather, run, free):
    coming = [gather(i) for i in range(blocks)]
    for i, one in enumerate(coming):
        one.wait()
        run(i)
        free(i)


def beyond_the_end(blocks, gather, run, free):
    coming = gather(0)
    for i in range(blocks):
        coming.wait()
        coming = gather(i + 1)
        run(i)
        free(i)


def never_frees(blocks, gather, run, free):
    prefetched(blocks, gather, run, lambda i: None)


def never_waits(blocks, gather, run, free):
    for i in range(blocks):
        gather(i)
        run(i)
        free(i)


def backwards(blocks, gather, run, free):
    for i in reversed(range(blocks)):
        gather(i).wait()
        run(i)
        free(i)


def frees_first(blocks, gather, run, free):
    for i in range(blocks):
        gather(i).wait()
        free(i)
        run(i)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("gathers", RIGHT), ("gathers", 8750), ("tensor", most_ranks), ("prefetch", prefetched)],
)
def test_right_answers(name, answer):
    verdict = grade(f"overlap.{name}", answer)
    assert verdict.right, verdict.text


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("gathers", 2 * RIGHT, "a weight is one byte here"),
        ("gathers", RIGHT * 4 / 7, "less time"),
        ("gathers", RIGHT * 8 / 7, "in bf16"),
        ("gathers", RIGHT / 63, "one shard"),
        ("gathers", RIGHT / 2, "hide behind forward"),
        ("gathers", 10, "too small. Write both times"),
        ("tensor", in_elements, "as if half as much were sent"),
        ("tensor", one_message, "as if a quarter as much were sent"),
        ("tensor", without_itself, "one rank fewer"),
        ("tensor", not_rounded, "round down"),
        ("tensor", as_a_float, "as an int"),
        ("tensor", nothing, "expected a number of ranks"),
        ("tensor", everything, "too many"),
        ("prefetch", planted, "with 2 blocks, block 1 was asked for when block 0 had run"),
        ("prefetch", waits_too_early, "block 1 was waited for before block 0 ran"),
        ("prefetch", all_at_once, "with 5 blocks, 5 blocks were in memory at a time"),
        ("prefetch", beyond_the_end, "block 1 was asked for, but there are only 0 to 0"),
        ("prefetch", never_frees, "block 0 was never freed"),
        ("prefetch", never_waits, "before its gather had been waited for"),
        ("prefetch", backwards, "with 2 blocks, the blocks ran in the order [1, 0]"),
        ("prefetch", frees_first, "was freed before it ran"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"overlap.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_the_graders_agree_with_the_library():
    one = zero3(load("llama3-8b"), Layout(dp=64), round(RIGHT), weight_bytes=1)
    assert one.ratio(peak_flops=700e12, bandwidth=40e9) == pytest.approx(1, rel=1e-3)
    shape = load("llama3-8b")
    weights = 2 * shape.hidden * (shape.hidden + 1024) + 3 * shape.hidden * shape.ffn_dim
    for speed, bandwidth in ((500e12, 400e9), (900e12, 40e9)):
        most = most_ranks(weights, shape.hidden, speed, bandwidth)
        for tp in (2, 4, 8, 16, 32):
            ratio = tensor(shape, Layout(tp=tp, sp=True), 4096).ratio(peak_flops=speed, bandwidth=bandwidth)
            assert (ratio <= 1) == (tp <= most), tp


def test_no_case_is_on_the_border():
    """Where rounding would decide, a right formula written in another order would fail."""
    for weights, hidden, speed, bandwidth in _CASES:
        exact = weights * bandwidth / (4 * hidden * speed)
        assert abs(exact - round(exact)) > 1e-3
