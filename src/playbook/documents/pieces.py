"""Packed documents: which tokens of a row of documents a rank has, and which blocks of their attention it computes.

A row is several documents one behind the other, and a token sees those of its own before it: the mask is a triangle for
each document. Work grows with the squares of their lengths; cut over ranks as if it were one text, a row gives some of
them much more of it than others. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from playbook.errors import ConfigError
from playbook.layout.tokens import MaskBlock, TokenRanges

#: Pieces that a rank's share of a row is cut into, about, before they are given away one by one.
GREEDY_PIECES = 8


class Piece(NamedTuple):
    """Neighbouring tokens ``start:stop`` of the document that begins at ``document``."""

    start: int
    stop: int
    document: int

    @property
    def pairs(self) -> int:
        """Pairs of a query among them and a key that it sees."""
        before, own = self.start - self.document, self.stop - self.start
        return own * before + own * (own + 1) // 2


@dataclass(frozen=True)
class Documents(TokenRanges):
    """Documents of these ``lengths``, which add up to ``seq``, on ``ranks`` that all have the same number of tokens.

    ``kind`` is how they are cut. ``contiguous`` and ``zigzag`` cut the row, whatever is in it. ``documents`` cuts each
    document as a zigzag; tokens that 2·``ranks`` parts do not divide go to the ranks by turns (WLB-LLM, Wang et al. 2025,
    arXiv 2503.17924). ``greedy`` cuts them into pieces and gives the one with the most work left to the rank with the
    least, as MagiAttention does with the chunks of a mask (github.com/SandAI-org/MagiAttention). Raises ConfigError for
    lengths that do not add up.
    """

    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if sum(self.lengths) != self.seq or min(self.lengths, default=0) < 1:
            raise ConfigError(
                f"lengths of documents add up to {sum(self.lengths)}, but must be positive and fill seq={self.seq}"
            )
        if self.seq % self.ranks:
            raise ConfigError(f"seq is {self.seq}, but must be a multiple of {self.ranks} ranks")

    @property
    def whole(self) -> Documents:
        """All of them on one rank."""
        return replace(self, kind="contiguous", ranks=1)

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """Where each document is in the row."""
        return tuple(range(a, b) for a, b in pairwise(accumulate(self.lengths, initial=0)))

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of each rank, in order."""
        if self.kind == "documents":
            return self._by_document()
        if self.kind == "greedy":
            return self._greedy()
        return tuple(
            tuple(piece for part in super(Documents, self).ranges(rank) for piece in self._within(part))
            for rank in range(self.ranks)
        )

    def ranges(self, rank: int) -> tuple[range, ...]:
        return tuple(range(piece.start, piece.stop) for piece in self.pieces[rank])

    def blocks(self, rank: int, source: int) -> Iterator[MaskBlock]:
        """As `TokenRanges.blocks`: any number of rectangles and triangles, none across two documents."""
        if (rank, source) not in self._found:
            self._found[rank, source] = tuple(self._blocks(rank, source))
        return iter(self._found[rank, source])

    def _blocks(self, rank: int, source: int) -> Iterator[MaskBlock]:
        keys: dict[int, list[tuple[int, Piece]]] = {}
        for place, piece in _places(self.pieces[source]):
            keys.setdefault(piece.document, []).append((place, piece))
        for q_start, query in _places(self.pieces[rank]):
            for k_start, key in keys.get(query.document, ()):
                if key.start <= query.start:
                    stops = q_start + query.stop - query.start, k_start + key.stop - key.start
                    yield MaskBlock(q_start, stops[0], k_start, stops[1], causal=key == query)

    @cached_property
    def _found(self) -> dict[tuple[int, int], tuple[MaskBlock, ...]]:
        return {}  # every layer asks, and backward asks again

    def work(self, rank: int) -> int:
        """Pairs of query and key that a rank computes, whoever has the keys."""
        return sum(piece.pairs for piece in self.pieces[rank])

    def _within(self, part: range) -> Iterator[Piece]:
        """The pieces of a part of the row."""
        for span in self.spans:
            start, stop = max(part.start, span.start), min(part.stop, span.stop)
            if start < stop:
                yield Piece(start, stop, span.start)

    def _by_document(self) -> tuple[tuple[Piece, ...], ...]:
        n, turn = self.ranks, 0
        found: list[list[Piece]] = [[] for _ in range(n)]
        for span in self.spans:
            each, rest = divmod(len(span), 2 * n)
            owners = [*range(n), *reversed(range(n))]
            more = [0] * (
                2 * n
            )  # a token more in the first part of the ranks whose turn it is, then in the second
            for i in range(rest):
                rank = (turn + i) % n
                more[rank if i < n else 2 * n - 1 - rank] = 1
            turn += rest
            ends = accumulate((each + extra for extra in more), initial=span.start)
            for rank, (start, stop) in zip(owners, pairwise(ends), strict=True):
                if start < stop:
                    found[rank].append(Piece(start, stop, span.start))
        return tuple(map(tuple, found))

    def _greedy(self) -> tuple[tuple[Piece, ...], ...]:
        share = self.seq // self.ranks
        most = -(-share // GREEDY_PIECES)
        cut = (
            Piece(a, min(a + most, s.stop), s.start) for s in self.spans for a in range(s.start, s.stop, most)
        )
        waiting = sorted(cut, key=lambda piece: (piece.pairs, piece.start))
        found: list[list[Piece]] = [[] for _ in range(self.ranks)]
        room, work = [share] * self.ranks, [0] * self.ranks
        while waiting:
            piece = waiting.pop()
            rank = min((r for r in range(self.ranks) if room[r]), key=lambda r: (work[r], r))
            end = min(piece.stop, piece.start + room[rank])
            if end < piece.stop:  # what the rank has no room for is given away next
                waiting.append(piece._replace(start=end))
                piece = piece._replace(stop=end)
            found[rank].append(piece)
            room[rank] -= piece.stop - piece.start
            work[rank] += piece.pairs
        return tuple(tuple(sorted(pieces)) for pieces in found)


def _places(pieces: tuple[Piece, ...]) -> Iterator[tuple[int, Piece]]:
    """Pieces with where they begin among a rank's tokens."""
    begin = 0
    for piece in pieces:
        yield begin, piece
        begin += piece.stop - piece.start
