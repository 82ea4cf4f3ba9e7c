"""A message, and a rank that sends some: its place in the layout, its stages, and the sizes of what it has.

``traffic.py`` says which. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from playbook.block import Kind
from playbook.layout.flat import Bucket
from playbook.layout.stages import StageRanks, placement, split
from playbook.planning.communication import ring_bytes_sent
from playbook.planning.job import OfJob
from playbook.planning.weights import WeightSlot, WeightUnit, flat_vector, only, weight_units
from playbook.schedules.actions import Action
from playbook.schedules.catalogue import of_layout

#: Bytes of an element.
FP32, INT64 = 4, 8
#: Parts of a step. Recomputation is part of ``backward``, ``load`` is what routers have counted in it, and ``first`` is
#: there in a run's first step alone.
PHASES = ("forward", "backward", "gradients", "parameters", "load", "norm", "loss", "scales", "first")


@dataclass(frozen=True)
class Message:
    """``count`` messages of a kind that a rank takes part in, each sending ``bytes`` bytes from it.

    ``axis`` is that of ``parallelize.axis_groups`` (dp also where ranks with other parts of the same samples add up
    gradients), or world for groups across several. ``payload`` is the vector's size as nccl-tests count it, in a group of
    ``ranks``; ``phase`` is one of `PHASES`. Ranks of a part of an axis are so many places ``apart`` on it.
    """

    axis: str
    collective: str
    bytes: int
    count: int
    phase: str
    payload: int
    ranks: int
    apart: int = 1

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.bytes * self.count


def message_in(
    axis: str,
    collective: str,
    elements: int,
    itemsize: int,
    group: tuple[int, int],
    phase: str,
    count: int = 1,
) -> Message:
    """A message in a ``group`` of so many ranks, of which this one has a place."""
    ranks, index = group
    sent = ring_bytes_sent(collective, elements, itemsize, ranks, index)
    return Message(axis, collective, sent, count, phase, elements * itemsize, ranks)


@dataclass(frozen=True)
class WeightSet:
    """Weights of which some ranks have the same, in a ``group`` of so many, of which this one has a place; ZeRO shards
    them over ``shards``, all of the group or a part.

    What ``parallel.replicas.ReplicaSet`` is in a run: gradients are sent in ``buckets``.
    """

    units: list[WeightUnit]
    group: tuple[int, int]
    shards: tuple[int, int]
    buckets: list[Bucket[WeightSlot]]

    def unit(self, bucket: Bucket[WeightSlot]) -> WeightUnit:
        """That of a bucket."""
        return self.units[bucket.unit]


@dataclass(frozen=True)
class Sender(OfJob):
    """One rank of a run: its place, its stages, and sizes of what it has of a micro-batch."""

    rank: int

    @cached_property
    def at(self) -> dict[str, int]:
        return self.layout.coordinates(self.rank)

    @cached_property
    def where(self) -> StageRanks:
        return placement(self.layout)

    @property
    def depth(self) -> int:
        return len(self.where[0])

    @cached_property
    def taken(self) -> list[int]:
        """Micro-batches of each direction."""
        schedule, directions = self.layout.own_schedule, len(self.where)
        if schedule is None:
            return [self.layout.grad_acc // directions] * directions
        count = Counter(schedule.direction(m) for m in range(schedule.microbatches))
        return [count[direction] for direction in range(directions)]

    @cached_property
    def passes(self) -> dict[int, int]:
        """Micro-batches that this rank takes through each of its stages."""
        found: Counter[int] = Counter()
        for direction, count in zip(self.where, self.taken, strict=True):
            for stage in (s for s, home in enumerate(direction) if home == self.at["pp"]):
                found[stage] += count
        return dict(found)

    @cached_property
    def blocks(self) -> dict[int, range]:
        """Blocks of each stage of this rank."""
        cut = split(self.shape.layers, self.depth, self.layout.stage_layers)
        return {stage: cut[stage] for stage in self.passes}

    @cached_property
    def block_passes(self) -> int:
        """How often a micro-batch goes through a block here."""
        return sum(len(self.blocks[stage]) * count for stage, count in self.passes.items())

    @cached_property
    def expert_layers(self) -> dict[int, int]:
        """Blocks with experts here, and how many micro-batches go through each."""
        return {
            layer: count
            for stage, count in self.passes.items()
            for layer in self.blocks[stage]
            if self.shape.is_moe(layer)
        }

    @cached_property
    def layers_again(self) -> dict[int, int]:
        """Blocks here of which backward computes something again, and how many micro-batches go through each."""
        first = self.layout.blocks_again
        return {layer: count for stage, count in self.passes.items() for layer in self.blocks[stage][:first]}

    @cached_property
    def kinds(self) -> dict[Kind, tuple[int, int]]:
        """Of each kind of block, how many are here, and how often a micro-batch goes through one of them."""
        found: dict[Kind, tuple[int, int]] = {}
        for stage, count in self.passes.items():
            again, wide = self.layout.blocks_again, self.job.wide
            for kind, blocks in self.shape.blocks([self.blocks[stage]], again, wide).items():
                here, passes = found.get(kind, (0, 0))
                found[kind] = here + blocks, passes + blocks * count
        return found

    @property
    def expert_passes(self) -> int:
        """How often a micro-batch goes through a block with experts here."""
        return sum(self.expert_layers.values())

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch that ranks of one tensor-parallel group have together."""
        return self.layout.micro_batch * self.job.padded // self.layout.cp

    @property
    def stream(self) -> int:
        """Elements of their residual stream."""
        return self.tokens * self.shape.hidden

    @property
    def mirrored(self) -> bool:
        """Whether another rank of the pipeline has the same stages."""
        return len(self.where) > 1

    @property
    def samples(self) -> tuple[int, int]:
        """How many ranks have other tokens for the same stages, and which of them this one is."""
        layout, at = self.layout, self.at
        return layout.dp * layout.cp, at["cp"] + layout.cp * at["dp"]

    @property
    def routed(self) -> tuple[int, int]:
        """How many ranks route other tokens of the same stages, and which of them this one is."""
        ranks, index = self.samples
        return ranks * self.layout.apart, index * self.layout.apart + self.at["tp"] * self.layout.etp

    @property
    def samples_axis(self) -> str:
        """The axis by which a run counts what these tell each other."""
        return "cp" if self.layout.dp == 1 else "world" if self.mirrored else "dp"

    @cached_property
    def replicas(self) -> tuple[int, int]:
        """How many ranks have the same weights, and which of them this one is."""
        return self._mirror(self.samples)

    @property
    def ep(self) -> tuple[int, int]:
        """How many ranks have different experts of the same blocks, and which of them this one is."""
        return self.layout.ep, self.routed[1] % self.layout.ep

    @property
    def across(self) -> tuple[int, int]:
        """How many shard groups there are, and in which of them this rank is."""
        ranks, index = self.samples
        return self.layout.replicate, index // (ranks // self.layout.replicate)

    def _mirror(self, group: tuple[int, int]) -> tuple[int, int]:
        """The group with that at the mirrored place of the pipeline, where that has the same stages."""
        if not self.mirrored:
            return group
        ranks, index = group
        return 2 * ranks, index + ranks * (self.at["pp"] >= self.layout.pp // 2)

    @cached_property
    def sets(self) -> list[WeightSet]:
        """All weights of this rank, those of experts that other ranks do not have apart."""
        units = weight_units(self.shape, self.layout, self.blocks, self.depth)
        return [
            self._set(some, ep)
            for ep, expert in ((1, False), (self.layout.ep, True))
            if (some := only(units, expert=expert))
        ]

    def _set(self, units: list[WeightUnit], ep: int) -> WeightSet:
        """Weights of which ``ep`` neighbours have different ones."""
        group, shards = self.sharing(ep)
        return WeightSet(units, group, shards, self._buckets(units, shards[0]))

    def sharing(self, ep: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The group and the shards of such a set, each with the place of this rank."""
        ranks, index = (number // ep for number in (self.routed if ep > 1 else self.samples))
        each = ranks // self.layout.replicate
        return self._mirror((ranks, index)), self._mirror((each, index % each))

    @cached_property
    def frozen(self) -> list[WeightSet]:
        """Weights that ZeRO-3 shards though they do not learn."""
        units = weight_units(self.shape, self.layout, self.blocks, self.depth, frozen=True)
        some = units if self.shape.train != "full" and self.layout.zero == 3 else []
        return [self._set(some, 1)] if some else []

    def _buckets(self, units: list[WeightUnit], ranks: int) -> list[Bucket[WeightSlot]]:
        layout, size = self.layout, self.recipe.states.parameters
        vector = flat_vector(units, ranks if layout.zero else 1)
        if layout.zero == 3:
            return vector.cut()
        return vector.cut(layout.bucket // size, layout.first_bucket // size)

    @cached_property
    def actions(self) -> Sequence[Action]:
        """What this rank does in a step, in order."""
        return of_layout(self.layout, self.layout.grad_acc).ranks[self.at["pp"]]

    @property
    def gradient_bytes(self) -> int:
        """Of an element of a gradient that is sent: where there is an fp32 sum beside it, that."""
        return min(FP32, self.recipe.states.gradients)

    @property
    def read_row(self) -> int:
        """Bytes of a token's hidden features on their way to experts: in FP8 if scales are powers of two."""
        recipe, h = self.recipe, self.shape.hidden
        groups = recipe.fp8.groups if recipe.fp8 else None
        if groups is None or not groups.powers or recipe.linear_inputs < 1:
            return h * recipe.compute
        return h + -(-h // (groups.columns or h)) * groups.scale_bytes

    def over(self, axes: Iterable[str]) -> tuple[int, int]:
        """How many ranks there are along these axes, in the order of `AXES`, and which of them this one is."""
        ranks, index = 1, 0
        for axis in axes:
            index += ranks * self.at[axis]
            ranks *= getattr(self.layout, axis)
        return ranks, index

    def routing(self, *axes: str) -> tuple[str, tuple[int, int]]:
        """The axis by which a run counts what ranks along ``axes`` tell each other that route other tokens, and these."""
        if not self.layout.etp:
            return ("cp", self.over(axes)) if axes == ("cp",) else (self.samples_axis, self.samples)
        long = [axis for axis in ("tp", *axes) if getattr(self.layout, axis) > 1]
        return long[0] if len(long) == 1 else "world", self.over(("tp", *axes))

    def tp(self, collective: str, elements: int, itemsize: int, phase: str, count: int) -> Message:
        layout = self.layout
        return message_in("tp", collective, elements, itemsize, (layout.tp, self.at["tp"]), phase, count)
