"""From trainer to sampler: weights move from the ranks of a training layout to those of a sampling layout, in memory.

Reinforcement learning trains in one layout and samples in another (HybridFlow, arXiv 2409.19256, section 5, calls it
resharding). Both know their parts of every tensor as boxes, as checkpoints do. `plan.py` says which boxes
travel; here they do, some at a time, so that a rank holds no more than what it trains, what it samples with, and two
buffers. Under ZeRO-3 shards are sent as they are: nothing is gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.layout.fields import BUCKET
from playbook.parallel.engine import Engine
from playbook.parallel.placement import Placement
from playbook.training.boxes import boxes
from playbook_book.sampling import plan
from playbook_book.sampling.plan import Move, Region

#: By name of the whole tensor, the boxes that a rank has of it, each with a view of its elements.
Parts: TypeAlias = dict[str, dict[Region, Tensor]]


class Transfer:
    """Weights of ``engine`` into the memory of ``target``, now and whenever it is called again.

    Messages are planned once. Of what is under way at once no rank sends or gets more than ``limit`` bytes. With
    ``node``, a sender is looked for among so many neighbours first. A collective. Raises ConfigError for what no rank
    has.
    """

    def __init__(self, engine: Engine, target: Parts, limit: int = BUCKET, node: int | None = None):
        self.engine, self.target, self.rank = engine, target, engine.mesh.rank if engine.mesh else 0
        own = held(engine)
        self.moves = plan.plan(*_of_all_ranks(own, target), _itemsizes(engine, target), node)
        self.rounds = [
            [move for move in together if self.rank in (move.source, move.to)]
            for together in plan.rounds(self.moves, limit)
        ]
        self.kept = [
            (name, both)
            for name, wanted in target.items()
            for region in wanted
            for one in own.get(name, ())
            if (both := region.meets(one))
        ]
        self.room = [
            max(map(self._bytes, self.rounds, [out] * len(self.rounds)), default=0) for out in (True, False)
        ]

    def _bytes(self, together: Iterable[Move], out: bool) -> int:
        return sum(move.bytes for move in together if self.rank == (move.source if out else move.to))

    @torch.no_grad()
    def __call__(self) -> None:
        """Have the target as the engine's weights are now. A collective."""
        for one in self.engine.sets:
            one.wait()
        own = held(self.engine)
        for name, region in self.kept:
            _at(self.target[name], region).copy_(_at(own[name], region))
        device = next(self.engine.model.parameters()).device
        buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in self.room]
        for together in self.rounds:
            self._carry(together, own, *buffers)

    def _carry(self, together: list[Move], own: Parts, there: Tensor, here: Tensor) -> None:
        """One round: pack what goes to each rank, a message for each of them, unpack what comes."""
        works = []
        arrived: list[tuple[Move, Tensor]] = []
        for buffer, out in ((there, True), (here, False)):
            peers = defaultdict[int, list[Move]](list)
            for move in together:
                if self.rank == (move.source if out else move.to):
                    peers[move.to if out else move.source].append(move)
            at = 0
            for peer, moves in sorted(peers.items()):
                begin = at
                for move in moves:
                    part = buffer[at : at + move.bytes]
                    if out:
                        view = _at(own[move.name], move.region)
                        part.view(view.dtype).view(view.shape).copy_(view)
                    else:
                        arrived.append((move, part))
                    at += move.bytes
                works.append(dist.P2POp(dist.isend if out else dist.irecv, buffer[begin:at], peer))
        for work in dist.batch_isend_irecv(works) if works else ():
            work.wait()
        for move, part in arrived:
            view = _at(self.target[move.name], move.region)
            view.copy_(part.view(view.dtype).view(view.shape))


def held(engine: Engine) -> Parts:
    """What this rank of a trainer has of the whole model's tensors: slices, or under ZeRO-3 its segments of them."""
    found: Parts = defaultdict(dict)
    for one in engine.sets:
        if one.gathers_weights:
            for leaf in one.leaves:
                _add(found, engine.placements[leaf.name], leaf.tensor, leaf.parameter.shape, leaf.start)
        else:
            for name, p in one.parameters:
                _add(found, engine.placements[name], p, p.shape)
    for name, p in engine.frozen():
        _add(found, engine.placements[name], p, p.shape)
    for name, buffer in engine.buffers().items():
        _add(found, Placement(name), buffer, buffer.shape)
    return dict(found)


def needed(model: nn.Module, placements: Mapping[str, Placement]) -> Parts:
    """What a rank of a sampler has to fill: its slices of parameters, and buffers that a checkpoint would have."""
    found: Parts = defaultdict(dict)
    for name, p in model.named_parameters():
        _add(found, placements[name], p, p.shape)
    saved = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in saved:
            _add(found, Placement(name), buffer, buffer.shape)
    return dict(found)


def _add(found: Parts, placement: Placement, tensor: Tensor, shape: Iterable[int], start: int = 0) -> None:
    flat = tensor.detach().view(-1)
    for box in boxes(placement, tuple(shape), start, start + len(flat)):
        found[placement.name][Region(box.offsets, box.sizes)] = box.of(flat)


def _at(parts: Mapping[Region, Tensor], region: Region) -> Tensor:
    """A view of a region, which lies inside one of the parts."""
    for whole, view in parts.items():
        if whole.meets(region) == region:
            for dim, (start, size) in enumerate(zip(region.offsets, region.sizes, strict=True)):
                view = view.narrow(dim, start - whole.offsets[dim], size)
            return view
    raise KeyError(region)


def _of_all_ranks(own: Parts, target: Parts) -> tuple[list[plan.Boxes], list[plan.Boxes]]:
    """What each rank has, and what it needs."""
    mine = [{name: list(some) for name, some in parts.items()} for parts in (own, target)]
    if not dist.is_initialized():
        return [mine[0]], [mine[1]]
    # As plain tuples: a chapter's ranks have classes of their own, which pickle does not find by name.
    plain = [{name: [tuple(region) for region in some] for name, some in parts.items()} for parts in mine]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, plain)

    def regions(parts: dict[str, list[Any]]) -> plan.Boxes:
        return {name: [Region(*one) for one in some] for name, some in parts.items()}

    return [regions(has) for has, _ in every], [regions(wants) for _, wants in every]


def _itemsizes(engine: Engine, target: Parts) -> dict[str, int]:
    """The bytes of an element of each tensor, in the order of the whole model, buffers last."""
    weight = next(engine.model.parameters()).element_size()
    buffers = {name: parts for name, parts in target.items() if name in engine.names.buffers}
    sizes = dict.fromkeys(engine.names.parameters, weight)
    return sizes | {name: next(iter(parts.values())).element_size() for name, parts in buffers.items()}


def gather_and_cut(
    engine: Engine, model: nn.Module, placements: Mapping[str, Placement], limit: int = BUCKET
) -> None:
    """The naive twin of `Transfer`: every rank gets every tensor whole, then keeps its slices. A collective."""
    target = needed(model, placements)
    whole = {name: p.new_empty(placements[name].whole_shape(p.shape)) for name, p in model.named_parameters()}
    every: Parts = {placements[name].name: {_all_of(t): t} for name, t in whole.items()}
    every |= {name: parts for name, parts in target.items() if name not in every}  # buffers
    Transfer(engine, every, limit)()
    for name, parts in target.items():
        for region, view in parts.items():
            view.copy_(_at(every[name], region))


def _all_of(tensor: Tensor) -> Region:
    return Region((0,) * tensor.dim(), tuple(tensor.shape))
