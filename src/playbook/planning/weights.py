"""The parameters that one rank has, tensor by tensor, in the vector that buckets are cut from. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from playbook.block import DENSE, PARTS, Kind, Linear, Norm, evaluate, learns, linears, norm, symbols, weighty
from playbook.layout import Layout
from playbook.layout.flat import Bucket, FlatVector, Slot
from playbook.shapes import ModelShape

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Weight:
    """A parameter of so many ``elements``. ``partial`` says over which ranks its gradient is a partial sum: none, all
    of ``tp``, or those with ``copies`` of the same key/value heads. Of ``expert`` weights ranks of ep have different
    ones: fewer replicas have the same. That of a linear layer in a block is a ``matrix`` (rows, columns), or a stack, of
    which tensor-parallel ranks have so many ``slices`` (one of its rows, one of its columns)."""

    elements: int
    partial: str = ""
    expert: bool = False
    matrix: tuple[int, int] | None = None
    slices: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class WeightUnit:
    """Weights that lie together, in the order of backward, and that no bucket mixes with others.

    They belong to one ``stage``, or (None) to two of them. ZeRO-3 gathers a unit that is needed ``again`` in backward a
    second time. ``role`` is what stage 3 gathers: a block, the embedding, the head, a tied table of two stages.
    """

    weights: tuple[Weight, ...]
    stage: int | None
    again: bool = True
    role: str = "block"  # or embedding, head, table


def keeps_inputs(shape: ModelShape, part: str) -> bool:
    """Whether the linear layers of a part need their inputs for backward: what they are, or adapters, learn."""
    return bool(shape.lora) or shape.train == "full" or part in shape.trained


@dataclass(eq=False)
class WeightSlot(Slot):
    """The place ``start:stop`` of a weight in the vector."""

    weight: Weight


def flat_vector(units: Sequence[WeightUnit], ranks: int) -> FlatVector[Weight, WeightSlot]:
    """The vector of a rank that has these, as ``ranks`` cut it."""
    parts = (unit.weights for unit in units)
    return FlatVector(parts, ranks, lambda start, weight: WeightSlot(start, start + weight.elements, weight))


def block_weights(
    shape: ModelShape, layout: Layout, kind: Kind = DENSE, frozen: bool = False
) -> list[Weight]:
    """The parameters of a block of a kind on one tensor-parallel rank that learn, or the ``frozen`` ones, as the model
    lists them."""
    rows = (row for row in weighty(shape, kind) if learns(shape, row) is not frozen)
    return [weight for row in rows for weight in _weights(row, shape, layout)]


def partial(shared: str, shape: ModelShape, layout: Layout) -> str:
    """Over which tensor-parallel ranks the gradient of a weight is a partial sum: none (""), all of "tp", or those with
    "copies" of the same key/value heads.

    Weights that ranks share by "tokens" see a rank's own tokens with sequence parallelism, else all of them.
    """
    if shared == "copies":
        return "copies" if layout.tp > shape.n_kv_heads else ""
    return "tp" if layout.tp > 1 and (shared == "all" or (shared == "tokens" and layout.sp)) else ""


def _weights(row: Linear | Norm, shape: ModelShape, layout: Layout) -> Iterator[Weight]:
    """The weight of a layer, and its bias."""

    def value(formula: str) -> int:
        return evaluate(formula, symbols(shape, layout.tp, layout.ep, layout.etp))

    shared = "" if row.part == "experts" and layout.etp else partial(row.shared, shape, layout)
    if isinstance(row, Norm):
        yield from [Weight(value(row.width), shared)] * (1 + row.bias)
        return
    whole = row.cut == "row"  # its weight is cut, its bias is not
    expert, count = row.part == "experts" and layout.ep > 1, value(row.number)
    rows, columns = value(row.rows), value(row.columns)
    matrix = None if row.part == "router" else (rows, columns)
    ranks = 1 if row.part == "experts" and layout.etp else layout.tp
    ranks = min(ranks, shape.n_kv_heads) if row.shared == "copies" else ranks
    slices = ranks if row.cut == "column" else 1, ranks if whole else 1
    yield Weight(count * rows * columns, "" if whole else shared, expert, matrix, slices)
    if row.bias:
        yield Weight(count * rows, shared, expert)


def weight_units(
    shape: ModelShape, layout: Layout, stages: Mapping[int, range], depth: int, frozen: bool = False
) -> list[WeightUnit]:
    """The units of a rank that learn, or the ``frozen`` ones, in the order of backward; ``stages`` has the blocks of each
    of its stages, of ``depth``.

    One unit without a pipeline; its stages and what two of them share with one; under ZeRO-3 each block and each end of
    the model.
    """
    kinds = shape.blocks(stages.values())
    one = {kind: block_weights(shape, layout, kind, frozen) for kind in kinds}
    blocks = {stage: [one[shape.kind(layer)] for layer in layers] for stage, layers in stages.items()}
    here = {part: (part in shape.trained) is not frozen for part in PARTS}
    table = [Weight(-(-shape.vocab // layout.tp) * shape.hidden)]
    learned = Weight(shape.max_seq * shape.hidden, partial("tokens", shape, layout))
    apart = shape.tied and layout.pp > 1  # a table that two stages write to is complete last
    first = [*table * (not apart), *[learned] * (shape.positions == "learned")] * here["embedding"]
    last_norm = list(_weights(norm(shape, "final norm"), shape, layout)) * here["norms"]
    last = [*last_norm, *table * (here["head"] and not shape.tied)]
    shared = [WeightUnit((*table,), None, again=False, role="table")] * (
        apart and here["embedding"] and bool({0, depth - 1} & set(stages))
    )
    if layout.zero == 3:
        found = [*shared, *_gathered(blocks, depth, first, last, shape.tied and layout.pp == 1)]
        return [unit for unit in found if unit.weights]
    units = []
    for stage in sorted(stages, reverse=True):
        weights = [weight for block in blocks[stage] for weight in block]
        weights = [*first * (stage == 0), *weights, *last * (stage == depth - 1)]
        units.append(WeightUnit(tuple(reversed(weights)), stage))
    return [unit for unit in [*units, *shared] if unit.weights]


def _gathered(
    blocks: Mapping[int, Sequence[Sequence[Weight]]],
    depth: int,
    first: list[Weight],
    last: list[Weight],
    together: bool,
) -> Iterator[WeightUnit]:
    """What ZeRO-3 gathers together; ``blocks`` are those of each stage, ``first`` and ``last`` the ends of the model.

    A tied table stays from one end to the other, and keeps both ``together``; in a pipeline it is gathered on its own.
    """
    if together:
        first, last = [*first, *last], []
    for stage in sorted(blocks, reverse=True):
        if stage == depth - 1 and last:
            yield WeightUnit(tuple(reversed(last)), stage, again=False, role="head")
        for block in reversed(blocks[stage]):
            yield WeightUnit(tuple(reversed(block)), stage)
        if stage == 0 and first:
            yield WeightUnit(tuple(reversed(first)), stage, again=False, role="embedding")


def only(units: Sequence[WeightUnit], expert: bool) -> list[WeightUnit]:
    """The units with their expert weights alone, or without them."""
    parts = [replace(u, weights=tuple(w for w in u.weights if w.expert == expert)) for u in units]
    return [unit for unit in parts if unit.weights]


def partial_sums(buckets: Sequence[Bucket[WeightSlot]], partial: str, rank: int = 0) -> int:
    """Elements of weights of a kind (see `Weight`) in one rank's shards of the buckets."""
    return sum(
        len(segment)
        for bucket in buckets
        for segment in bucket.segments(rank)
        if segment.slot.weight.partial == partial
    )


