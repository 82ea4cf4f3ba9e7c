"""How many parameters one rank holds, part by part, and their copies in FP8: cut by tensor, expert and pipeline axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Any

from playbook.block import Kind, learns, linears, norm, size_formula, weighty
from playbook.layout import Layout
from playbook.layout.stages import split
from playbook.planning.sharding import UnitSize, share_of
from playbook.planning.terms import Make, Part, Term, in_words, label, total
from playbook.precision.recipes import FP8Recipe, Groups
from playbook.registry import lab
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class StateCounts:
    """Parameters of one rank: ``local`` all that it computes with, ``shard`` the share that it updates: ZeRO's.

    ``frozen`` of the local ones do not learn, of which it keeps ``frozen_shard``. ``block`` is the largest single block
    on this rank, of which ``block_learns`` learn, ``table`` the embedding's matrix; ``units`` are what ZeRO-3 gathers
    whole of what learns, or in a pipeline what is padded by itself. ``replicas`` ranks share
    ZeRO's shards of the same parameters.
    """

    local: int
    shard: int
    block: int
    table: int
    units: tuple[UnitSize, ...]
    parts: tuple[Part, ...]
    replicas: int
    frozen: int = 0
    frozen_shard: int = 0
    block_learns: int = 0

    @property
    def learning(self) -> int:
        return self.local - self.frozen


@lru_cache(maxsize=256)
def blocks_of_stages(
    shape: ModelShape, depth: int, sizes: tuple[int, ...] | None = None, *which: Any
) -> tuple[Mapping[Kind, int], ...]:
    """The blocks of each of ``depth`` stages by kind, as `layout.stages.split` cuts; ``which``: `ModelShape.blocks`."""
    return tuple(shape.blocks([layers], *which) for layers in split(shape.layers, depth, sizes))


def stage_parameters(
    shape: ModelShape,
    layout: Layout,
    stages: Sequence[Mapping[Kind, int]],
    make: Make,
    has: tuple[bool, bool] = (True, True),
    directions: int = 1,
) -> StateCounts:
    """Parameters of a rank whose ``stages`` have so many blocks of each kind (see ``ModelShape.blocks``).

    Of the ends that it ``has`` the first has the embedding (and positions), the last the final norm and the head; a
    tied head on another rank needs a copy of the table there. Experts are replicated dp·cp/ep times, all else dp·cp
    times: twice as often in a pipeline that runs in both ``directions``.
    """
    together, (first, last) = sum(map(Counter, stages), Counter[Kind]()), has
    rows = {kind: weighty(shape, kind) for kind in together}
    blocks = {kind: [make(row.part, row.name, size_formula(row)) for row in rows[kind]] for kind in rows}
    parts = [
        Part(f"{count} blocks{in_words(kind)}", tuple(blocks[kind]), count, kind.whole, kind.wide)
        for kind, count in together.items()
    ]
    table = make("embedding", "table", "v*h//t")
    if first:
        positions = [make("embedding", "positions", "y*h")] if shape.positions == "learned" else []
        parts.insert(0, Part("embedding", (table, *positions), 1))
    if last:
        final = make("norms", "final norm", size_formula(norm(shape, "final norm")))
        head = () if shape.tied and first else (make("head", "matrix", "v*h//t"),)
        parts.append(Part("head", (final, *head), 1))
    local, replicas = sum(part.value for part in parts), layout.shards * directions
    trained = {kind: [learns(shape, row) for row in rows[kind]] for kind in rows}
    learning = {kind: [*compress(terms, trained[kind])] for kind, terms in blocks.items()}
    rest = {kind: [t for t in terms if t not in learning[kind]] for kind, terms in blocks.items()}
    units = tuple(_units(shape, layout, stages, learning, parts, table.value))
    frozen = kept = local - sum(unit.parameters + unit.experts for unit in units)
    if frozen and layout.zero == 3:
        kept = share_of([*_units(shape, layout, stages, rest, parts, table.value, False)], replicas, 3)
    shard = local - frozen
    if layout.zero:
        same = replicas * layout.apart // layout.ep
        shard = share_of(units, replicas, layout.zero, experts=same, apart=layout.pp > 1)
    block, block_learns = (max(map(total, each.values()), default=0) for each in (blocks, learning))
    given = units, tuple(parts), replicas, frozen, kept, block_learns
    return StateCounts(local, shard, block, table.value, *given)


def _units(
    shape: ModelShape,
    layout: Layout,
    stages: Sequence[Mapping[Kind, int]],
    blocks: Mapping[Kind, Sequence[Term]],
    parts: Sequence[Part],
    table: int,
    learn: bool = True,
) -> Iterator[UnitSize]:
    """Blocks and ends one by one, as stage 3 gathers them; below it, in a pipeline, stages and what two of them share.
    Of all ``parts`` the ends of the model that ``learn``, or those that do not."""
    table *= shape.tied and ("embedding" in shape.trained) is learn
    some = {part.name: part.terms for part in parts if part.name in ("embedding", "head")}
    ends = {name: total(t for t in some[name] if (t.part in shape.trained) is learn) for name in some}
    experts = {kind: total(t for t in terms if t.part == "experts") for kind, terms in blocks.items()}
    dense = {kind: total(terms) - experts[kind] for kind, terms in blocks.items()}
    if layout.pp == 1 or layout.zero == 3:
        for kind, count in sum(map(Counter, stages), Counter[Kind]()).items():
            yield from [UnitSize(dense[kind], experts=experts[kind])] * count
        # A tied table is gathered once for both ends; in a pipeline on its own.
        if table and layout.pp == 1 and len(ends) == 2:
            ends = {"both": sum(ends.values())}
        elif table and ends:
            own = {name: table * (len(ends) == 1 or name == "embedding") for name in ends}
            ends = {name: size - own[name] for name, size in ends.items()}
            ends["table"] = table
        yield from (UnitSize(size, again=False) for size in ends.values() if size)
        return
    if "head" in ends and not (table and "embedding" in ends):
        ends["head"] -= table
    if "embedding" in ends:
        ends["embedding"] -= table
    for i, stage in enumerate(stages):
        size = sum(dense[kind] * count for kind, count in stage.items())
        size += ends.get("embedding", 0) * (i == 0) + ends.get("head", 0) * (i == len(stages) - 1)
        yield UnitSize(size, experts=sum(experts[kind] * count for kind, count in stage.items()))
    if ends and table:
        yield UnitSize(table)


def copies(shape: ModelShape, kind: Kind, recipe: FP8Recipe, make: Make) -> list[Term]:
    """Copies of a block's weights in FP8, by which its linear layers multiply, made once a step: codes, and scales.

    There are two of each matrix where a transpose has other groups.
    """
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
    own, numbers = lab("fp4", "copies") if recipe.dtype == "fp4" else copies, recipe.dtype.upper()
    for kind, count in blocks.items():
        if not kind.wide:
            yield Part(f"{label(kind)} blocks in {numbers}", tuple(own(shape, kind, recipe, make)), count)
