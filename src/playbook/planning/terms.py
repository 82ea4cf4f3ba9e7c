"""Terms: a number of bytes and the formula that it came from, which cannot disagree.

A formula is written in the book's symbols and evaluated with integers, so that what a reader sees under a bar is the
expression that gave the bar its height.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType

#: What the symbols of a formula stand for; the sizes are those of one rank where the text says so.
SYMBOLS = {
    "b": "samples per micro-batch",
    "s": "tokens per sample on one rank: seq / cp",
    "S": "tokens per sample: seq",
    "h": "hidden size",
    "a": "attention heads",
    "g": "key/value heads, counted as often as tensor-parallel ranks hold a copy",
    "d": "size of a head's query and key",
    "e": "size of a head's value",
    "f": "feed-forward size",
    "v": "vocabulary, rounded up to a multiple of t",
    "t": "tensor-parallel ranks",
    "r": "ranks that share the sequence outside tensor-parallel regions: t with sequence parallelism, else 1",
    "c": "bytes of an element in matrix products",
    "l": "bytes of an element of a linear layer's saved input",
    "x": "bytes of an element of the residual stream",
    "n": "bytes that a norm keeps per token: its statistics",
    "K": "experts per token",
    "E": "experts",
    "F": "feed-forward size of one expert",
    "G": "feed-forward size of the shared experts together",
    "q": "rank of the compressed queries",
    "u": "rank of the compressed keys and values",
    "p": "rotary dims beside the compressed keys",
}


@dataclass(frozen=True)
class Term:
    """``bytes`` of one named thing, by the formula ``formula``; ``part`` says to which part of a block it belongs."""

    part: str
    name: str
    formula: str
    bytes: int

    @property
    def text(self) -> str:
        """The formula as a reader writes it: 2·b·s·h/t."""
        return self.formula.replace("//", "/").replace("*", "·")


def term(part: str, name: str, formula: str, symbols: Mapping[str, int]) -> Term:
    """Evaluate ``formula`` (integers; ``//`` where a rank holds a share) over ``symbols``."""
    return Term(part, name, formula, int(eval(_compiled(formula), {"__builtins__": {}}, dict(symbols))))


def total(terms: Iterable[Term]) -> int:
    """Bytes of all terms."""
    return sum(t.bytes for t in terms)


@cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, formula, "eval")
