"""What ranks of a trainer have and those of a sampler need, of a `Job`; and what is sent between. Standard library only.

The boxes are those of live ranks (`reshard.py`), in the same order, so that `plan.plan` plans the same
messages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from playbook.block import Linear, Norm, evaluate, norm, symbols, weighty
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.message_times import Links
from playbook.planning.messages import FP32, Sender
from playbook.planning.weights import Sizes, stretches
from playbook.shapes import ModelShape
from playbook_book.sampling.plan import Boxes, Move, Region, plan


def sampling(trainer: Layout, shape: ModelShape, tp: int) -> Layout:
    """The layout of a sampler on the ranks of a ``trainer``: ``tp``, and dp over the rest. Raises LayoutError for one
    that the model does not fit, or the ranks."""
    ranks = trainer.world_size
    if tp < 1 or ranks % tp:
        raise LayoutError(f"tp of the sampler must divide the trainer's {ranks} ranks, got {tp}")
    layout = Layout(dp=ranks // tp, tp=tp)
    layout.check(shape)
    return layout


def order(layout: Layout, tp: int) -> list[int]:
    """Which rank of a trainer is each of a sampler's, so that slices that become one are already beside each other.

    Where a sampler cuts into fewer slices, its groups take ranks of a trainer's that are so far apart that each has a
    part of what it needs (HybridFlow, arXiv 2409.19256, section 5.3). Elsewhere neighbours are a group.
    """
    apart = layout.tp // tp if layout.tp % tp == 0 else 1
    if apart == 1:
        return list(range(layout.world_size))
    blocks = range(0, layout.world_size, layout.tp)
    return [at + slice_ * apart + i for at in blocks for i in range(apart) for slice_ in range(tp)]


def transfer(job: Job, tp: int, node: int | None = None, ranks: Sequence[int] | None = None) -> list[Move]:
    """What is sent so that the weights of ``job`` are where a sampler of ``tp`` needs them, its ranks in that `order` or
    another."""
    to, all_ = job.on(sampling(job.layout, job.shape, tp)), range(job.layout.world_size)
    place = {rank: i for i, rank in enumerate(ranks or order(job.layout, tp))}
    has = [held(Sender(job, rank)) for rank in all_]
    return plan(has, [held(Sender(to, place[rank])) for rank in all_], itemsizes(job), node)


def everything(job: Job) -> list[Move]:
    """The naive way: what is sent so that every rank has every tensor whole."""
    has = [held(Sender(job, rank)) for rank in range(job.layout.world_size)]
    whole = held(Sender(job.on(Layout()), 0))
    return plan(has, [whole] * len(has), itemsizes(job))


def seconds(moves: Iterable[Move], links: Links) -> float:
    """How long a transfer takes, at least: until the busiest rank has sent all, or got all, inside its node and through
    its adapter to others."""
    node, fabric = links.cluster.gpus_per_node, links.fabric(2)
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for move in moves:
        inside = move.source // node == move.to // node
        took = move.bytes / (fabric.intra if inside else fabric.inter)
        busy["from", move.source] += took
        busy["to", move.to] += took
    return max(busy.values(), default=0.0)


def weights(boxes: Boxes, itemsizes: Mapping[str, int]) -> int:
    """Bytes of these."""
    return sum(itemsizes[name] * sum(box.elements for box in some) for name, some in boxes.items())


def itemsizes(job: Job) -> dict[str, int]:
    """The tensors of a whole model in its order, biases of routers last, and the bytes of an element of each."""
    one = held(Sender(job.on(Layout()), 0))
    return {name: FP32 if name.endswith("router bias") else job.recipe.states.parameters for name in one}


def held(here: Sender) -> dict[str, list[Region]]:
    """The boxes that one rank has: its slices of what its stages have, or under ZeRO-3 segments of them."""
    shape = here.shape
    if shape.train != "full":
        raise ConfigError(f"train is {shape.train}, but only transfers of models that train full are planned")
    blocks = {layer: _block(here, layer) for layer in sorted(here.expert_layers | _layers(here))}
    first, last = _ends(here)
    slices = first | {name: one for block in blocks.values() for name, one in block.items()} | last
    if here.layout.zero == 3:
        found = _segments(here, slices, blocks, first, last)
    else:
        found = {name: one.boxes(0, math.prod(one.sizes)) for name, one in slices.items()}
    for layer in here.expert_layers:
        found[f"{layer}: router bias"] = [Region((0,), (shape.moe.experts,))]  # type: ignore[union-attr]
    return found


def _layers(here: Sender) -> dict[int, int]:
    return {layer: 1 for layers in here.blocks.values() for layer in layers}


@dataclass(frozen=True)
class _Slice:
    """A rank's slice of a tensor of sizes ``whole``: ``sizes`` elements from ``start`` on, beyond the whole padding. Of
    an ``expert`` ranks of ep have other slices."""

    whole: Sizes
    start: Sizes
    sizes: Sizes
    expert: bool = False

    def boxes(self, start: int, stop: int) -> list[Region]:
        """The elements ``start:stop`` of the slice, end to end."""
        found = []
        for at, sizes in stretches(self.sizes, start, stop):
            offsets = tuple(map(sum, zip(self.start, at, strict=True)))
            inside = (min(n, w - o) for n, w, o in zip(sizes, self.whole, offsets, strict=True))
            found.append(Region(offsets, tuple(inside)))
        return [box for box in found if min(box.sizes, default=1) > 0]


def _block(here: Sender, layer: int) -> dict[str, _Slice]:
    """A block's tensors, as the model lists them."""
    shape = here.shape
    found: dict[str, _Slice] = {}
    for row in weighty(shape, shape.kind(layer)):
        biases = (False, True) if row.bias else (False,)
        found |= {f"{layer}: {row.part} {row.name}{' bias' * b}": _slice(here, row, b) for b in biases}
    return found


