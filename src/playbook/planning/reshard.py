"""From trainer to sampler, on paper: which box of which tensor goes from whom to whom. Standard library only.

A rank of a trainer has boxes of whole tensors: slices (tp, ep), stages (pp), stretches of slices (ZeRO-3). A rank of a
sampler needs other boxes. What it lacks is the difference, and comes from one of the ranks that have it; what it has it
copies. So each element that a rank lacks is sent to it once, and nothing else is sent. `training/reshard.py` carries the
messages out, of boxes that live ranks report; here a `Job` says which these are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from playbook.block import Linear, Norm, evaluate, norm, symbols, weighty
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.fields import BUCKET
from playbook.layout.flat import Sizes, stretches
from playbook.planning.job import Job
from playbook.planning.messages import FP32, Sender


class Region(NamedTuple):
    """A box of a whole tensor: ``sizes`` elements from ``offsets`` on along each dim."""

    offsets: Sizes
    sizes: Sizes

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def meets(self, other: Region) -> Region | None:
        """What both have; None if that is nothing."""
        start = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(
            min(a + m, b + n) - s
            for a, m, b, n, s in zip(self.offsets, self.sizes, other.offsets, other.sizes, start, strict=True)
        )
        return Region(start, sizes) if all(size > 0 for size in sizes) else None

    def without(self, hole: Region) -> Iterator[Region]:
        """What is left of it without ``hole``, which lies inside: at most two boxes for each dim."""
        offsets, sizes = list(self.offsets), list(self.sizes)
        for dim, (start, size) in enumerate(zip(hole.offsets, hole.sizes, strict=True)):
            for begin, end in ((offsets[dim], start), (start + size, offsets[dim] + sizes[dim])):
                if begin < end:
                    yield self._with(offsets, sizes, dim, begin, end - begin)
            offsets[dim], sizes[dim] = start, size

    def pieces(self, most: int) -> Iterator[Region]:
        """The same in boxes of at most ``most`` elements, cut along the first dims."""
        if self.elements <= most:
            yield self
            return
        dim = next(i for i, size in enumerate(self.sizes) if size > 1)
        step = max(1, most // (self.elements // self.sizes[dim]))
        for at in range(0, self.sizes[dim], step):
            size = min(step, self.sizes[dim] - at)
            one = self._with(list(self.offsets), list(self.sizes), dim, self.offsets[dim] + at, size)
            yield from one.pieces(most)

    @staticmethod
    def _with(offsets: list[int], sizes: list[int], dim: int, start: int, size: int) -> Region:
        return Region((*offsets[:dim], start, *offsets[dim + 1 :]), (*sizes[:dim], size, *sizes[dim + 1 :]))


#: The boxes that a rank has or wants, by the name of the tensor.
Boxes = Mapping[str, Sequence[Region]]


class Move(NamedTuple):
    """A box of a tensor, of elements of so many bytes, on its way from one rank to another."""

    name: str
    region: Region
    source: int
    to: int
    itemsize: int

    @property
    def bytes(self) -> int:
        return self.region.elements * self.itemsize


def plan(
    has: Sequence[Boxes], wants: Sequence[Boxes], itemsizes: Mapping[str, int], node: int | None = None
) -> list[Move]:
    """All that is sent, tensor by tensor in the order of ``itemsizes``, where each rank ``has`` and ``wants`` such boxes.

    Of the ranks that have a box, the one sends it that has sent least so far; with ``node``, ranks of which so many
    neighbours are in a node, one of the same node if there is any. Raises ConfigError for what nobody has.
    """
    load, found = [0] * len(has), list[Move]()
    for name, itemsize in itemsizes.items():
        holders = defaultdict[Region, list[int]](list)
        for rank, boxes in enumerate(has):
            for region in dict.fromkeys(boxes.get(name, ())):
                holders[region].append(rank)
        sources = tuple(holders)
        for to, boxes in enumerate(wants):
            own = tuple(has[to].get(name, ()))
            for region, source in missing(tuple(boxes.get(name, ())), own, sources, name):
                near = {rank: node is not None and rank // node != to // node for rank in holders[source]}
                sender = min(near, key=lambda rank: (near[rank], load[rank], (rank - to) % len(has)))
                found.append(Move(name, region, sender, to, itemsize))
                load[sender] += found[-1].bytes
    return found


@cache
def missing(
    wanted: tuple[Region, ...], own: tuple[Region, ...], sources: tuple[Region, ...], name: str = ""
) -> list[tuple[Region, Region]]:
    """What of ``wanted`` is not in ``own``, in boxes, each with the one of ``sources`` that it lies in."""
    rest, found = list(wanted), []
    for i, source in enumerate((*own, *sources)):
        left = []
        for region in rest:
            if both := region.meets(source):
                if i >= len(own):
                    found.append((both, source))
                left += region.without(both)
            else:
                left.append(region)
        rest = left
    if rest:
        raise ConfigError(f"no rank has {rest[0].sizes} elements of {name!r} from {rest[0].offsets} on")
    return found


def rounds(moves: Iterable[Move], limit: int = BUCKET) -> list[list[Move]]:
    """Moves that are under way at once: in a round no rank sends or gets more than ``limit`` bytes, nor elements of two
    sizes. A box that is larger is cut."""
    found: list[list[Move]] = []
    at: dict[tuple[str, int], tuple[int, int, int]] = {}  # round, bytes in it, their size
    for move in moves:
        for region in move.region.pieces(max(1, limit // move.itemsize)):
            one = move._replace(region=region)
            ends = ("from", one.source), ("to", one.to)
            seen = [at.get(end, (0, 0, one.itemsize)) for end in ends]
            last = max(number for number, _, _ in seen)
            full = any(
                number == last and (used + one.bytes > limit or size != one.itemsize)
                for number, used, size in seen
            )
            last += full
            for end, (number, used, _) in zip(ends, seen, strict=True):
                at[end] = last, one.bytes + (used if number == last else 0), one.itemsize
            found += [[] for _ in range(last + 1 - len(found))]
            found[last].append(one)
    return found


@dataclass(frozen=True)
class Sent:
    """What ranks send and get, in bytes and in messages: one for each round and pair of ranks."""

    sent: list[int]
    got: list[int]
    messages: list[int]


def sent(moves: Iterable[Move], ranks: int, limit: int = BUCKET) -> Sent:
    """What each rank sends and gets for ``moves``."""
    out, into, pairs = [0] * ranks, [0] * ranks, Counter[int]()
    for together in rounds(moves, limit):
        for move in together:
            out[move.source] += move.bytes
            into[move.to] += move.bytes
        pairs.update(source for source, _ in {(move.source, move.to) for move in together})
    return Sent(out, into, [pairs[rank] for rank in range(ranks)])


# ---- of a job


def sampling(job: Job, tp: int) -> Layout:
    """The layout of a sampler on the ranks of ``job``: ``tp``, and dp over the rest. Raises LayoutError for one that the
    model does not fit."""
    ranks = job.layout.world_size
    layout = Layout(tp=tp) if ranks % tp else Layout(dp=ranks // tp, tp=tp)
    if ranks % tp:
        raise ConfigError(f"tp of the sampler is {tp}, but must divide the trainer's {ranks} ranks")
    layout.check(job.shape)
    return layout


def transfer(job: Job, tp: int, node: int | None = None) -> list[Move]:
    """What is sent so that the weights of ``job`` are where a sampler of ``tp`` needs them."""
    to = job.on(sampling(job, tp))
    has, wants = ([held(Sender(one, rank)) for rank in range(job.layout.world_size)] for one in (job, to))
    return plan(has, wants, itemsizes(job), node)


def everything(job: Job) -> list[Move]:
    """The naive way: what is sent so that every rank has every tensor whole."""
    has = [held(Sender(job, rank)) for rank in range(job.layout.world_size)]
    whole = held(Sender(job.on(Layout()), 0))
    return plan(has, [whole] * len(has), itemsizes(job))


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
    shape, found = here.shape, {}
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
    ends = [{k: v for k, v in end.items() if not (apart and k == "embedding")} for end in (first, last)]
    order = ["embedding"] * bool(apart and (first or last))
    for stage in sorted(here.blocks, reverse=True):
        order += reversed(ends[1] if stage == here.depth - 1 and not together else {})
        for layer in reversed(here.blocks[stage]):
            order += reversed(blocks[layer])
        begin = dict(ends[0]) | ({k: v for k, v in ends[1].items() if k not in ends[0]} if together else {})
        order += reversed(begin if stage == 0 else {})
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
