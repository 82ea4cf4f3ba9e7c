"""Wrong answers that readers of the chapter on context parallelism may well give, and what they are told."""

import pytest
import torch

from playbook_book.exercises import grade

#: Layers, hops, tokens of a rank, key heads, width of a head; keys and values; bytes of forward and backward.
BYTES = 80 * 15 * 8192 * 8 * 128 * 2 * (2 + 2 + 4)


def mean_of_ranks(seq, ranks, rank):
    return seq * (seq + 1) // 2 // ranks


def not_itself(seq, ranks, rank):
    return sum(range(rank, seq, ranks))


def whole_rows(seq, ranks, rank):
    return seq * (seq // ranks)


def of_zigzag(seq, ranks, rank):
    part = seq // (2 * ranks)
    own = [*range(rank * part, (rank + 1) * part), *range(seq - (rank + 1) * part, seq - rank * part)]
    return sum(query + 1 for query in own)


def of_contiguous(seq, ranks, rank):
    own = seq // ranks
    return sum(query + 1 for query in range(rank * own, (rank + 1) * own))


def from_the_back(seq, ranks, rank):
    return sum(query + 1 for query in range(ranks - 1 - rank, seq, ranks))


def in_stripes(seq, ranks, rank):
    own = seq // ranks
    return own * (rank + 1) + ranks * own * (own - 1) // 2


def planted_positions(seq, ranks, rank):
    part = seq // (2 * ranks)
    first = torch.arange(rank * part, (rank + 1) * part)
    return torch.cat([first, first + part])


def from_zero(seq, ranks, rank):
    return torch.arange(seq // ranks)


def contiguous_offset(seq, ranks, rank):
    own = seq // ranks
    return torch.arange(rank * own, (rank + 1) * own)


def mirrored(seq, ranks, rank):
    part = seq // (2 * ranks)
    first = torch.arange(rank * part, (rank + 1) * part)
    return torch.cat([first, seq - 1 - first])


def one_part_off(seq, ranks, rank):
    part = seq // (2 * ranks)
    first = torch.arange(rank * part, (rank + 1) * part)
    return torch.cat([first, first + (2 * ranks - 2 * rank) * part])


def first_part_alone(seq, ranks, rank):
    part = seq // (2 * ranks)
    return torch.arange(rank * part, (rank + 1) * part)


def mended_positions(seq, ranks, rank):
    part = seq // (2 * ranks)
    own = (rank, 2 * ranks - 1 - rank)
    return torch.cat([torch.arange(i * part, (i + 1) * part) for i in own])


def merged(state, scores, values, *, old=None, top=None):
    """Merges a block; ``old(z, m, top)`` are the sums that output and denominator are rescaled by."""
    out, m, z = state
    top = torch.maximum(m, scores.amax(-1)) if top is None else top
    p = (scores - top[:, None]).exp()
    of_out, of_z = old(z, m, top)
    total = of_z + p.sum(-1)
    return (out * of_out[:, None] + p @ values) / total[:, None], top, total


def planted_merge(state, scores, values):
    return merged(state, scores, values, old=lambda z, m, top: (z, z))


def denominator_alone(state, scores, values):
    return merged(state, scores, values, old=lambda z, m, top: (z, z * (m - top).exp()))


def upside_down(state, scores, values):
    return merged(state, scores, values, old=lambda z, m, top: (z * (top - m).exp().nan_to_num(0, 0),) * 2)


def no_maximum(state, scores, values):
    return merged(state, scores, values, top=torch.zeros(len(scores)), old=lambda z, m, top: (z, z))


def mean_of_outputs(state, scores, values):
    out, m, z = state
    mine = scores.softmax(-1) @ values
    return (mine if z[0] == 0 else (out + mine) / 2), m, z + 1


def mended_merge(state, scores, values):
    return merged(state, scores, values, old=lambda z, m, top: (z * (m - top).exp(),) * 2)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", BYTES * 8, "keys and values have fewer"),
        ("bytes", BYTES * 16, "of one rank's tokens"),
        ("bytes", BYTES * 16 / 15, "once all ranks have seen them"),
        ("bytes", BYTES / 4, "that is the forward pass"),
        ("bytes", BYTES / 2, "half: either the values are missing"),
        ("bytes", BYTES * 3 / 4, "sums travel in fp32"),
        ("bytes", BYTES / 80, "that is one layer"),
        ("bytes", 1, "1 is too small. Who sends whose keys"),
        ("stripes", mean_of_ranks, "rank 0 of 2, 8 tokens: 18 is the mean of all ranks"),
        ("stripes", not_itself, "one pair too few for each query"),
        ("stripes", of_zigzag, "is the mean of all ranks, as in a zigzag"),
        ("stripes", of_contiguous, "its work in the contiguous placement"),
        ("stripes", from_the_back, "the work of the rank at the other end"),
        ("stripes", whole_rows, "32 is too many pairs"),
        ("stripes", lambda seq, ranks, rank: 0, "0 is too few pairs"),
        ("stripes", lambda seq, ranks, rank: None, "None is not a number of pairs"),
        (
            "positions",
            planted_positions,
            "right on one rank; on two, the loss agrees with one process to 4 digits, ",
        ),
        ("positions", from_zero, "right on one rank; on two, "),
        ("positions", contiguous_offset, "right on one rank; on two, "),
        ("positions", mirrored, "on one rank, "),
        ("positions", one_part_off, "there is no position 48"),
        ("positions", first_part_alone, "24 positions for 48 tokens"),
        (
            "rescale",
            planted_merge,
            "largest score in the first block; with larger scores in later blocks, the output is",
        ),
        ("rescale", denominator_alone, "with larger scores in later blocks, the output is off by"),
        ("rescale", upside_down, "with larger scores in later blocks, the output is off by"),
        ("rescale", no_maximum, "with scores around 1,000, it is not a number"),
        (
            "rescale",
            mean_of_outputs,
            "right with one block; with the largest score in the first block, the",
        ),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"context.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_right_answers():
    for name, answer in (
        ("bytes", BYTES),
        ("stripes", in_stripes),
        ("positions", mended_positions),
        ("rescale", mended_merge),
    ):
        assert grade(f"context.{name}", answer).right, name
