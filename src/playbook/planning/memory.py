"""The memory of every rank of a training run, predicted: parameters, gradients, optimizer states, activations.

On one device the prediction equals what a run really allocates, to the byte (tests compare it with instruments
that count); parallel techniques are held to the same test as the book builds them. The classical
results are special cases: N = hv + L(12h² + 13h) + 2h parameters, 16 or 20 bytes for each, L·s·b·h·(34 + 5as/h) bytes of
activations (Korthikanti et al. 2022, arXiv 2205.05198), ZeRO's table (Rajbhandari et al. 2020, arXiv 1910.02054).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from playbook.block import Kind, linears
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.stages import StageRanks, placement, stages_of
from playbook.planning.job import Job
from playbook.planning.parameters import StateCounts, blocks_of_stages, copies_of_blocks, stage_parameters
from playbook.planning.peak import Moment, RunSizes, Weights, moments
from playbook.planning.pipeline_memory import Keeps, KeptByRanks, StageTerms
from playbook.planning.recipes import Recipe
from playbook.planning.sharding import kept
from playbook.planning.terms import Part, Term, maker, symbols
from playbook.registry import lab
from playbook.shapes import ModelShape

#: Buckets that exist at once where gradients are sharded: one is being filled, two are on their way.
BUCKETS = 3


class Held(NamedTuple):
    """What a rank of a pipeline has of the model: its place (``stage``), its ``stages`` and the ``blocks`` of each,
    whether it has the first end of the model and the last, and how many parameters that are."""

    stage: int
    stages: tuple[int, ...]
    blocks: tuple[Mapping[Kind, int], ...]
    ends: tuple[bool, bool]
    counts: StateCounts

    @property
    def layers(self) -> int:
        return sum(sum(each.values()) for each in self.blocks)


#: Parameters of ranks, by what they follow from.
Counted: TypeAlias = dict[object, StateCounts]


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one rank of a pipeline: what it keeps, and what is alive at the fullest moment of a step.

    ``stage`` is its place among the ranks, ``layers`` those of all the stages that it has, ``in_flight`` the
    micro-batches of which it keeps something, in shares of 1/pp of the model. ``activations`` is their largest amount,
    ``buffers`` what stays besides the model: rotary angles, gradient buckets.
    """

    stage: int
    layers: int
    in_flight: float
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    moment: Moment
    parts: tuple[Part, ...] = field(repr=False)
    buffer_parts: tuple[Part, ...] = field(repr=False)
    counts: StateCounts = field(repr=False)

    @property
    def total(self) -> int:
        """Bytes alive at the fullest moment."""
        return self.parameters + self.optimizer + self.buffers + self.moment.bytes

    @property
    def working(self) -> int:
        """What the fullest moment holds beyond the other five: temporary memory, less what is not there at that moment.

        Negative where gradients and activations never meet at full height.
        """
        held = self.parameters + self.gradients + self.optimizer + self.activations + self.buffers
        return self.total - held

    @property
    def at_peak(self) -> dict[str, int]:
        """The same total, as what each category holds at the fullest moment."""
        return {
            "parameters": self.parameters,
            "gradients": self.moment.gradients,
            "optimizer": self.optimizer,
            "activations": self.moment.activations,
            "buffers": self.buffers,
            "working": self.moment.working,
        }

    def to_json(self) -> dict[str, Any]:
        """The object of ``playbook memory --json``."""
        sizes = ("gradients", "optimizer", "activations", "buffers", "working", "total", "at_peak")
        place = {"stage": self.stage, "layers": self.layers, "in_flight": self.in_flight}
        held = {"params": self.parameters, **{name: getattr(self, name) for name in sizes}}
        return {**place, **held, "moment": self.moment.name}


@dataclass(frozen=True)
class MemoryReport:
    """Every stage of a layout; ranks of one stage hold the same number of bytes."""

    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage whose ranks hold most."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def peak(self) -> int:
        """Bytes of the fullest rank at its fullest moment."""
        return self.fullest.total

    def to_json(self) -> dict[str, Any]:
        return {"stages": [stage.to_json() for stage in self.stages], "peak": self.peak}


def predict(shape: ModelShape, layout: Layout | None = None, **job: Any) -> MemoryReport:
    """Bytes per rank of training ``shape`` under ``layout``; further arguments are those of a `Job`, ``seq`` at least.

    Raises LayoutError or ConfigError, in one sentence, for what cannot run: LayoutError wherever ``Layout.check`` does.
    """
    return predict_job(Job(shape, layout or Layout(), **job))


