"""The parameters that one rank has, tensor by tensor, and how they lie in the flat vector that buckets are cut from.

``parallel/flat.py`` lays out real ones; this is its arithmetic. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from playbook.layout import Layout
from playbook.shapes import MLA, BlockKind, ModelShape, MoE


@dataclass(frozen=True)
class Weight:
    """A parameter of so many ``elements``. ``partial`` says over which ranks its gradient is a partial sum: none, all
    of ``tp``, or those with ``copies`` of the same key/value heads. Of ``expert`` weights ranks of ep have different
    ones: fewer replicas have the same. That of a linear layer in a block is a ``matrix`` (rows, columns), or a stack."""

    elements: int
    partial: str = ""
    expert: bool = False
    matrix: tuple[int, int] | None = None


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

    @property
    def elements(self) -> int:
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True)
class BucketRange:
    """The part ``start:stop`` of the flat vector, in a unit that begins at ``begin``."""

    unit: WeightUnit
    begin: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def _matrix(rows: int, columns: int, partial: str = "", expert: bool = False, count: int = 1) -> Weight:
    """The weight of a linear layer, or of ``count`` experts."""
    return Weight(count * rows * columns, partial, expert, (rows, columns))


def block_weights(shape: ModelShape, layout: Layout, kind: BlockKind = "dense") -> list[Weight]:
    """The parameters of a block of one kind on one tensor-parallel rank, as the model lists them."""
    norm = _norm(shape, _whole(layout))
    attention = _latent(shape, shape.mla, layout) if shape.mla else _heads(shape, layout)
    experts = kind == "moe" and shape.moe
    mlp = _experts(shape, experts, layout) if experts else _mlp(shape, layout, shape.ffn_dim)
    return [*norm, *attention, *norm, *mlp]


def _whole(layout: Layout) -> str:
    """Of what is cut over no ranks: with sp, a rank sees some of the tokens alone."""
    return "tp" if layout.sp else ""


def _heads(shape: ModelShape, layout: Layout) -> list[Weight]:
    """Attention: queries, keys, values, the output, norms of heads."""
    tp, h, d = layout.tp, shape.hidden, shape.qk_dim
    query, kv = shape.heads // tp * d, max(1, shape.n_kv_heads // tp) * d
    found = []
    for width, partial in [(query, ""), *[(kv, "copies" if tp > shape.n_kv_heads else "")] * 2]:
        found += [_matrix(width, h, partial)] + [Weight(width, partial)] * bool(shape.qkv_bias)
    found += [_matrix(h, query)] + [Weight(h, _whole(layout))] * shape.bias
    return [*found, *[Weight(d, "tp" if tp > 1 else "")] * (2 * shape.qk_norm)]


def _latent(shape: ModelShape, mla: MLA, layout: Layout) -> list[Weight]:
    """Latent attention: what makes latents is on every rank, what is made of them is cut by heads."""
    h, heads, whole = shape.hidden, shape.heads // layout.tp, _whole(layout)
    query = [_matrix(heads * shape.qk_dim, mla.q_rank or h)]
    if mla.q_rank:
        query = [_matrix(mla.q_rank, h, whole), Weight(mla.q_rank, whole), *query]
    latent = [_matrix(mla.kv_rank + mla.rope_dim, h, whole), Weight(mla.kv_rank, whole)]
    up = _matrix(heads * (mla.nope_dim + mla.value_dim), mla.kv_rank)
    return [*query, *latent, up, _matrix(h, heads * mla.value_dim), *[Weight(h, whole)] * shape.bias]


def _mlp(shape: ModelShape, layout: Layout, width: int) -> list[Weight]:
    h, own = shape.hidden, width // layout.tp
    up = [_matrix(own, h)] + [Weight(own)] * shape.bias
    return [*up * (1 + shape.gated), _matrix(h, own), *[Weight(h, _whole(layout))] * shape.bias]


def _experts(shape: ModelShape, moe: MoE, layout: Layout) -> list[Weight]:
    """The router, which all ranks of a tensor-parallel region have, and of this rank's experts a slice; shared ones."""
    partial, apart = "tp" if layout.tp > 1 else "", layout.ep > 1
    count, h, own = moe.experts // layout.ep, shape.hidden, moe.ffn // layout.tp
    up = [_matrix(own, h, "", apart, count)] + [Weight(count * own, expert=apart)] * shape.bias
    down = [_matrix(h, own, "", apart, count)] + [Weight(count * h, partial, apart)] * shape.bias
    shared = _mlp(shape, layout, moe.shared_experts * moe.ffn) if moe.shared_experts else []
    return [Weight(moe.experts * h, partial), *up * (1 + shape.gated), *down, *shared]


