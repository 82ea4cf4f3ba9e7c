"""Exercises of the chapter on packed documents."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from playbook_book.exercises.exercise import answers, function, number


@number(
    "packed-documents.busiest",
    "how much more than the mean the busiest of four ranks computes",
    praise="half of one long document has three quarters of its pairs, and short ones have next to none",
    otherwise="Count pairs: of rank 1, of the whole row, and divide the row's by four",
    tolerance=0.005,
)
def busiest() -> tuple[float, dict[float, str]]:
    from playbook.documents.pieces import Documents

    lengths = (32_768, *[1024] * 32)
    work = {
        kind: [Documents(kind, 65_536, 4, lengths=lengths).work(rank) for rank in range(4)]
        for kind in ("contiguous", "zigzag")
    }
    over = {kind: max(each) * 4 / sum(each) for kind, each in work.items()}
    mean = sum(work["contiguous"]) / 4
    return over["contiguous"], {
        1.0: "all have as many tokens; work is pairs, and those grow with the square of a document's length",
        7 / 4: "that is a sample of one document; rank 3 has short documents alone here",
        3.0: "almost: short documents have few pairs, but some",
        3 / 2: "that is over the mean of the two ranks that have the long document; the others count, too",
        3 / 4: "that is its share of the long document; how does it compare with the mean of four ranks?",
        over["zigzag"]: "that is a zigzag of the row; ranks have neighbouring tokens here",
        16_384
        * 16_385
        / 2
        / mean: "that is rank 0; rank 1 has as many tokens of the document, but each of them sees more",
        16_384**2 / mean: "the queries of rank 1 see the keys of rank 0, and those of their own before them",
    }


def _of_pairs() -> float:
    long, short = 32_768 * 32_769 // 2, 32 * 1024 * 1025 // 2
    return (long - 16_384 * 16_385 // 2) * 4 / (long + short)


answers("packed-documents.busiest", right=[_of_pairs()])

#: Lengths of a row's documents, multiples of 2·ranks; ranks; a rank.
CUT = [
    (lengths, ranks, rank)
    for lengths, ranks in (([8, 4], 2), ([12, 6, 18], 3), ([8, 16, 8], 4))
    for rank in range(ranks)
]


def _not_these(got: Any, right: list[int]) -> str:
    if not isinstance(got, list | tuple):
        return f"{got!r} is no list of tokens"
    if len(got) != len(right):
        return f"a rank has {len(right)} tokens, not {len(got)}"
    return f"{list(got)} are not its tokens: cut each document into 2·ranks parts, of which it has two"


@function(
    "packed-documents.zigzag",
    "a rank's tokens of a row, each document cut as a zigzag",
    cases=CUT,
    case="lengths {0}, rank {2} of {1}".format,
    praise="as many tokens for each rank, and as many pairs",
    otherwise=_not_these,
)
def zigzag(lengths: list[int], ranks: int, rank: int) -> list[int]:
    found, begin = list[int](), 0
    for n in lengths:
        part = n // (2 * ranks)
        for i in (rank, 2 * ranks - 1 - rank):
            found += range(begin + i * part, begin + (i + 1) * part)
        begin += n
    return found


def _by_tokens(lengths, ranks, rank):
    row = [(at * 2 * ranks // n, start + at) for start, n in _starts(lengths) for at in range(n)]
    return [token for part, token in row if part in (rank, 2 * ranks - 1 - rank)]


def _starts(lengths):
    return zip(accumulate(lengths, initial=0), lengths, strict=False)


def _parts(lengths, ranks, parts, *, offset=True):
    of_each = [(start * offset, n // (2 * ranks)) for start, n in _starts(lengths)]
    return [start + i * n + at for start, n in of_each for i in parts for at in range(n)]


answers(
    "packed-documents.zigzag",
    right=[_by_tokens],
    wrong={
        "that is a zigzag of the row, whatever documents are in it": lambda lengths, ranks, rank: zigzag(
            [sum(lengths)], ranks, rank
        ),
        "that is neighbouring tokens of the row": lambda lengths, ranks, rank: list(
            range(rank * sum(lengths) // ranks, (rank + 1) * sum(lengths) // ranks)
        ),
        "neighbouring tokens of each document: the last rank has the pairs": lambda lengths, ranks, rank: (
            _parts(lengths, ranks, (2 * rank, 2 * rank + 1))
        ),
        "those are positions in documents; tokens are counted from the row's beginning": (
            lambda lengths, ranks, rank: _parts(lengths, ranks, (rank, 2 * ranks - 1 - rank), offset=False)
        ),
        "the part from the front is there; where is the one from the back?": lambda lengths, ranks, rank: (
            _parts(lengths, ranks, (rank,))
        ),
        "the second part counts from the front, too": lambda lengths, ranks, rank: _parts(
            lengths, ranks, (rank, ranks + rank)
        ),
    },
)

#: Positions of a rank's tokens: from the beginning of a row on, out of the middle of a document, and with documents of
#: one token.
SHARDS = (
    ([0, 1, 2, 3, 0, 1, 0, 1],),
    ([4, 5, 6, 7, 8, 9, 10, 11],),
    ([4, 5, 6, 0, 1, 2, 3, 0],),
    ([2, 0, 0, 0, 1, 2, 0, 1],),
)


@function(
    "packed-documents.boundaries",
    "where the documents of a rank's tokens begin, and where the last one ends",
    cases=SHARDS,
    case="positions {0}".format,
    praise="borders of the rank's own tokens, wherever in a document they begin",
    otherwise="Borders count the rank's own tokens: from 0 up to how many it has",
    kind="repair",
)
def boundaries(positions: list[int]) -> list[int]:
    return [0, *(i for i, p in enumerate(positions) if i and p == 0), len(positions)]


def _as_found(positions):
    starts = [i for i, p in enumerate(positions) if p == 0 and i > 0]
    lengths = [positions[0], *(positions[i - 1] + 1 for i in starts), positions[-1] + 1]
    return list(accumulate(lengths))


def _by_steps(positions):
    starts = [i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1]
    return [0, *starts, len(positions)]


answers(
    "packed-documents.boundaries",
    right=[_by_steps],
    wrong={
        "a rank that begins in the middle of a document has no more tokens of it than are here": _as_found,
        "where the first document begins is missing: 0": lambda positions: boundaries(positions)[1:],
        "where the last document ends is missing": lambda positions: boundaries(positions)[:-1],
        "0 is there twice where the first token begins a document": lambda positions: [
            0,
            *(i for i, p in enumerate(positions) if p == 0),
            len(positions),
        ],
        "a document of one token is followed by one that begins at 0, too": lambda positions: [
            0,
            *(i for i in range(1, len(positions)) if positions[i] < positions[i - 1]),
            len(positions),
        ],
        "those are lengths; borders are their sums": lambda positions: [
            b - a for a, b in zip(boundaries(positions), boundaries(positions)[1:], strict=False)
        ],
        "the first border of a rank is 0, wherever in its document it begins": lambda positions: [
            positions[0],
            *(positions[0] + i for i in boundaries(positions)[1:]),
        ],
    },
)