def predict_job(job: Job, counted: Counted | None = None) -> MemoryReport:
    """What `predict` gives; parameters are ``counted`` once for all jobs of a shape."""
    return MemoryReport(tuple(predict_stages(job, counted=counted)))


def predict_stages(
    job: Job, kept: KeptByRanks | None = None, counted: Counted | None = None
) -> Iterator[StageMemory]:
    """Stage by stage what `predict` gives: who asks only whether all stay below a limit may stop at one that does not.
    What ranks keep, ``kept``, may be known from a job that differs in nothing but ZeRO."""
    job.check()
    if job.layout.method:
        raise ConfigError(
            f"data_parallel is {job.layout.data_parallel!r}, whose memory is seen in runs, not predicted"
        )
    kept = KeptByRanks(job) if kept is None else kept
    alike: dict[object, Weights] = {}  # most ranks have as many blocks as their neighbours
    for one in held_by_ranks(job, {} if counted is None else counted):
        key = id(one.counts), one.stage if job.optimizer == "muon" else 0  # where shards of matrices lie
        if key not in alike:
            alike[key] = _weights(kept.terms.run, job, one)
        yield _rank(one.stage, kept[one.stage], kept.terms, alike[key])


def held_by_ranks(job: Job, counted: Counted) -> Iterator[Held]:
    """What each rank of the pipeline has of the model; parameters are ``counted`` once for all jobs of a shape."""
    layout, where, here = job.layout, placement(job.layout), dict[int, StateCounts]()
    axes = layout.dp, layout.tp, layout.cp, layout.pp, layout.ep, layout.etp, layout.zero, layout.replicate
    cut = _cut(job.shape, where, layout.pp, layout.stage_layers, layout.blocks_again, job.wide)
    for rank, (stages, blocks, ends, like) in enumerate(cut):
        if like not in here:  # the first rank with as many blocks of each kind
            key = axes, ends, len(where), *(tuple(each.items()) for each in blocks)
            if (counts := counted.get(key)) is None:
                given = job.shape, layout, blocks, maker(symbols(job)), ends, len(where)
                counts = counted[key] = stage_parameters(*given)
            here[like] = counts
        yield Held(rank, stages, blocks, ends, here[like])


@lru_cache(maxsize=256)
def _cut(
    shape: ModelShape, where: StageRanks, ranks: int, *how: Any
) -> list[tuple[tuple[int, ...], tuple[Mapping[Kind, int], ...], tuple[bool, bool], int]]:
    """For each rank its stages, their blocks (``how``: see `blocks_of_stages`), which ends of the model it has, and the
    first rank that has as much."""
    depth, alike = len(where[0]), dict[object, int]()
    every, found = blocks_of_stages(shape, depth, *how), []
    for rank, stages in enumerate(stages_of(where, ranks)):
        blocks, ends = tuple(every[s] for s in stages), (0 in stages, depth - 1 in stages)
        key = ends, *(tuple(each.items()) for each in blocks)
        found.append((stages, blocks, ends, alike.setdefault(key, rank)))
    return found


def _weights(run: RunSizes, job: Job, one: Held) -> Weights:
    """Those of a rank of the pipeline."""
    counts, layout = one.counts, job.layout
    kinds = {kind: n for kind in run.blocks if (n := sum(blocks.get(kind, 0) for blocks in one.blocks))}
    more = *_copies(run, layout, kinds), *_kept_by_framework(run, kinds, one.ends[1], counts)
    parameters, gradients, optimizer = _states(counts, layout, run.recipe, job.offload)
    if job.optimizer == "muon":
        optimizer = lab("muon", "states")(job, one.stage)
    buffers = *_buffers(run, layout, counts, [sum(each.values()) for each in one.blocks]), *more
    return Weights(counts, parameters, gradients, optimizer, buffers, kinds, *one.ends)


def _rank(rank: int, most: Keeps, terms: StageTerms, weights: Weights) -> StageMemory:
    """What one rank of the pipeline has."""
    activations, buffers = (sum(part.value for part in parts) for parts in (most.parts, weights.buffers))
    sizes = activations, most.before, terms.full(0), terms.of_head
    fullest = max(moments(terms.run, weights, *sizes), key=lambda m: m.bytes)
    states = weights.parameters, weights.gradients, weights.optimizer
    place = rank, sum(weights.blocks.values()), most.in_flight, *states, activations, buffers
    return StageMemory(*place, fullest, most.parts, weights.buffers, weights.counts)


