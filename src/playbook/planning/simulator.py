"""How long a step takes, made of the same things that run: operations, messages, a schedule, an optimizer.

Seconds of each stage for one micro-batch come from `stage_times`, the schedule is walked through on them
(`schedules.makespan`, which a test holds to the timeline), then replicas add up gradients, the optimizer passes over its
states, and a step waits for the slowest of its ranks. What cannot run, or does not fit, is refused as the planner does.
Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from playbook.errors import ConfigError, LayoutError
from playbook.hardware import Cluster, verdict_of
from playbook.layout import Layout
from playbook.layout.stages import depth, placement, split
from playbook.planning import memory as planned
from playbook.planning.calibration import Calibration, load_calibration
from playbook.planning.flops import StepFlops, stages_of_equal_cost, step_flops
from playbook.planning.job import Job, OfJob
from playbook.planning.memory import Held, MemoryReport, held_by_ranks
from playbook.planning.message_times import Links
from playbook.planning.operations import Sizes
from playbook.planning.roofline import Device
from playbook.planning.stage_times import Pass, StageTimes, Work
from playbook.registry import lab
from playbook.schedules import makespan
from playbook.shapes import ModelShape

#: Schedules whose backward passes are whole, and of which the first rank has pp micro-batches in flight at least.
WHOLE = ("1f1b", "interleaved", "afab")
#: Parts of a step, in the order of `Step.breakdown`.
PARTS = ("compute", "tp", "cp", "ep", "dp_exposed", "pp_comm", "bubble", "optimizer", "stragglers")
#: Parameters of a gradient bucket: so many, or so many for each replica (Megatron-LM's DistributedDataParallel).
BUCKET, BUCKET_OF_REPLICA = 40_000_000, 1_000_000


@dataclass(frozen=True)
class Step:
    """A predicted step: ``breakdown`` are seconds by part, which add up to ``seconds``.

    ``peak_flops`` is what MFU is a share of, ``memory`` the planner's report, ``needs`` the bytes of its fullest rank
    with what an allocator takes beside, ``capacity`` what a GPU has less what was asked to stay free. ``verdict`` is that
    of ``hardware.verdict_of``, by what was asked to stay free or the default. ``interval``: seconds between which four of
    five measured steps lie that the calibration has not seen.
    """

    seconds: float
    breakdown: dict[str, float]
    tokens: int
    gpus: int
    flops: StepFlops
    peak_flops: float
    memory: MemoryReport
    needs: int
    capacity: int
    verdict: str
    interval: tuple[float, float]

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens / self.seconds / self.gpus

    @property
    def mfu(self) -> float:
        """FLOPs that the model needs, over what the GPUs could compute in the time."""
        return self.flops.model / (self.seconds * self.gpus * self.peak_flops)

    @property
    def hfu(self) -> float:
        """The same with what is recomputed."""
        return self.flops.hardware / (self.seconds * self.gpus * self.peak_flops)

    @property
    def fits(self) -> bool:
        return self.needs <= self.capacity

    def to_json(self) -> dict[str, Any]:
        """The object of ``playbook simulate --json``."""
        return {
            "step_s": self.seconds,
            "step_interval_s": self.interval,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "memory": {
                "peak": self.needs,
                "capacity": self.capacity,
                "fits": self.fits,
                "verdict": self.verdict,
            },
            "breakdown_s": self.breakdown,
        }


def simulate(
    shape: ModelShape,
    layout: Layout,
    cluster: Cluster,
    *,
    calibration: str | Calibration | None = None,
    compiled: bool | None = None,
    overlap: Mapping[str, bool] | None = None,
    imbalance: float = 1.0,
    reserve: int | None = None,
    limit: bool = True,
    **job: Any,
) -> Step:
    """A step of ``layout`` (which has micro_batch and grad_acc) in training ``shape``; further arguments are those of a
    `Job`, ``seq`` at least.

    ``calibration`` says what device and framework reach; None is that of the cluster's accelerator. ``compiled`` says
    whether elementwise operations run as one kernel (None: as the calibration has it), ``overlap`` by axis (dp, tp, cp,
    ep, pp) which messages hide behind computation. Where experts are on several ranks, those of the busiest one get
    ``imbalance`` times a rank's share of the tokens. Raises LayoutError, ShapeError or ConfigError for what cannot run
    and, unless ``limit`` is False, for what does not fit into the memory of a GPU less ``reserve`` bytes (None: all of
    it): in one sentence.
    """
    known = load_calibration(calibration, cluster.accelerator)
    run = Run(Job(shape, layout, **job), cluster, known, compiled, overlap or {}, imbalance)
    return run.step(reserve, limit)


def stragglers(calibration: Calibration, ranks: int) -> float:
    """How much later the slowest of so many ranks is done than the mean, whose times scatter as a normal distribution."""
    return calibration.jitter * math.sqrt(2 * math.log(ranks))


def stage_layers(shape: ModelShape, depth: int, calibration: Calibration) -> tuple[int, ...] | None:
    """Blocks of each of ``depth`` stages as the framework cuts them; None are as many each."""
    return stages_of_equal_cost(shape, depth) if calibration.balanced and depth <= shape.layers else None


@dataclass(frozen=True)
class Run(OfJob):
    """All that `simulate` is asked about, and what follows from it."""

    cluster: Cluster
    calibration: Calibration
    compiled: bool | None = None
    overlap: Mapping[str, bool] = field(default_factory=dict)
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        """Memory is kept and, where nobody said how, stages are cut as the framework does it."""
        object.__setattr__(self, "job", self.job.within(self.calibration.kernels, self.calibration.keeps))
        layout = self.layout
        if layout.pp > 1 and layout.stage_layers is None and layout.own_schedule is None:
            sizes = stage_layers(self.shape, depth(layout), self.calibration)
            if sizes:
                object.__setattr__(self, "job", self.job.relayout(stage_layers=sizes))

    def check(self) -> None:
        """Raise LayoutError, ShapeError or ConfigError for what cannot run, whether it fits or not."""
        for axis in self.overlap:
            if axis not in ("dp", "tp", "cp", "ep", "pp"):
                raise ConfigError(f"overlap has {axis!r}, but may have dp, tp, cp, ep and pp")
        if not isinstance(self.imbalance, int | float) or not 1 <= self.imbalance <= self.layout.ep:
            raise ConfigError(f"imbalance must be from 1 to ep = {self.layout.ep}, got {self.imbalance!r}")
        self.job.check(self.cluster)

    def step(self, reserve: int | None = None, limit: bool = True) -> Step:
        """The step. Raises as `simulate` does."""
        self.check()
        capacity = self.cluster.accelerator.memory_bytes - (reserve or 0)
        if limit and self.needs > capacity:
            raise LayoutError(self.does_not_fit(capacity))
        breakdown = self.breakdown
        seconds = sum(breakdown.values())
        return Step(
            seconds, breakdown, self.layout.global_batch * self.seq, self.layout.world_size,
            self.flops, self.cluster.accelerator.peak("bf16" if self.device.width < 4 else "fp32"), self.memory,
            self.needs, capacity, self.verdict(reserve),
            (seconds * self.calibration.interval[0], seconds * self.calibration.interval[1]),
        )  # fmt: skip

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each rank of the pipeline has of the model."""
        return tuple(held_by_ranks(self.job, {}))

    @cached_property
    def memory(self) -> MemoryReport:
        return planned.predict_job(self.job)

    @property
    def needs(self) -> int:
        """Bytes of the fullest rank, with what the framework's allocator takes beside."""
        return round(self.memory.peak * self.calibration.reserved)

    def verdict(self, reserve: int | None = None) -> str:
        """Whether it fits, beside ``reserve`` bytes that stay free; None are as many as by default."""
        return verdict_of(self.needs, self.cluster.accelerator.memory_bytes, reserve)

    def does_not_fit(self, capacity: int) -> str:
        """The sentence for a layout that needs more memory than ``capacity``, a GPU's less what is to stay free."""
        gpu = self.cluster.accelerator
        free = gpu.memory_bytes - capacity
        return (
            f"layout {str(self.layout) or 'of one device'} needs {self.needs / 1e9:.1f} GB on a rank of stage "
            f"{self.memory.fullest.stage}, but {gpu.name} has {gpu.memory_bytes / 1e9:.1f} GB"
            + (f", of which {free / 1e9:.1f} GB stay free" if free else "")
        )

    @cached_property
    def flops(self) -> StepFlops:
        layout, shape = self.layout, self.shape
        cut = split(shape.layers, self.times.depth, layout.stage_layers)
        return step_flops(shape, layout.global_batch, self.seq, layout.recompute, cut, self.job.document)

    @cached_property
    def device(self) -> Device:
        fused = self.calibration.fused if self.compiled is None else self.compiled
        chip, how = self.cluster.accelerator, self.recipe
        return Device(chip, self.calibration, how.compute, how.fp8.dtype if how.fp8 else "", fused)

    @cached_property
    def links(self) -> Links:
        return Links(self.cluster, self.layout, self.calibration)

    @cached_property
    def times(self) -> StageTimes:
        sizes = Sizes(self.job, self.waited_for)
        return StageTimes(sizes, self.device, self.links, self.overlap)

    @property
    def waited_for(self) -> float:
        """How many times its share the rank that others wait for gets of the tokens: GPUs wait for the busiest."""
        return self.imbalance

    @cached_property
    def stages(self) -> list[Pass]:
        """A micro-batch on each stage, with what waiting for ZeRO's messages adds to it."""
        if not self.at_once:
            return self.times.stages
        home, known, found = placement(self.layout)[0], dict[tuple[int, int], Pass](), list[Pass]()
        for rank, one in zip(home, self.times.stages, strict=True):
            held = self.held[rank]
            if (key := (id(held.counts), id(one))) not in known:  # most stages are like their neighbours
                known[key] = self._sharded(held, one)
            found.append(known[key])
        return found

    def _sharded(self, held: Held, one: Pass) -> Pass:
        """A stage whose gradients (ZeRO-2), and weights (ZeRO-3), are sent for every micro-batch.

        The first gather has nothing to hide behind, nor has the last reduction; the rest does as far as there is time.
        """
        stages = max(1, self.times.depth // self.layout.pp)
        gather, reduce = self._gather(held) / stages, self._reduce(held) / stages
        hidden, blocks = self.times.hidden("dp"), max(1, held.layers // stages)
        sends = (gather, gather + reduce) if self.layout.zero == 3 else (0.0, reduce)
        works = one.forward, one.inputs + one.weights
        exposed = [
            max(send / blocks, send - hidden * min(work.compute, work.quiet)) if send else 0.0
            for send, work in zip(sends, works, strict=True)
        ]
        return one + Pass(Work(0.0, {"dp": exposed[0]}), Work(0.0, {"dp": exposed[1]}))

    @property
    def at_once(self) -> bool:
        """Whether gradients are reduced for every micro-batch: ZeRO-2 and 3 have no place to add up whole ones. Where a
        pipeline keeps its weights gathered, it has."""
        return self.layout.zero >= 2 and (self.layout.pp == 1 or self.layout.reshard)

    @property
    def passes(self) -> float:
        """Micro-batches that go through each stage of a rank."""
        return self.layout.grad_acc / len(placement(self.layout))

    @cached_property
    def busy(self) -> list[Pass]:
        """What each rank of the pipeline does in a step, micro-batch by micro-batch."""
        known, found, times = dict[tuple[int, ...], Pass](), list[Pass](), self.passes
        for held in self.held:
            works = [self.stages[stage] for stage in held.stages]
            if (key := tuple(map(id, works))) not in known:
                known[key] = sum((one * times for one in works[1:]), works[0] * times)
            found.append(known[key])
        return found

    def _ends(self, comm: float, blocking: bool) -> list[float]:
        if self.layout.pp == 1:
            return [self.busy[0].seconds]
        works = zip(*(stage.works for stage in self.stages), strict=True)
        forward, inputs, weights = (tuple(work.seconds for work in each) for each in works)
        return makespan.ends(self.layout, forward, inputs, weights, comm, blocking)

    @property
    def hop(self) -> float:
        """Seconds of a message to the next stage."""
        return self.links.hop(self.times.sizes.stream * self.recipe.residual) if self.layout.pp > 1 else 0.0

    @property
    def _hop_beside(self) -> float:
        """Seconds of it on the links that gradients use, too."""
        across = self.links.spread("dp", self.layout.dp * self.layout.cp)[0] > 1
        return self.hop if across or self.links.inside else 0.0

    @cached_property
    def _beside(self) -> list[tuple[float, float, float]]:
        """What each rank has to do beside micro-batches: exposed gradients, the update, parameters that come back."""
        known, found = dict[tuple[int, int], tuple[float, float, float]](), []
        for held, busy in zip(self.held, self.busy, strict=True):
            if (key := (id(held.counts), id(busy))) not in known:
                after = self._optimizer(held), self._gathered(held, busy)
                known[key] = self._exposed(held, busy), *after
            found.append(known[key])
        return found

    @cached_property
    def least(self) -> float:
        """Seconds that a step takes at least, without what stragglers add: a rank of a pipeline begins when a micro-batch
        has come through those before it, and is done when its last gradient has come back from those behind it."""
        way = self.stages[: self.layout.pp] if self.layout.schedule in WHOLE else [Pass()] * self.layout.pp
        before, found, behind = sum(one.forward.seconds for one in way), 0.0, 0.0
        for one, busy, (exposed, *_) in zip(
            reversed(way), reversed(self.busy), reversed(self._beside), strict=True
        ):
            before -= one.forward.seconds
            behind = max(busy.seconds, one.seconds + behind)
            found = max(found, before + behind + exposed)
        return (
            found
            + max(optimizer + gathered for _, optimizer, gathered in self._beside)
            + self.calibration.step
        )

    @cached_property
    def _parts(self) -> dict[str, float]:
        """Seconds by part, the wait of the fullest rank in one: ``waiting``."""
        fullest = max(self.busy, key=lambda rank: rank.seconds)
        axes = ("tp", "cp", "ep", "dp", "pp")
        waits = {axis: sum(work.waits.get(axis, 0.0) for work in fullest.works) for axis in axes}
        ends = self._ends(self.hop, not self.times.hidden("pp"))
        exposed = [end + beside[0] for end, beside in zip(ends, self._beside, strict=True)]
        _, optimizer, gathered = max(self._beside, key=lambda beside: beside[1] + beside[2])
        return {
            "compute": sum(work.compute for work in fullest.works),
            **{axis: waits[axis] for axis in ("tp", "cp", "ep")},
            "dp_exposed": waits["dp"] + max(exposed) - max(ends) + gathered,
            "pp_comm": waits["pp"],
            "waiting": max(ends) - fullest.seconds,
            "optimizer": optimizer + self.calibration.step,
        }

    @cached_property
    def seconds(self) -> float:
        """Of the step: what its parts add up to."""
        found = sum(self._parts.values())
        return found + self._stragglers(found)

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Seconds by part; see `PARTS`. The bubble is what would be waited for if messages took no time."""
        found = dict(self._parts)
        waiting = found.pop("waiting")
        free = max(self._ends(0.0, False)) - max(rank.seconds for rank in self.busy)
        bubble = min(waiting, free) if self.layout.pp > 1 else 0.0
        found |= {"bubble": bubble, "pp_comm": found["pp_comm"] + waiting - bubble}
        found["stragglers"] = self._stragglers(sum(found.values()))
        return {part: found[part] for part in PARTS}

    def _stragglers(self, seconds: float) -> float:
        return seconds * stragglers(self.calibration, self.layout.world_size)

    def _replicas(self, held: Held, frozen: bool = False) -> Iterable[tuple[float, int, str]]:
        """Parameters of a rank that learn, or also ``frozen`` ones, how many ranks have the same, and the axis that these
        are on: experts apart."""
        experts, ranks = sum(unit.experts for unit in held.counts.units), held.counts.replicas
        yield (held.counts.local if frozen else held.counts.learning) - experts, ranks, "dp"
        if experts:
            yield experts, ranks * self.layout.apart // self.layout.ep, "edp"

    def _reduce(self, held: Held) -> float:
        """Seconds to add up gradients over replicas, of ZeRO's shards over those of one group."""
        size = min(4, self.recipe.states.gradients)
        return self._sent(held, "reduce_scatter" if self.layout.zero else "all_reduce", size)

    def _across(self, held: Held) -> float:
        """Seconds to add up shards over groups that have the same ones, once a step."""
        return self._sent(held, "all_reduce", min(4, self.recipe.states.gradients), across=True)

    def _gather(self, held: Held) -> float:
        """Seconds to gather parameters once."""
        return self._sent(held, "all_gather", self.recipe.states.parameters)

    def _sent(self, held: Held, collective: str, size: int, across: bool = False) -> float:
        found = 0.0
        frozen = collective == "all_gather" and self.layout.zero == 3
        for parameters, ranks, axis in self._replicas(held, frozen):
            if across:
                parameters, ranks, axis = parameters / ranks, self.layout.replicate, "replicate"
            if ranks > 1 and parameters:
                bucket = max(BUCKET, BUCKET_OF_REPLICA * ranks)
                count = max(1, round(parameters / bucket))
                found += count * self.links.collective(collective, parameters * size / count, ranks, axis)
        return found

    def _exposed(self, held: Held, busy: Pass) -> float:
        """What of the reduction of gradients comes after backward: it begins with the last micro-batch. That of shards,
        inside a node, takes nothing from the sums over groups of them."""
        reduce = self._across(held) + (0.0 if self.at_once else self._reduce(held))
        quiet = (busy.inputs + busy.weights).quiet / self.layout.grad_acc - self._hop_beside
        window = self.times.hidden("dp") * max(0.0, quiet)
        return max(reduce / max(1, held.layers) * bool(window), reduce - window)

    def _gathered(self, held: Held, busy: Pass) -> float:
        """Parameters that come back after the update; the next forward pass hides them as backward does gradients."""
        if not self.layout.zero or (self.layout.zero == 3 and self.at_once):
            return 0.0
        window = self.times.hidden("dp") * (busy.forward.quiet / self.layout.grad_acc - self._hop_beside)
        return max(0.0, self._gather(held) - max(0.0, window))

    def _optimizer(self, held: Held) -> float:
        """Seconds in which the norm reads gradients, and Adam reads them and the states, and writes these and weights."""
        states, counts = self.recipe.states, held.counts
        updated = counts.shard
        each = 2 * (states.master + states.optimizer) + min(4, states.gradients) + states.parameters
        normed = min(4, states.gradients) * updated
        whole = lab("muon", "seconds")(self, held) if self.job.optimizer == "muon" else 0.0
        return (updated * each + normed) / self.device.bandwidth + whole