def _norm(shape: ModelShape, partial: str) -> list[Weight]:
    return [Weight(shape.hidden, partial)] * (2 if shape.norm == "layernorm" and shape.bias else 1)


def weight_units(
    shape: ModelShape, layout: Layout, stages: Mapping[int, range], depth: int
) -> list[WeightUnit]:
    """The units of a rank in the order of backward; ``stages`` has the blocks of each stage that it has, of ``depth``.

    One unit without a pipeline; its stages and what two of them share with one; under ZeRO-3 each block and each end of
    the model.
    """
    whole, kinds = _whole(layout), shape.blocks(stages.values())
    block = {kind: block_weights(shape, layout, kind) for kind in kinds}
    blocks = {
        stage: [block["moe" if shape.is_moe(layer) else "dense"] for layer in layers]
        for stage, layers in stages.items()
    }
    table = Weight(-(-shape.vocab // layout.tp) * shape.hidden)
    positions = [Weight(shape.max_seq * shape.hidden, whole)] * (shape.positions == "learned")
    norm, first, last = _norm(shape, whole), 0 in stages, depth - 1 in stages
    if layout.zero == 3:
        return list(_gathered(blocks, depth, (table, positions, norm), shape.tied, layout.pp > 1))
    apart = shape.tied and layout.pp > 1  # a table that two stages write to is complete last
    units = []
    for stage in sorted(stages, reverse=True):
        weights = [weight for one in blocks[stage] for weight in one]
        if stage == 0:
            weights = [*[table] * (not apart), *positions, *weights]
        if stage == depth - 1:
            weights = [*weights, *norm, *[table] * (not shape.tied)]
        units.append(WeightUnit(tuple(reversed(weights)), stage))
    shared = [WeightUnit((table,), None)] if apart and (first or last) else []
    return [unit for unit in [*units, *shared] if unit.weights]


def _gathered(
    blocks: Mapping[int, Sequence[Sequence[Weight]]],
    depth: int,
    ends: tuple[Weight, list[Weight], list[Weight]],
    tied: bool,
    pipeline: bool,
) -> Iterator[WeightUnit]:
    """What ZeRO-3 gathers together; ``blocks`` are those of each stage, ``ends`` a table, positions and a norm.

    A tied table stays from the one end of the model to the other; in a pipeline it is gathered on its own.
    """
    table, positions, norm = ends
    first = [*[table] * (not (tied and pipeline)), *positions]
    last = [*norm, *[table] * (not tied)]
    if tied and not pipeline:
        first, last = [*first, *last], []
    if tied and pipeline and {0, depth - 1} & set(blocks):
        yield WeightUnit((table,), None, again=False, role="table")
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


def buckets(
    units: Sequence[WeightUnit], ranks: int, size: int | None = None, first: int | None = None
) -> list[BucketRange]:
    """Buckets of at most ``size`` elements, the first of at most ``first``, each a multiple of ``ranks``; None: units."""
    found: list[BucketRange] = []
    begin = 0
    for unit in units:
        start, stop = begin, begin + -(-unit.elements // ranks) * ranks
        while start < stop:
            limit = size if found or first is None else first
            step = stop - start if limit is None else max(1, limit // ranks) * ranks
            found.append(BucketRange(unit, begin, start, min(stop, start + step)))
            start = found[-1].stop
        begin = stop
    return found


def partial_sums(cut: Sequence[BucketRange], partial: str, ranks: int = 1, rank: int = 0) -> int:
    """Elements of weights of a kind (see `Weight`) in one rank's shares of the buckets."""
    return sum(
        count
        for bucket in cut
        for weight, count in in_share(bucket, ranks, rank)
        if weight.partial == partial
    )


def in_share(bucket: BucketRange, ranks: int, rank: int) -> Iterator[tuple[Weight, int]]:
    """How many elements of each weight are in one rank's share of a bucket."""
    share = len(bucket) // ranks
    mine = range(bucket.start + rank * share, bucket.start + (rank + 1) * share)
    start = bucket.begin
    for weight in bucket.unit.weights:
        stop = start + weight.elements
        yield weight, max(0, min(stop, mine.stop) - max(start, mine.start))
        start = stop
