"""Terms: a number and the formula that it came from, which cannot disagree.

A formula is written in the book's symbols and evaluated with integers, so that what a reader sees under a bar is the
expression that gave the bar its height.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from playbook import block
from playbook.block import Kind
from playbook.planning.job import Job

#: More features than a token has.
WHOLE_ROW = 2**31
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
    "y": "positions that the model has",
    "t": "tensor-parallel ranks",
    "T": "ranks that share the matrices of each expert: t, or etp",
    "R": "tensor-parallel ranks that route tokens of their own: 1, or t where etp is 1",
    "K": "experts per token",
    "E": "experts",
    "m": "experts that one rank holds: E / ep",
    "F": "feed-forward size of one expert",
    "G": "feed-forward size of the shared experts together",
    "q": "rank of the compressed queries",
    "u": "rank of the compressed keys and values",
    "p": "rotary dims beside the compressed keys",
    "r": "ranks that share the sequence outside tensor-parallel regions: t with sequence parallelism, else 1",
    "c": "bytes of an element in matrix products",
    "l": "bytes of an element of a linear layer's saved input",
    "j": "features of a token that share a scale; 0 where a whole tensor does",
    "z": "bytes of a scale of a linear layer's saved input; 0 where there is none",
    "o": "bytes of the one scale that it has beside those",
    "x": "bytes of an element of the residual stream",
    "w": "bytes of a parameter",
    "n": "bytes that a norm keeps per token: its statistics",
    "H": "heads with a state in place of attention",
    "P": "size of their values",
    "J": "groups of them that share queries and keys",
    "N": "size of these: a state is N × P",
    "k": "tokens of the convolution before a state",
}


@dataclass(frozen=True)
class Term:
    """One named thing and its ``value`` (bytes, or a number of parameters), by the formula ``formula``.

    ``part`` says to which part of the model it belongs.
    """

    part: str
    name: str
    formula: str
    value: int

    @property
    def text(self) -> str:
        """The formula as a reader writes it: 2·b·s·h/t, b·s·⌈h/j⌉·z."""
        rounded_up = re.sub(r"-\(-(\([^()]*\)|\w+)//(\w+)\)", r"⌈\1/\2⌉", self.formula)
        return rounded_up.replace("//", "/").replace("*", "·")


@dataclass(frozen=True)
class Part:
    """Terms that belong together, ``times`` of which are there; of ``whole`` blocks nothing is computed again,
    ``wide`` ones are in higher precision than others."""

    name: str
    terms: tuple[Term, ...]
    times: float
    whole: bool = False
    wide: bool = False

    @property
    def value(self) -> int:
        return round(total(self.terms) * self.times)


def symbols(job: Job) -> dict[str, int]:
    """The values of ``SYMBOLS`` for one rank."""
    shape, layout, recipe = job.shape, job.layout, job.recipe
    # torch's CPU kernel keeps LayerNorm's statistics in the dtype of its input, the CUDA one always in fp32.
    own = job.device == "cpu" and shape.norm == "layernorm" and "norms" not in job.fused
    statistic = recipe.residual if own else 4
    groups = recipe.fp8.groups if recipe.fp8 else None
    sharing = (groups.columns or WHOLE_ROW) if groups and groups.rows else 0
    return {
        **block.symbols(shape, layout.tp, layout.ep, layout.etp),
        "b": layout.micro_batch, "s": job.padded // layout.cp, "S": job.padded, "r": layout.tp if layout.sp else 1,
        "c": recipe.compute, "l": recipe.linear_inputs, "j": sharing,
        "z": groups.scale_bytes if groups else 0, "o": 4 if recipe.fp8 and recipe.fp8.whole_scale else 0,
        "x": recipe.residual, "w": recipe.states.parameters,
        "n": statistic * (2 if shape.norm == "layernorm" else 1),
    }  # fmt: skip


#: ``make(part, name, formula)`` is a term.
Make = Callable[[str, str, str], Term]


def maker(values: Mapping[str, int]) -> Make:
    """What makes terms of formulas (integers; ``//`` where a rank holds a share) over the ``values`` of the symbols."""

    @cache
    def make(part: str, name: str, formula: str) -> Term:
        return Term(part, name, formula, block.evaluate(formula, values))

    return make


def in_words(kind: Kind) -> str:
    """What follows "3 blocks": what is special about them."""
    said = " with experts" * kind.experts + " with states in place of attention" * kind.recurrent
    return (
        said
        + f" with windows of {kind.window} tokens" * (kind.window > 0)
        + " without recomputation" * kind.whole
        + " in higher precision" * kind.wide
    )


def label(kind: Kind) -> str:
    """A kind of blocks, in short."""
    said = ("moe" if kind.experts else "dense") + f", window {kind.window}" * (kind.window > 0)
    return said + ", state" * kind.recurrent + ", whole" * kind.whole + ", wide" * kind.wide


def total(terms: Iterable[Term]) -> int:
    """The sum of all terms."""
    return sum(t.value for t in terms)
