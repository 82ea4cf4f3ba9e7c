"""Where each parameter is: the one fact that gradient sums, norms, clipping, checkpoints and byte counts read.

A technique that takes a model apart (``stages.cut_stages``, ``tensor.shard_tensors``) says for each parameter that it
leaves on a rank which slice of the whole that is, over which axes its gradient is a partial sum, and on how many
ranks the same elements are. What is said of nothing is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Shard:
    """The slice ``start:stop`` along ``dim`` of a tensor that is cut over ``axis`` and has ``size`` there.

    Beyond ``size`` it is padding. ``copies`` neighbouring ranks of the axis have the same slice.
    """

    axis: str
    dim: int
    start: int
    stop: int
    size: int
    copies: int = 1

    def of(self, whole: Tensor) -> Tensor:
        """The slice of a whole tensor, padded with zeros."""
        start, stop = min(self.start, self.size), min(self.stop, self.size)
        inside = whole.narrow(self.dim, start, stop - start)
        missing = self.stop - self.start - inside.shape[self.dim]
        if not missing:
            return inside
        padding = list(whole.shape)
        padding[self.dim] = missing
        return torch.cat([inside, whole.new_zeros(padding)], self.dim)


@dataclass(frozen=True)
class Placement:
    """Where a parameter is, under its ``name`` in the whole model.

    ``shards`` are its cuts. Over each axis of ``partial`` its gradient is a partial sum, beside the sum over
    ``replicas``, the axes of ranks that have the same elements and other tokens. ``copies`` says along which axes not
    all ranks have the same elements, and how many do. ``tied`` names the ranks of the two stages that have a tied
    table: over these its gradient is added up before replicas are.
    """

    name: str
    shards: tuple[Shard, ...] = ()
    partial: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ("dp", "cp")
    copies: Mapping[str, int] = field(default_factory=dict)
    tied: str | None = None

    def cut(self, shard: Shard | None, partial: str | None = None) -> Placement:
        """The same with one more cut, and one more axis of partial sums."""
        return replace(
            self,
            shards=self.shards + ((shard,) if shard else ()),
            partial=self.partial + ((partial,) if partial else ()),
            copies={**self.copies, **({shard.axis: shard.copies} if shard else {})},
        )

    def over(self, replicas: str, copies: Mapping[str, int]) -> Placement:
        """The same with other replicas: the ranks of one axis, so many along those of ``copies``."""
        return replace(self, replicas=(replicas,), copies={**self.copies, **copies})

    def of(self, whole: Tensor) -> Tensor:
        """This rank's slice of a whole tensor."""
        for shard in self.shards:
            whole = shard.of(whole)
        return whole

    def whole_shape(self, own: Iterable[int]) -> tuple[int, ...]:
        """The shape of the whole tensor, given that of the slice."""
        shape = list(own)
        for shard in reversed(self.shards):  # the first cut is of the whole
            shape[shard.dim] = shard.size
        return tuple(shape)

    def first_on(self, coordinates: Mapping[str, int]) -> bool:
        """Whether the rank at these coordinates is the first that has its elements, along the axes named there."""
        for axis, index in coordinates.items():
            copies = self.copies.get(axis)
            if index % copies if copies else index:
                return False
        return True


#: By name of the parameter in this rank's model.
Placements = Mapping[str, Placement]


def whole(model: nn.Module) -> dict[str, Placement]:
    """The placements of a model that nobody has cut."""
    return {name: Placement(name) for name, _ in model.named_parameters()}


class WholeNames:
    """What the whole model calls its parameters, noted before it is cut: what a checkpoint of one device has.

    ``parameters`` are in the order of the model, ``matrices`` those of them that weight decay pulls at; ``state`` has the
    keys of its state dict, each with the parameter that it means; ``tied`` is a parameter with two keys; ``buffers`` are
    the other keys.
    """

    def __init__(self, model: nn.Module):
        named = dict(model.named_parameters())
        of = {p: name for name, p in named.items()}
        kept = model.state_dict(keep_vars=True)
        self.parameters = tuple(named)
        self.matrices = {name for name, p in named.items() if p.dim() >= 2}
        self.state = {key: of[value] for key, value in kept.items() if value in of}
        self.buffers = tuple(key for key in kept if key not in self.state)  # biases of routers
        self.tied = next((name for key, name in self.state.items() if key != name), None)

    def in_optimizer_order(self) -> list[str]:
        """As an optimizer of the whole model numbers them: matrices, then vectors."""
        return sorted(self.parameters, key=lambda name: name not in self.matrices)


@dataclass(frozen=True)
class LocalShard:
    """Elements of one tensor that this rank has: ``tensor`` are those from ``start`` on of its slice, end to end.

    ``kind`` is parameter, gradient, or the name of an optimizer state (exp_avg, exp_avg_sq, master); ``shape`` is the
    slice's, ``placement`` says which slice that is.
    """

    kind: str
    placement: Placement
    shape: tuple[int, ...]
    start: int
    tensor: Tensor

    @property
    def name(self) -> str:
        """The parameter's name in the whole model."""
        return self.placement.name


def assemble(shards: Iterable[LocalShard]) -> dict[tuple[str, str], Tensor]:
    """Whole tensors, by kind and name, of the local shards of all ranks."""
    slices: dict[tuple[str, str, tuple[Shard, ...]], tuple[LocalShard, Tensor]] = {}
    for part in shards:
        key = part.kind, part.name, part.placement.shards
        if key not in slices:
            slices[key] = part, part.tensor.new_empty(part.shape)
        slices[key][1].view(-1)[part.start : part.start + part.tensor.numel()] = part.tensor.reshape(-1)
    found: dict[tuple[str, str], Tensor] = {}
    for (kind, name, cuts), (part, own) in slices.items():
        if not cuts:
            found[kind, name] = own
            continue
        if (kind, name) not in found:
            found[kind, name] = own.new_empty(part.placement.whole_shape(own.shape))
        _put(cuts, own, found[kind, name])
    return found


def _put(cuts: tuple[Shard, ...], own: Tensor, whole: Tensor) -> None:
    """Copy a slice into its place: along every cut, without padding."""
    for cut in cuts:
        start, stop = min(cut.start, cut.size), min(cut.stop, cut.size)
        whole, own = whole.narrow(cut.dim, start, stop - start), own.narrow(cut.dim, 0, stop - start)
    whole.copy_(own)
