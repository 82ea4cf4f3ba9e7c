"""Copies of weights in FP8: what linear layers of blocks multiply by, made once a step, beside the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator

from playbook.planning.terms import Make, Part, Term
from playbook.precision.recipes import FP8Recipe, Groups
from playbook.shapes import BlockKind, ModelShape

#: A matrix of a rank: how many of its kind there are, and its two sizes, as formulas.
Matrix = tuple[str, str, str, str]


def matrices(shape: ModelShape, kind: BlockKind) -> Iterator[Matrix]:
    """The matrices (out, in) of the linear layers of a block."""
    if shape.mla:
        if shape.mla.q_rank:
            yield "queries, down", "1", "q", "h"
        yield "queries", "1", "a*d//t", "q" if shape.mla.q_rank else "h"
        yield "keys and values, down", "1", "u+p", "h"
        yield "keys and values, up", "1", "a*(d-p+e)//t", "u"
    else:
        yield "queries", "1", "a*d//t", "h"
        yield "keys", "1", "g*d//t", "h"
        yield "values", "1", "g*d//t", "h"
    yield "output", "1", "h", "a*e//t"
    if kind == "dense":
        yield from _mlp(shape, "1", "f")
        return
    yield from _mlp(shape, "m", "F", "experts, ")
    if shape.moe and shape.moe.shared_experts:
        yield from _mlp(shape, "1", "G", "shared experts, ")


def _mlp(shape: ModelShape, count: str, width: str, of: str = "") -> Iterator[Matrix]:
    yield f"{of}up", count, f"{width}//t", "h"
    if shape.gated:
        yield f"{of}gate", count, f"{width}//t", "h"
    yield f"{of}down", count, "h", f"{width}//t"


def copies(shape: ModelShape, kind: BlockKind, recipe: FP8Recipe, make: Make) -> list[Term]:
    """The copies of a block: codes of a byte, and scales; two of each matrix where a transpose has other groups."""
    terms = []
    for name, count, rows, columns in matrices(shape, kind):
        sides = ((rows, columns),) if recipe.turns else ((rows, columns), (columns, rows))
        terms.append(make("weights in FP8", name, f"{len(sides)}*{count}*({rows})*({columns})"))
        scales = " + ".join(_scales(recipe.weights, count, *side) for side in sides)
        terms.append(make("weights in FP8", f"scales of {name}", scales))
    return terms


def _scales(groups: Groups, count: str, rows: str, columns: str) -> str:
    """The bytes of the scales of a matrix; one of a whole tensor is that of all experts."""
    if groups.rows is None:
        return str(groups.scale_bytes)
    along = "1" if groups.columns is None else f"-(-({columns})//{groups.columns})"
    down = f"({rows})" if groups.rows == 1 else f"-(-({rows})//{groups.rows})"
    return f"{count}*{down}*{along}*{groups.scale_bytes}"


def copies_of_blocks(
    shape: ModelShape, blocks: dict[BlockKind, int], recipe: FP8Recipe, make: Make
) -> Iterator[Part]:
    """Those of a rank with so many blocks of each kind."""
    for kind, count in blocks.items():
        yield Part(f"{kind} blocks in FP8", tuple(copies(shape, kind, recipe, make)), count)
