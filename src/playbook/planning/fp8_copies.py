"""Copies of weights in FP8: what linear layers of blocks multiply by, made once a step, beside the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator

from playbook.block import Kind, linears
from playbook.planning.terms import Make, Part, Term, label
from playbook.precision.recipes import FP8Recipe, Groups
from playbook.shapes import ModelShape


def copies(shape: ModelShape, kind: Kind, recipe: FP8Recipe, make: Make) -> list[Term]:
    """The copies of a block: codes of a byte, and scales; two of each matrix where a transpose has other groups."""
    terms = []
    for row in linears(shape, kind):
        part = f"{row.part}, " * row.part.endswith("experts")
        name, count, rows, columns = part + row.name, row.number, row.rows, row.columns
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
    shape: ModelShape, blocks: dict[Kind, int], recipe: FP8Recipe, make: Make
) -> Iterator[Part]:
    """Those of a rank with so many blocks of each kind."""
    for kind, count in blocks.items():
        yield Part(f"{label(kind)} blocks in FP8", tuple(copies(shape, kind, recipe, make)), count)