def crossings(
    shape: ModelShape, kind: Kind, parts: Container[str] = ("attention", "mlp", "shared experts")
) -> tuple[list[int], list[int]]:
    """Features of a token that enter the tensor-parallel regions of these ``parts`` of a block, and that leave them;
    routed experts, whose rows take ways of their own, are left out."""
    values, rows = symbols(shape), [row for row in linears(shape, kind) if row.part in parts]
    into = {row.input: row.columns for row in rows if row.cut == "column"}
    out = [row.rows for row in rows if row.cut == "row"]
    return [evaluate(width, values) for width in into.values()], [evaluate(width, values) for width in out]


def stretches(shape: Sizes, start: int, stop: int) -> Iterator[tuple[Sizes, Sizes]]:
    """Offsets and sizes of the boxes that the elements ``start:stop`` of a tensor are, in their order."""
    if start >= stop:
        return
    if len(shape) < 2:
        yield (start,)[: len(shape)], (stop - start,)[: len(shape)]
        return
    row = math.prod(rest := shape[1:])
    first, last = -(-start // row), stop // row  # the whole rows
    if first > last:
        yield from _in_row(last, rest, start - last * row, stop - last * row)
        return
    yield from _in_row(first - 1, rest, start - (first - 1) * row, row)
    if first < last:
        yield (first, *(0 for _ in rest)), (last - first, *rest)
    yield from _in_row(last, rest, 0, stop - last * row)


def _in_row(row: int, shape: Sizes, start: int, stop: int) -> Iterator[tuple[Sizes, Sizes]]:
    return (((row, *offsets), (1, *sizes)) for offsets, sizes in stretches(shape, start, stop))