def _states(counts: StateCounts, layout: Layout, recipe: Recipe, offload: bool) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer states on the fullest replica."""
    experts, apart = counts.replicas * layout.apart // layout.ep, layout.pp > 1
    held = kept(counts.units, counts.replicas, layout.zero, recipe.states, experts=experts, apart=apart)
    parameters = held.parameters + counts.frozen_shard * recipe.states.parameters
    return parameters, held.gradients, 0 if offload else held.optimizer


def _copies(run: RunSizes, layout: Layout, kinds: dict[Kind, int]) -> Iterator[Part]:
    """Weights in FP8, which stay from their first use in a step to the next step; ZeRO-3 makes them again each time."""
    if run.recipe.fp8 and (layout.zero < 3 or layout.dp * layout.cp == 1):
        yield from copies_of_blocks(run.shape, kinds, run.recipe.fp8, run.make)


def _kept_by_framework(
    run: RunSizes, kinds: dict[Kind, int], last: bool, counts: StateCounts
) -> Iterator[Part]:
    """Buffers of `fusion.KEPT`. Layers that read the same are one matrix, of as many rows; those of one shape share an
    empty gradient, in all blocks and experts."""
    if "gathered-input" in run.job.keeps and last and run.layout.sp and run.layout.tp > 1:
        yield Part("gathered input of the head", (run.make("buffers", "input of the head", "b*s*h*c"),), 1)
    if "whole-gradients" in run.job.keeps and run.layout.zero == 3 and run.layout.pp > 1:
        yield Part(
            "whole gradients", (Term("buffers", "of all stages", "4 per weight", 4 * counts.local),), 1
        )
    if "dummy-gradients" in run.job.keeps:
        shapes = dict[tuple[int, int], Term]()
        layers = (row for kind, count in kinds.items() if count for row in linears(run.shape, kind))
        for _, same in groupby(layers, key=lambda row: row.input):
            rows, columns, names = zip(*((row.rows, row.columns, row.name) for row in same), strict=True)
            side = f"({'+'.join(rows)})" if len(rows) > 1 or "+" in rows[0] else rows[0]
            size = run.make("", "", side).value, run.make("", "", columns[0]).value
            shapes.setdefault(size, run.make("buffers", ", ".join(names), f"{side}*{columns[0]}*w"))
        yield Part("empty gradients for autograd", tuple(shapes.values()), 1)


def _buffers(run: RunSizes, layout: Layout, counts: StateCounts, held: Sequence[int]) -> Iterator[Part]:
    """What stays besides the model: rotary angles and, where ZeRO shares gradients or weights out, whole ones in passing.

    ``held`` counts the blocks of each of the rank's stages.

    Without ZeRO and in stage 1 gradients lie in one vector, of which buckets are parts: that costs nothing. From stage 2
    on one bucket is being filled while others are reduced; a bucket of stage 3 is a block. Then the weights of the block
    that runs are there, too, and those of the one being fetched; a rank with several stages of a pipeline keeps both for
    all blocks of the stage that it is at (`schedules.messages.residency`).
    """
    shape, states = run.shape, run.recipe.states
    if shape.positions == "rotary":
        width = "p" if shape.mla else "d"
        yield Part("rotary angles", (run.make("buffers", "cosines and sines (fp32)", f"2*y*{width}*4"),), 1)
    if counts.replicas * layout.replicate == 1 or layout.zero < 2:
        return
    blocks, visit = sum(held), max(held) if len(held) > 1 else 0
    if layout.zero == 2:
        count = BUCKETS
        size = min(layout.bucket, -(-counts.learning * states.gradients // count))
    else:
        count, size = visit or min(BUCKETS, blocks), counts.block_learns * states.gradients
    yield Part("gradient buckets", (Term("buffers", "gradients on their way", "bucket", size),), count)
    if layout.zero == 3:
        gathered = counts.block * states.parameters
        yield Part(
            "gathered blocks",
            (Term("buffers", "parameters of a block", "block", gathered),),
            (visit or min(2, blocks)) if layout.reshard else blocks,
        )