def _slice(here: Sender, row: Linear | Norm, bias: bool) -> _Slice:
    """A layer's weight or bias: cut wherever it is smaller on a rank than in the whole model."""
    shape, layout = here.shape, here.layout
    own, all_ = symbols(shape, layout.tp, layout.ep, layout.etp), symbols(shape)
    if isinstance(row, Norm):
        sides, expert = [row.width], False
    else:
        expert = row.part == "experts"
        sides = [*[row.number] * expert, row.rows, *[row.columns] * (not bias)]
    sizes, whole = (tuple(evaluate(side, values) for side in sides) for values in (own, all_))
    start = []
    for dim, (size, full) in enumerate(zip(sizes, whole, strict=True)):
        ranks, index = here.ep if expert and dim == 0 else (layout.tp, here.at["tp"])
        start.append(
            index * (full // size) // ranks * size
        )  # neighbours have copies where there are fewer slices
    return _Slice(whole, tuple(start), sizes, expert and layout.ep > 1)


def _ends(here: Sender) -> tuple[dict[str, _Slice], dict[str, _Slice]]:
    """What a rank has before its blocks, and behind them; a tied table goes by one name."""
    shape, tp = here.shape, here.layout.tp
    each = -(-shape.vocab // tp)
    table = _Slice((shape.vocab, shape.hidden), (here.at["tp"] * each, 0), (each, shape.hidden))
    learned = (shape.max_seq, shape.hidden)
    first = {"embedding": table}
    if shape.positions == "learned":
        first["positions"] = _Slice(learned, (0, 0), learned)
    row = norm(shape, "final norm")
    last = {
        f"final norm{' bias' * b}": _slice(here, row, b) for b in ((False, True) if row.bias else (False,))
    }
    last["embedding" if shape.tied else "head"] = table
    return first if 0 in here.blocks else {}, last if here.depth - 1 in here.blocks else {}


def _segments(
    here: Sender, slices: Mapping[str, _Slice], blocks: Mapping[int, Mapping[str, _Slice]],
    first: Mapping[str, _Slice], last: Mapping[str, _Slice],
) -> dict[str, list[Region]]:  # fmt: skip
    """What of each slice is in this rank's shards: slots of a flat vector are named in the order of its units."""
    shape, layout = here.shape, here.layout
    apart, together = shape.tied and layout.pp > 1, shape.tied and layout.pp == 1
    before, behind = ([name for name in end if not (apart and name == "embedding")] for end in (first, last))
    if together:
        before, behind = list(dict.fromkeys([*before, *behind])), []
    order = ["embedding"] * bool(apart and (first or last))
    for stage in sorted(here.blocks, reverse=True):
        order += reversed(behind if stage == here.depth - 1 else [])
        for layer in reversed(here.blocks[stage]):
            order += reversed(list(blocks[layer]))
        order += reversed(before if stage == 0 else [])
    found: dict[str, list[Region]] = {name: [] for name in slices}
    for one in here.sets:
        expert = one.units[0].weights[0].expert
        names = [name for name in order if slices[name].expert == expert]
        place = {id(slot): name for slot, name in zip(one.buckets[0].vector.slots, names, strict=True)}
        for bucket in one.buckets:
            for part in bucket.segments(one.shards[1]):
                name, slot = place[id(part.slot)], part.slot
                found[name] += slices[name].boxes(part.start - slot.start, part.stop - slot.start)
    return found
