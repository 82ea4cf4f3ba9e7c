"""Which layout to take: all that fit, fastest first.

Candidates are all combinations that `Space` has and `Layout.check` lets pass. A bound says what each needs at least: the
busiest stage's micro-batches, which the simulator's step contains whole. Candidates are taken in the order of their
bounds, so that the search is over when the next bound is beyond the worst of the layouts found: nothing better can come.
What has no room even for its share of the states is not looked at. Standard library only.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar, cast

from playbook._checks import check_int, divisors, unknown
from playbook.block import Kind, size, symbols, weighty
from playbook.errors import ConfigError, LayoutError, PlaybookError
from playbook.hardware import Cluster
from playbook.layout import RECOMPUTE, Layout, recomputed
from playbook.layout.fields import KINDS, blocks_again
from playbook.layout.stages import check_microbatches
from playbook.planning.calibration import Calibration, load_calibration
from playbook.planning.job import Job, OfJob
from playbook.planning.memory import MemoryReport, StageMemory, held_by_ranks, predict_stages
from playbook.planning.parameters import StateCounts, blocks_of_stages
from playbook.planning.peak import RunSizes
from playbook.planning.pipeline_memory import KeptByRanks, StageTerms
from playbook.planning.regret import choice, expected_regrets
from playbook.planning.simulator import WHOLE, Run, Step, stage_layers, stragglers
from playbook.planning.stage_times import Pass, paired
from playbook.planning.terms import total
from playbook.shapes import ModelShape

#: In `Space.recompute`: of each stage as few blocks as it takes to fit.
FEWEST = "full:N"
#: Of so many fastest layouts the one with the least expected regret is the first.
CLOSE = 10
#: Whether a layout that fits is wanted.
Accept = Callable[[Run], bool]


@dataclass(frozen=True)
class Space:
    """What a search may choose from; None is everything that can run. Tensor parallelism stays inside a node, unless
    ``tp`` says otherwise; with it goes sequence parallelism."""

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[str, ...] = ("none", "selective", "full")
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    vpp: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    #: Groups of ranks that each have all of ZeRO's shards; None: one, or as many as let each of them fill a node.
    replicate: tuple[int, ...] | None = None
    #: Experts cut as attention is (0), or whole (1); None: whole where ranks have no more of them.
    etp: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        of = {"schedules": KINDS, "recompute": RECOMPUTE, "zero": range(4), "etp": range(2)}
        for name, known in of.items():
            given = getattr(self, name)
            for value in given or ():
                if value not in known and not (
                    name == "recompute" and (value == FEWEST or recomputed(value))
                ):
                    raise ConfigError(unknown(name, str(value), map(str, known)))
            if given == ():
                raise ConfigError(
                    f"{name} has nothing to choose from: give one of {', '.join(map(str, known))}"
                )
        for name in ("tp", "cp", "pp", "ep", "vpp", "micro_batch", "replicate"):
            for value in getattr(self, name) or ():
                check_int(name, value, ConfigError)


@dataclass(frozen=True)
class Problem(OfJob):
    """What is to be trained on what: ``global_batch`` samples of a ``job`` a step on all ``cluster.gpus``.

    Of the job's layout, the options of techniques hold for all that is found. Of the memory of each GPU ``reserve`` bytes
    stay free.
    """

    cluster: Cluster
    global_batch: int
    calibration: Calibration | None = None
    compiled: bool | None = None
    overlap: Mapping[str, bool] = field(default_factory=dict)
    reserve: int = 0

    def __post_init__(self) -> None:
        check_int("gpus", self.cluster.gpus, ConfigError)
        check_int("global_batch", self.global_batch, ConfigError)
        check_int("reserve", self.reserve, ConfigError, least=0)
        known = self.calibrated
        object.__setattr__(self, "job", self.job.within(known.kernels, known.keeps))

    @property
    def gpus(self) -> int:
        return self.cluster.gpus or 1

    @property
    def capacity(self) -> int:
        return self.cluster.accelerator.memory_bytes - self.reserve

    @cached_property
    def calibrated(self) -> Calibration:
        return load_calibration(self.calibration, self.cluster.accelerator)

    def run(self, layout: Layout) -> Run:
        """What `simulate` is asked about a layout."""
        return Run(self.job.on(layout), self.cluster, self.calibrated, self.compiled, self.overlap)


@dataclass(frozen=True)
class Found:
    """A layout, its step, and its expected regret (`planning.regret`) among those that were found with it."""

    layout: Layout
    step: Step
    regret: float = 0.0


@dataclass(frozen=True)
class Result:
    """The fastest layouts that fit, and how many there were to choose from: ``candidates`` that can run, of which as many
    were ``evaluated``."""

    found: tuple[Found, ...]
    candidates: int
    evaluated: int

    @property
    def best(self) -> Found:
        return self.found[0]


def search(
    problem: Problem,
    space: Space | None = None,
    top: int = 10,
    *,
    prune: bool = True,
    accept: Accept = bool,
    among: int = CLOSE,
) -> Result:
    """The ``top`` fastest layouts, of those that ``accept`` takes, fastest first but for the very first: of the ``among``
    fastest the one with the least expected regret. Without ``prune`` all are simulated, to the same end.

    Raises LayoutError where none can run or none fits, and says which came nearest.
    """
    kept = max(check_int("top", top, ConfigError), among)
    planner, space = Planner(problem), space or Space()
    bases = [(base, again) for base in _bases(problem, space) for again in space.recompute]
    if not bases:
        raise LayoutError(
            f"no layout takes {problem.global_batch} samples of {problem.seq} tokens to {problem.gpus} GPUs: "
            "what cuts the batch, the sequence, heads, layers and experts must divide them"
        )
    # From rough bounds to close ones: of all with the same axes, of one with a share of the whole batch, of it as it is,
    # of each ZeRO stage with its messages.
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (base, again) in enumerate(bases):
        groups.setdefault((base.tp, base.cp, base.pp, base.ep, base.etp, again), []).append(i)
    firsts = [some[0] for some in groups.values()]
    order = [(planner.bound_of_axes(*bases[i]) if prune else 0.0, 0, i) for i in firsts]
    heapq.heapify(order)
    best: list[tuple[float, tuple[int, ...], int, Run]] = []  # a heap, the slowest first
    evaluated, runs = 0, list[Run]()
    while order:
        bound, close, i = heapq.heappop(order)
        worst = -best[0][0] if prune and len(best) == kept else math.inf
        if bound >= worst:
            break
        if close == 3:
            evaluated += 1
            run = runs[i]
            if planner.fits(run) and accept(run):
                push = heapq.heappush if len(best) < kept else heapq.heappushpop
                push(best, (-run.seconds, tuple(-n for n in _effort(run.layout)), -i, run))
            continue
        base, again = bases[i]
        if close < 2:
            same = groups[base.tp, base.cp, base.pp, base.ep, base.etp, again] if close == 0 else (i,)
            full = set()  # schedules of which fewer samples at once did not fit
            for other in same:
                if (way := (bases[other][0].schedule, bases[other][0].vpp)) in full:
                    continue
                bound = planner.bound_of_all(space, *bases[other], close=close == 1) if prune else 0.0
                if bound == math.inf:
                    full.add(way)
                else:
                    heapq.heappush(order, (bound, close + 1 if prune else 2, other))
            continue
        for zero, replicate in _shardings(problem, space, base):
            whole = "full" if again == FEWEST else again
            if prune and planner.least(base, (zero, replicate), whole) > problem.capacity:
                continue
            layout = base.replace(zero=zero, replicate=replicate, recompute=whole)
            if bases[i][1] == FEWEST and (layout := planner.fewest(layout)).recompute in space.recompute:
                continue  # which is among the others
            if one := planner.run(layout):
                least = one.least * planner.slowest / SURE if prune else 0.0
                if least < worst:
                    heapq.heappush(order, (least, 3, len(runs)))
                    runs.append(one)
    if not best:
        every = (layout for base in bases for layout in _variants(problem, space, *base))
        raise LayoutError(planner.nearest(every))
    ranked = [run for *_, run in sorted(best, reverse=True)]
    regrets = expected_regrets(ranked[:among])
    first = choice(ranked[:among], regrets)
    order_of = [first, *(i for i in range(len(ranked)) if i != first)][:top]
    found = (
        Found(ranked[i].layout, ranked[i].step(problem.reserve), regrets[i] if i < among else math.nan)
        for i in order_of
    )
    each = ((len(some), _shardings(problem, space, bases[some[0]][0])) for some in groups.values())
    return Result(tuple(found), sum(count * len(ways) for count, ways in each), evaluated)


def candidates(problem: Problem, space: Space) -> Iterator[Layout]:
    """All layouts of a space that can run, whether they fit or not."""
    for base in _bases(problem, space):
        for again in space.recompute:
            yield from _variants(problem, space, base, again) if again != FEWEST else ()


def _variants(problem: Problem, space: Space, base: Layout, recompute: str) -> Iterator[Layout]:
    """What ZeRO can do with a layout. Of `FEWEST` these are those with all blocks."""
    recompute = "full" if recompute == FEWEST else recompute
    for zero, replicate in _shardings(problem, space, base):
        yield base.replace(zero=zero, replicate=replicate, recompute=recompute)


def _shardings(problem: Problem, space: Space, base: Layout) -> list[tuple[int, int]]:
    """Stages, and how many groups have all shards. On one replica, stages mean nothing."""
    ranks = base.dp * base.cp
    filled = (1, ranks * base.tp // problem.cluster.gpus_per_node)
    found = [(0, 1)] if 0 in space.zero and 1 in (space.replicate or filled) else []
    for replicate in sorted({n for n in space.replicate or filled if n}):
        if ranks > 1 and base.dp % replicate == 0 and ranks * base.apart // replicate % base.ep == 0:
            found += [(zero, replicate) for zero in space.zero if zero]
    return found


def _effort(layout: Layout) -> tuple[int, ...]:
    """Of two layouts that are as fast, the one that asks for less comes first."""
    rare = (
        layout.cp,
        layout.zero,
        layout.replicate,
        {"none": 0, "selective": 1, "full": 3}.get(layout.recompute, 2),
        layout.vpp,
    )
    return (*rare, layout.micro_batch, layout.tp, layout.pp)


def _bases(problem: Problem, space: Space) -> Iterator[Layout]:
    """All ways to cut the model and the batch, without ZeRO and recomputation."""
    shape, gpus = problem.shape, problem.gpus
    tps = space.tp or [t for t in divisors(gpus) if t <= problem.cluster.gpus_per_node]
    for tp, cp in itertools.product(tps, space.cp or _context_sizes(problem)):
        if gpus % (tp * cp):
            continue
        for pp in space.pp or [p for p in divisors(gpus // tp // cp) if p <= shape.layers]:
            if gpus % (tp * cp * pp) or (problem.global_batch * pp * tp * cp) % gpus:
                continue
            dp = gpus // (tp * cp * pp)
            for ep, etp in _experts(space, shape, dp * cp, tp):
                axes = Layout(dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, sp=tp > 1, **problem.layout.options)
                yield from _batches(problem, space, axes)


def _batches(problem: Problem, space: Space, layout: Layout) -> Iterator[Layout]:
    """Schedules and micro-batches of the same axes."""
    each = problem.global_batch // layout.dp
    micro, checked = [m for m in sorted(space.micro_batch or divisors(each)) if each % m == 0], set()
    for micro_batch, (schedule, vpp) in itertools.product(micro, _schedules(problem.shape, space, layout.pp)):
        base = layout.replace(
            micro_batch=micro_batch, grad_acc=each // micro_batch, schedule=schedule, vpp=vpp
        )
        try:
            if (way := (schedule, vpp)) not in checked:
                problem.job.on(base).check()
                checked.add(way)
            check_microbatches(base, base.grad_acc)
        except PlaybookError:
            continue
        yield base


def _context_sizes(problem: Problem) -> list[int]:
    """Powers of two, as long as a rank has 1,024 tokens of a sample: fewer are a matter of tensor parallelism."""
    return [1 << i for i in range(12) if i == 0 or problem.seq // (1 << i) >= 1024]


def _experts(space: Space, shape: ModelShape, ranks: int, tp: int) -> list[tuple[int, int]]:
    """``ep`` and ``etp``: experts cut as attention is, or whole ones over all of tp as well. By default those are whole
    that could be either: a rank has as much of them, in products that are as wide again."""
    experts = shape.moe.experts if shape.moe else 1
    if tp == 1 or space.ep or space.etp:
        etps = space.etp or (0, 1) if tp > 1 and shape.moe else (0,)
        each = itertools.product(space.ep or divisors(experts), etps)
        return [(n, etp) for n, etp in each if ranks * (tp if etp else 1) % n == 0 and (n > 1 or not etp)]
    sizes = [n for n in divisors(experts) if ranks % n == 0]
    return [(n, 0) if experts % (n * tp) else (n * tp, 1) for n in sizes]


def _schedules(shape: ModelShape, space: Space, pp: int) -> list[tuple[str, int]]:
    if pp == 1:
        return [("1f1b", 1)]
    vpps = space.vpp or [v for v in divisors(shape.layers // pp) if v > 1]
    return [(name, vpp) for name in space.schedules for vpp in ([1] if KINDS[name].chunks else vpps)]


#: Sums in another order differ by less.
SURE = 1 + 1e-9
T = TypeVar("T")
#: The ZeRO stage, and in how many groups of ranks.
Sharding: TypeAlias = tuple[int, int]


def _alike(layout: Layout) -> tuple[int, ...]:
    """What times and tensors of blocks depend on, beside recomputation."""
    return layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch


class Planner:
    """Bounds and steps of one problem's layouts. What many have in common is computed once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.slowest = 1.0 + stragglers(problem.calibrated, problem.gpus)
        self.kinds = problem.shape.blocks(wide=problem.job.wide)
        self._known: dict[tuple[object, ...], Any] = {}
        self._counted: dict[object, StateCounts] = {}

    def _once(self, make: Callable[[], T], *key: object) -> T:
        """What ``make`` makes, which depends on ``key`` alone; it is kept as long as the planner."""
        if (found := self._known.get(key)) is None:
            found = self._known[key] = make()
        return cast(T, found)

    def run(self, layout: Layout) -> Run | None:
        """What `simulate` is asked, with what is known already, but for its memory; None where it cannot run."""
        run = self.problem.run(layout)
        vars(run.times)["blocks"], vars(run.times)["ends"] = self.parts(layout, layout.recompute)
        same = _alike(layout), layout.recompute, layout.pp, layout.vpp, layout.schedule
        try:
            vars(run)["held"] = tuple(held_by_ranks(run.job, self._counted))
            plain = layout.zero == 0  # of which frameworks may stall less
            vars(run.times)["stages"] = self._once(lambda: run.times.stages, "stages", same, plain)
            if not run.at_once:
                vars(run)["busy"] = self._once(lambda: run.busy, "busy", same, plain, layout.grad_acc)
        except PlaybookError:
            return None
        return run

    def fits(self, run: Run) -> bool:
        """Whether the memory of each rank is enough; if so, the run has it."""
        try:
            stages = tuple(itertools.takewhile(self._fits, self._stages(run.job)))
        except PlaybookError:
            return False
        vars(run)["memory"] = MemoryReport(stages)
        return len(stages) == run.layout.pp

    def fewest(self, layout: Layout) -> Layout:
        """The same with whole blocks computed again in each stage, as few as fit; all where that is not enough."""

        def fits(blocks: int) -> bool:
            job = self.problem.run(layout.replace(recompute=f"full:{blocks}")).job
            try:
                return all(map(self._fits, self._stages(job)))
            except PlaybookError:
                return False

        most = -(-self.problem.shape.layers // layout.stages)
        blocks = bisect.bisect_left(range(most), True, key=fits)
        return layout.replace(recompute="full" if blocks == most else f"full:{blocks}" if blocks else "none")

    def _stages(self, job: Job) -> Iterator[StageMemory]:
        return predict_stages(job, self._kept(job), self._counted)

    def _kept(self, job: Job) -> KeptByRanks:
        """What ranks keep of their micro-batches."""
        layout = job.layout
        stay = layout.world_size > 1 or layout.grad_acc > 1
        same = _alike(layout), layout.recompute, layout.pp > 1, stay
        terms = self._once(lambda: StageTerms.of(RunSizes(job)), "terms", same)
        order = layout.schedule, layout.pp, layout.vpp, layout.grad_acc
        return self._once(lambda: KeptByRanks(job, terms), "kept", same, order)

    def _fits(self, stage: StageMemory) -> bool:
        return self._needs(stage) <= self.problem.capacity

    def _needs(self, stage: StageMemory) -> int:
        """Bytes of a stage's ranks, with what the framework's allocator takes beside."""
        return round(stage.total * self.problem.calibrated.reserved)

    def parts(self, layout: Layout, recompute: str) -> tuple[dict[Kind, Pass], tuple[Pass, Pass]]:
        """Times of blocks, and of embedding and head. How many ranks share the experts matters to these alone."""
        times = self.problem.run(layout.replace(recompute=recompute)).times
        same, blocks = (layout.tp, layout.cp, layout.micro_batch), {}
        # What is computed again without a message.
        silent = {"offload", "core_attn"} if layout.cp == 1 else {"offload"}
        again = times.layout.again - silent
        vars(times.sizes)["sent"] = self._once(dict, "sent", _alike(layout), again, times.layout.blocks_again)
        for kind in times.sizes.job.kinds:
            here = (*same, kind, *(layout.ep, layout.etp) * kind.experts)
            passes = self._once(partial(times.operations, kind), "operations", here)
            beside = recompute, paired(layout)
            blocks[kind] = self._once(partial(times.block, kind, passes), "block", here, beside)
        return blocks, self._once(lambda: times.ends, "ends", same, recompute)

    def bound(self, layout: Layout, recompute: str, micro_batch: int = 0) -> float:
        """Seconds that a step takes at least; with a ``micro_batch``, one with micro-batches of that size.

        A rank of a pipeline begins when a micro-batch has come through the stages before its first one, works for all
        micro-batches, and then the last one's gradient has to go back through these. Where W is apart from B, or
        micro-batches enter at both ends, all that is sure is the work of a mean rank. All wait for the slowest of them.
        """
        stages, m = self.stages(layout, recompute, micro_batch), layout.grad_acc
        if layout.pp > 1 and layout.schedule not in WHOLE:
            return sum(stages) / layout.pp * m * self.slowest
        found, before = 0.0, 0.0
        for rank in range(layout.pp):
            found = max(found, before + m * sum(stages[rank :: layout.pp]))
            before += stages[rank]
        return found * self.slowest

    def bound_of_axes(self, layout: Layout, recompute: str) -> float:
        """The same for all schedules and micro-batches of its axes: the work of a mean rank, the whole batch at once.
        Where some blocks of each stage are computed again, that depends on the schedule, and nothing is sure."""
        recompute, whole = "none" if recompute == FEWEST else recompute, self.problem.global_batch
        if blocks_again(recompute) is not None:
            return 0.0
        work = sum(self.stages(layout, recompute, whole))
        return work / (layout.dp * layout.pp) * self.slowest / SURE

    def bound_of_all(self, space: Space, base: Layout, recompute: str, close: bool = False) -> float:
        """The same for all ZeRO stages of a layout; infinite where not even the last one makes it fit.

        Unless it is to be ``close``, it is the share of micro-batches of the whole global batch, which all sizes have in
        common: k samples at once never take longer than one after the other.
        """
        fastest, leanest = ("none", "full") if recompute == FEWEST else (recompute, recompute)
        if not close and self.least(base, (max(space.zero), base.replicate), leanest) > self.problem.capacity:
            return math.inf
        whole = self.problem.global_batch
        if close or base.micro_batch == whole:
            return self.bound(base, fastest)
        return self.bound(base, fastest, whole) * (base.micro_batch / whole) / SURE

    def stages(self, layout: Layout, recompute: str, micro_batch: int = 0) -> list[float]:
        """Seconds of a micro-batch on each stage, forward and backward."""
        same = _alike(layout)[:-1], micro_batch or layout.micro_batch, recompute, paired(layout)
        blocks, ends = self._once(partial(self._seconds, layout, recompute, micro_batch), "seconds", same)
        first = blocks_again(recompute)
        unlike, cut = self._once(partial(self._cut, layout.stages, first), "cut", layout.stages, first)
        seconds = [sum(blocks[kind] * n for kind, n in each) for each in unlike]
        found = [seconds[i] for i in cut]
        found[0] += ends[0]
        found[-1] += ends[1]
        return found

    def _seconds(self, layout: Layout, recompute: str, micro: int) -> tuple[dict[Kind, float], list[float]]:
        blocks, ends = self.parts(layout.replace(micro_batch=micro or layout.micro_batch), recompute)
        return {kind: one.seconds for kind, one in blocks.items()}, [one.seconds for one in ends]

    def _cut(self, depth: int, again: int | None) -> tuple[list[tuple[tuple[Kind, int], ...]], list[int]]:
        """Blocks of stages that are not alike, and which of these each of so many stages is."""
        shape = self.problem.shape
        sizes = stage_layers(shape, depth, self.problem.calibrated) if depth > 1 else None
        held = [
            tuple(each.items())
            for each in blocks_of_stages(shape, depth, sizes, again, self.problem.job.wide)
        ]
        unlike = list(dict.fromkeys(held))
        return unlike, [unlike.index(each) for each in held]

    def least(self, layout: Layout, how: Sharding | None = None, recompute: str | None = None) -> float:
        """Bytes that the fullest rank needs at least: a mean rank's states, weights in passing, what the first one saves
        for backward, and what the backward of a block's attention works with."""
        (zero, replicate), recompute = how or (layout.zero, layout.replicate), recompute or layout.recompute
        found, more = self._once(partial(self._saved, layout, recompute), "saved", _alike(layout), recompute)
        in_flight = float(min(layout.pp, layout.grad_acc) if layout.schedule in WHOLE else 1)
        if (
            v := layout.vpp
        ) > 1 and layout.schedule == "interleaved":  # chunks of the first rank, as it warms up
            in_flight = min(v * layout.grad_acc, 2 * (layout.pp - 1) + (v - 1) * layout.pp + 1) / v
        saved = found * (self.problem.shape.layers // layout.pp) * in_flight
        passing = self._passing(layout) if zero == 3 and layout.dp * layout.cp > 1 else 0.0
        return (
            self._states(layout, zero, replicate) + passing + saved + more
        ) * self.problem.calibrated.reserved

    def _passing(self, layout: Layout) -> float:
        """Bytes of whole weights and gradients of blocks that ZeRO-3 is at, where each rank has one of the commonest."""
        shape, states = self.problem.shape, self.problem.recipe.states
        kind, here = max(self.kinds, key=self.kinds.__getitem__), shape.layers // layout.pp
        if here <= shape.layers - self.kinds[kind]:
            return 0.0
        values = symbols(shape, layout.tp, layout.ep, layout.etp)
        block = self._once(
            lambda: sum(size(row, values) for row in weighty(shape, kind)), layout.tp, layout.ep, layout.etp
        )
        visit = shape.layers // layout.stages if layout.stages > layout.pp else min(2, here)
        return block * (visit * states.gradients + (visit if layout.reshard else here) * states.parameters)

    def _states(self, layout: Layout, zero: int, replicate: int) -> float:
        shape, states = self.problem.shape, self.problem.recipe.states
        experts = 0.0
        if shape.moe:  # of which a token meets top_k
            others = 1 - shape.moe.top_k / shape.moe.experts
            experts = (shape.num_parameters - shape.active_parameters) / others
        both_ways = layout.pp > 1 and KINDS[layout.schedule].bidirectional
        ranks, copies, found = layout.dp * layout.cp // replicate, 1 + both_ways, 0.0
        moments = states.optimizer // (2 if self.problem.job.optimizer == "muon" else 1)
        stay = layout.world_size > 1 or layout.grad_acc > 1
        dense = shape.num_parameters - experts
        for parameters, ep, apart in ((dense, 1, 1), (experts, layout.ep, layout.apart)):
            same = ranks * apart // ep * copies
            found += (parameters * apart / (layout.tp * layout.pp * ep) * copies) * (
                states.parameters / (same if zero >= 3 else 1)
                + states.gradients * stay / (same if zero >= 2 else 1)
                + (states.master + moments) / (same if zero >= 1 else 1)
            )
        return found

    def _saved(self, layout: Layout, recompute: str) -> tuple[int, int]:
        """Bytes that a block keeps of a micro-batch, and those that its backward has at once beyond these, at least."""
        sizes = self._once(
            lambda: RunSizes(self.problem.job.on(layout.replace(recompute="none"))), "sizes", _alike(layout)
        )
        stored = {kind: total(sizes.saved(kind, recompute)) for kind in self.kinds}
        busy = {kind: sizes.blocks[kind].at_core + total(sizes.blocks[kind].core) for kind in stored}
        return min(stored.values()), max(0, min(busy[kind] - stored[kind] for kind in stored))

    def nearest(self, layouts: Iterable[Layout]) -> str:
        """The sentence where nothing fits: the layout that needs least."""
        gpus = f"{self.problem.gpus} GPU{'s' if self.problem.gpus > 1 else ''}"
        found = self.needs_least(layouts)
        if found is None:
            return f"nothing runs on {gpus}"
        return f"nothing fits on {gpus}: even " + found.does_not_fit(self.problem.capacity)

    def needs_least(self, layouts: Iterable[Layout]) -> Run | None:
        """The run whose fullest rank needs least, the first of those in the order of `_effort`; None where none can run.

        Of few layouts the memory is looked at: in the order of their bounds, and only as far as it is below the least.
        """
        bounds = sorted((self.least(layout), _effort(layout), i, layout) for i, layout in enumerate(layouts))
        best: tuple[float, tuple[int, ...], Run | None] = (math.inf, (), None)
        for bound, effort, _, layout in bounds:
            if bound > best[0]:
                break
            run, needs = self.problem.run(layout), 0
            try:
                for stage in self._stages(run.job):
                    needs = max(needs, self._needs(stage))
                    if (needs, effort) >= best[:2]:
                        break
                else:
                    best = needs, effort, run
            except PlaybookError:
                continue
        return best[2]


def explain(best: Found, other: Found) -> str:
    """Why one layout is faster than another: where the second spends more time, and what it saves, in words."""
    ratio = other.step.seconds / best.step.seconds
    gaps = {part: other.step.breakdown[part] - seconds for part, seconds in best.step.breakdown.items()}
    more = sorted(
        ((gap, part) for part, gap in gaps.items() if gap > 0.002 * best.step.seconds), reverse=True
    )
    less = sorted((gap, part) for part, gap in gaps.items() if gap < -0.002 * best.step.seconds)
    said = (
        f"{other.layout} takes {abs(ratio - 1):.1%} {'longer' if ratio >= 1 else 'less'} than {best.layout}"
    )
    if more:
        said += ": " + ", ".join(f"{gap:+.3g} s of {WORDS[part]}" for gap, part in more[:3])
    if less:
        said += "; it saves " + ", ".join(f"{-gap:.3g} s of {WORDS[part]}" for gap, part in less[:2])
    if ratio < 1:
        return said + "; but it loses more where the calibration is a little wrong."
    if more:
        part = more[0][1]
        need = other.step.breakdown[part] - (other.step.seconds - best.step.seconds)
        said += (
            f". To draw level it would need {WORDS[part]} of {need:.3g} s instead of {other.step.breakdown[part]:.3g} s"
            if need > 0
            else f". Without any {WORDS[part]} it would still be behind"
        )
    return said + "."


#: Parts of a step in words.
WORDS = {
    "compute": "computation", "tp": "waiting for tensor-parallel messages", "cp": "waiting for keys and values",
    "ep": "waiting for experts' rows", "dp_exposed": "exposed gradient and parameter messages",
    "pp_comm": "messages between stages", "bubble": "pipeline bubble", "optimizer": "optimizer",
    "stragglers": "waiting for the slowest rank",
}  # fmt: skip
