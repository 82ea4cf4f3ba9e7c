"""Rows of documents, counted: how they are filled, what is cut, who computes how much, and whose keys nobody needs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from playbook.documents.packing import Stretch, best_fit
from playbook.documents.pieces import Documents

#: Lengths of the documents of a row, which they fill.
Row = tuple[int, ...]


def long_tailed(tokens: int, most: int, median: float = 1000, sigma: float = 1.6, seed: int = 0) -> list[int]:
    """Lengths drawn from a log-normal distribution, none above ``most``, until there are so many ``tokens``."""
    draw, found, total = random.Random(seed), list[int](), 0
    while total < tokens:
        found.append(min(most, math.ceil(draw.lognormvariate(math.log(median), sigma))))
        total += found[-1]
    return found


def by_best_fit(lengths: Sequence[int], room: int) -> list[Row]:
    """Rows as the trainer packs them; what is left of a row is its last document."""
    return [_filled([lengths[i] for i in row], room) for row in best_fit(list(lengths), room)]


def as_they_come(lengths: Sequence[int], room: int) -> list[Row]:
    """Rows filled in the order of the documents: one that has no room begins the next row."""
    rows: list[list[int]] = [[]]
    for n in lengths:
        if sum(rows[-1]) + n > room:
            rows.append([])
        rows[-1].append(n)
    return [_filled(row, room) for row in rows]


def _filled(row: list[int], room: int) -> Row:
    rest = room - sum(row)
    return (*row, rest) if rest else tuple(row)


def pairs(row: Sequence[int]) -> int:
    """Pairs of a query and a key of one document, the key not behind the query."""
    return sum(n * (n + 1) // 2 for n in row)


def mean_over_tokens(lengths: Sequence[int]) -> float:
    """Tokens of the document that a token is in, on average: Σl² over Σl."""
    return sum(n * n for n in lengths) / sum(lengths)


def cut_by_windows(documents: Sequence[Stretch], room: int) -> int:
    """How many documents have tokens in two windows or more, if a text is cut every ``room`` tokens."""
    return sum(one.start // room != (one.start + one.length - 1) // room for one in documents)


def busiest(documents: Documents) -> float:
    """Work of the busiest rank over the mean."""
    work = [documents.work(rank) for rank in range(documents.ranks)]
    return max(work) * documents.ranks / sum(work)


def needed(documents: Documents) -> float:
    """Of the keys that other ranks have: the share that a rank's queries see, on average."""
    seen, n = 0, documents.ranks
    for rank in range(n):
        for source in range(n):
            blocks = documents.blocks(rank, source) if source != rank else ()
            seen += sum(stop - start for start, stop in {(block.k_start, block.k_stop) for block in blocks})
    return seen / (documents.seq * (n - 1))


def placed(row: Row, ranks: int) -> dict[str, Documents]:
    """A row under each placement."""
    one = Documents("contiguous", sum(row), ranks, lengths=row)
    return {kind: replace(one, kind=kind) for kind in ("contiguous", "zigzag", "documents", "greedy")}
