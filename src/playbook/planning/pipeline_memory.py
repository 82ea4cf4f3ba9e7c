"""What the ranks of a pipeline keep for backward: the tensors of each stage, times the micro-batches in flight.

On one device it is the same with one stage and one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from playbook.block import Kind
from playbook.planning.in_flight import pipeline_stages
from playbook.planning.job import Job
from playbook.planning.parameters import blocks_of_stages
from playbook.planning.peak import RunSizes
from playbook.planning.saved import angle_terms, deferred_head, deferred_terms, embedding_terms, head_terms
from playbook.planning.terms import Part, Term, in_words, total
from playbook.schedules.kept import InFlight

#: Terms of each kind of block.
ByKind = Mapping[Kind, tuple[Term, ...]]


@dataclass(frozen=True)
class Keeps:
    """The most that a rank keeps, part by part, and of how many micro-batches: in shares of 1/pp of the model.

    ``before`` is the most, in bytes, with which a backward pass begins.
    """

    parts: tuple[Part, ...]
    in_flight: float
    before: int


@dataclass(frozen=True)
class StageTerms:
    """What every stage keeps of one micro-batch of a run: ``blocks[s]`` counts the blocks of stage s by kind.

    From F on these are ``saved`` of each block, ``embedding`` on the first stage, ``head`` on the last; between B and W
    ``deferred`` and ``head_deferred``. ``once`` is there in a step once.
    """

    run: RunSizes
    saved: ByKind
    deferred: ByKind
    embedding: tuple[Term, ...]
    head: tuple[Term, ...]
    head_deferred: tuple[Term, ...]
    once: tuple[Term, ...]
    blocks: Sequence[Mapping[Kind, int]] = ()

    @classmethod
    def of(cls, run: RunSizes) -> StageTerms:
        shape, make, layout = run.shape, run.make, run.layout
        loss, learns = run.fused_loss, "head" in shape.trained
        packed = bool(run.job.document) * (layout.grad_acc if layout.pp > 1 else 1)
        return cls(
            run,
            {kind: tuple(run.saved(kind, layout.recompute)) for kind in run.job.kinds},
            {kind: tuple(deferred_terms(shape, run.make_of(kind), kind=kind)) for kind in run.job.kinds},
            tuple(embedding_terms(shape, make)),
            tuple(head_terms(make, layout.tp, loss, learns)),
            tuple(deferred_head(make, loss, learns)),
            tuple(angle_terms(shape, make, layout.cp, packed)),
        )

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @cached_property
    def of_head(self) -> int:
        """Bytes of the last norm, the head and the loss, for one micro-batch."""
        return total(self.head)

    @cached_property
    def _each(self) -> tuple[dict[Kind, int], dict[Kind, int], int, int]:
        saved, deferred = ({k: total(t) for k, t in kind.items()} for kind in (self.saved, self.deferred))
        return saved, deferred, total(self.embedding), total(self.head_deferred)

    def full(self, stage: int) -> int:
        """Bytes that a forward pass of one micro-batch saves."""
        size = sum(self._each[0][kind] * count for kind, count in self.blocks[stage].items())
        return size + self._each[2] * (stage == 0) + self.of_head * (stage == self.depth - 1)

    def rest(self, stage: int) -> int:
        """Bytes of it, and of what B made, that W needs."""
        size = sum(self._each[1][kind] * count for kind, count in self.blocks[stage].items())
        return size + self._each[3] * (stage == self.depth - 1)


class KeptByRanks(dict[int, Keeps]):
    """The most that each rank of a job's pipeline ever keeps, found when it is asked for.

    ``like`` is what a job keeps whose micro-batches are the same on each rank (`RunSizes`).
    """

    def __init__(self, job: Job, like: StageTerms | None = None):
        layout = job.layout
        self.pipeline = pipeline_stages(layout)
        cut = layout.stage_layers, layout.blocks_again, job.wide
        blocks = blocks_of_stages(job.shape, self.pipeline.depth, *cut)
        self.terms = replace(like or StageTerms.of(RunSizes(job)), blocks=blocks)

    def __missing__(self, rank: int) -> Keeps:
        terms, pipeline, stages = self.terms, self.pipeline, self.pipeline.stages[rank]
        full, rest = [terms.full(s) for s in stages], [terms.rest(s) for s in stages]

        def amount(moment: InFlight) -> int:
            return sum(map(int.__mul__, moment.full, full)) + sum(map(int.__mul__, moment.rest, rest))

        # Of moments with as many bytes, the one with most micro-batches.
        most = max(pipeline.fullest[rank], key=lambda moment: (amount(moment), sum(map(sum, moment))))
        alive = sum(map(sum, most))
        self[rank] = found = Keeps(
            tuple(part for part in _parts(terms, stages, most) if part.times),
            alive * len(pipeline.stages) / pipeline.depth,
            max(map(amount, pipeline.before[rank])) + total(terms.once),
        )
        return found


def _parts(terms: StageTerms, stages: Sequence[int], moment: InFlight) -> Iterator[Part]:
    alive, later = (dict(zip(stages, counts, strict=True)) for counts in (moment.full, moment.rest))
    last = terms.depth - 1
    if terms.embedding:
        yield Part("embedding", terms.embedding, alive.get(0, 0))
    for kind in terms.saved:
        layers = sum(terms.blocks[s].get(kind, 0) for s in stages)
        name = f"{layers} blocks{in_words(kind)}"
        yield Part(name, terms.saved[kind], _blocks(terms, kind, alive))
        yield Part(f"{name}, from B to W", terms.deferred[kind], _blocks(terms, kind, later))
    yield Part("head and loss", terms.head, alive.get(last, 0))
    if terms.head_deferred:
        yield Part("head, from B to W", terms.head_deferred, later.get(last, 0))
    if terms.once:
        yield Part("positions", terms.once, 1)


def _blocks(terms: StageTerms, kind: Kind, counts: Mapping[int, int]) -> int:
    """Blocks of a kind, each as often as its stage has micro-batches."""
    return sum(terms.blocks[stage].get(kind, 0) * count for stage, count in counts.items())
