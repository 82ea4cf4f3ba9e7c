"""Which tokens a context-parallel rank has, and which blocks of the mask it computes: the geometry, without tensors.

``parallel/context.py`` computes these blocks, the ring-attention widget draws them. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook._checks import check_divides, check_int, divisors, unknown
from playbook.errors import ConfigError, LayoutError
from playbook.layout.fields import CONTEXT, Fields

if TYPE_CHECKING:
    from playbook.shapes import ModelShape

#: Which tokens of a sample a rank has.
PLACEMENT = ("contiguous", "zigzag")
#: And where samples are packed documents (`documents.pieces`).
OF_DOCUMENTS = ("documents", "greedy")


@dataclass(frozen=True)
class MaskBlock:
    """Queries ``q_start:q_stop`` and keys ``k_start:k_stop`` of what two ranks have.

    ``causal``: they are the same tokens, and each sees those before it and itself.
    """

    q_start: int
    q_stop: int
    k_start: int
    k_stop: int
    causal: bool = False

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it may see."""
        queries, keys = self.q_stop - self.q_start, self.k_stop - self.k_start
        return queries * (queries + 1) // 2 if self.causal else queries * keys

    def queries(self, x: Any) -> Any:
        """The block's rows of a tensor (b, heads, s, …)."""
        return x[:, :, self.q_start : self.q_stop]

    def keys(self, x: Any) -> Any:
        """The block's rows of a tensor (b, kv_heads, s, …)."""
        return x[:, :, self.k_start : self.k_stop]


@dataclass(frozen=True)
class TokenRanges:
    """Which tokens of a sample of ``seq`` each of ``ranks`` has, and what of the mask it computes.

    ``contiguous``: rank r has the r-th part. Under a causal mask the first rank, whose tokens see few others, then waits
    for the last. With ``zigzag`` there are twice as many parts, and rank r has the r-th from the front and the r-th from
    the back (Brandon et al. 2023, arXiv 2311.09431, give tokens in stripes to the same end). ``ranks``, for zigzag
    2·``ranks``, must divide ``seq``.
    """

    kind: str
    seq: int
    ranks: int
    causal: bool = True

    def ranges(self, rank: int) -> tuple[range, ...]:
        """The positions of a rank's tokens, in order: one range, two of a zigzag."""
        if self.kind == "contiguous":
            return (_part(self.seq, self.ranks, rank),)
        parts = 2 * self.ranks
        return _part(self.seq, parts, rank), _part(self.seq, parts, parts - 1 - rank)

    def blocks(self, rank: int, source: int) -> Iterator[MaskBlock]:
        """What of its queries a rank computes with the keys of ``source``: rectangles of the mask, one at most."""
        own, half = self.seq // self.ranks, self.seq // self.ranks // 2
        if not self.causal:
            yield MaskBlock(0, own, 0, own)
        elif source == rank:
            yield MaskBlock(0, own, 0, own, causal=True)
        elif self.kind == "contiguous":
            if source < rank:
                yield MaskBlock(0, own, 0, own)
        elif source < rank:
            yield MaskBlock(0, own, 0, half)  # all queries see the front part of the keys, none the back part
        else:
            yield MaskBlock(half, own, 0, own)  # queries of the back part see all keys

    def work(self, rank: int) -> int:
        """Pairs of query and key that a rank computes."""
        return sum(block.pairs for source in range(self.ranks) for block in self.blocks(rank, source))


def source_of(rank: int, step: int, ranks: int) -> int:
    """Whose message a rank of a ring has after so many steps, if every rank began with its own."""
    return (rank - step) % ranks


def _part(seq: int, parts: int, part: int) -> range:
    each = seq // parts
    return range(part * each, (part + 1) * each)


def placement_of(context: str, placement: str | None) -> str:
    """``placement`` or, if that is None, what fits ``context``: zigzag for keys that travel, contiguous for Ulysses.

    Raises ConfigError for unknown names and for Ulysses with zigzag.
    """
    if context not in CONTEXT:
        raise ConfigError(unknown("context", context, CONTEXT))
    fits = "contiguous" if context == "ulysses" else "zigzag"
    if placement not in (None, *PLACEMENT, *OF_DOCUMENTS):
        raise ConfigError(unknown("placement", placement, (*PLACEMENT, *OF_DOCUMENTS)))
    if context == "ulysses" and placement not in (None, fits):
        raise ConfigError(
            f"placement is {placement!r}, but context='ulysses' has all tokens of its heads: make it contiguous"
        )
    return placement or fits


def check(shape: ModelShape, layout: Fields, seq: int | None = None) -> None:
    """Raise LayoutError unless samples of ``seq`` tokens (None: of any number) and attention can be sharded."""
    if seq is not None:
        check_int("seq", seq, LayoutError)
        if shape.positions == "learned" and seq > shape.max_seq:
            raise LayoutError(f"seq must be at most the model's {shape.max_seq} learned positions, got {seq}")
        check_divides("cp", layout.cp, "seq", seq, LayoutError)
    if layout.cp == 1:
        return
    if shape.dropout:
        raise LayoutError(
            f"cp is {layout.cp}, but {shape.name or 'the model'} has dropout={shape.dropout}, which attention over "
            "several ranks does not draw: make one of them cp=1 or dropout 0"
        )
    if layout.context == "ulysses":
        check_swap(shape, layout)


def check_swap(shape: ModelShape, layout: Fields) -> None:
    """Raise LayoutError unless the heads of each tensor-parallel rank can be divided over cp: Ulysses swaps them."""
    for what, heads in (("heads", shape.heads), ("kv_heads", shape.n_kv_heads)):
        each = max(1, heads // layout.tp)
        if each % layout.cp:
            raise LayoutError(
                f"cp is {layout.cp}, but with context='ulysses' it must divide the {each} {what} of each rank "
                f"(tp={layout.tp}): one of {', '.join(map(str, divisors(each)))}, or context='ring'"
            )
