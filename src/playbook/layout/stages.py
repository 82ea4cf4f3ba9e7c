"""Pipeline stages: which layers each has, on which rank it is, and what a schedule asks of a layout. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from playbook.errors import LayoutError
from playbook.layout.fields import KINDS, Fields, Kind
from playbook.registry import lab

if TYPE_CHECKING:
    from playbook.schedules.actions import Schedule
    from playbook.shapes import ModelShape

#: Ranks of a pipeline: eight times the longest one published (Narayanan et al. 2021, table 1: 64 for 1T parameters).
#: Whoever walks through the schedules of as many is done soon.
MOST_RANKS = 512
#: The rank of each stage, for each direction in which micro-batches go through the pipeline.
StageRanks = tuple[tuple[int, ...], ...]


def depth(layout: Fields) -> int:
    """Stages that the model is cut into: pp · vpp, and 2 · pp where the pipeline is folded into a V."""
    return layout.pp * ((layout.pp > 1 and KINDS[layout.schedule].chunks) or layout.vpp)


def chunks(layout: Fields) -> int:
    """What ``schedules.catalogue.make`` is told of chunks: a V always has two, said or not."""
    return 1 if KINDS[layout.schedule].chunks == layout.vpp == 2 else layout.vpp


def least_microbatches(schedule: str, pp: int) -> int:
    """Micro-batches that fill the pipeline of a named schedule, which it cannot do without; DualPipe takes pairs."""
    each, more = KINDS[schedule].least
    return each * pp + more


def on_ranks(schedule: str, ranks: int, vpp: int = 1) -> StageRanks:
    """The rank of each stage under a schedule, by its name; one that is not in `KINDS` has stage s on rank s."""
    kind, straight = KINDS.get(schedule, Kind()), tuple(range(ranks))
    if kind.bidirectional:
        return straight, straight[::-1]
    if kind.chunks == 2:
        return (straight + straight[::-1],)
    return (straight * vpp if kind.chunks == 0 else straight,)


def placement(layout: Fields) -> StageRanks:
    """The rank of each stage, as the layout's schedule has it."""
    own, name = layout.own_schedule, layout.schedule if layout.pp > 1 else ""
    return on_ranks(name, layout.pp, chunks(layout)) if own is None else own.placement


def stages_of(where: StageRanks, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The stages of each rank, those of all directions, in order."""
    home = [(s, rank) for direction in where for s, rank in enumerate(direction)]
    held = [{s for s, at in home if at == rank} for rank in range(ranks)]
    return tuple(tuple(sorted(stages)) for stages in held)


def split_layers(layers: int, pp: int, vpp: int = 1) -> list[range]:
    """Contiguous runs of layers for the pp · vpp virtual stages, in the order of the forward pass.

    Sizes differ by one at most; the first stages take what is left over. Chunk c of rank r is virtual stage c·pp + r.
    """
    pieces = pp * vpp
    size, extra = divmod(layers, pieces)
    starts = [i * size + min(i, extra) for i in range(pieces + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def split(layers: int, depth: int, sizes: Sequence[int] | None = None) -> list[range]:
    """The blocks of each of ``depth`` stages: as many as ``sizes`` says, or as even as can be.

    Raises LayoutError unless there is a block for each stage and the sizes add up.
    """
    if sizes is None:
        if depth > layers:
            raise LayoutError(
                f"the pipeline has {depth} stages, but the model only {layers} layers: one each, at least"
            )
        return split_layers(layers, depth)
    if len(sizes) != depth or sum(sizes) != layers or min(sizes) < 0:
        raise LayoutError(
            f"stage_layers is {','.join(map(str, sizes))}, but must be {depth} number{'s' * (depth > 1)}, one for each "
            f"stage, that add up to the {layers} layers"
        )
    ends = [sum(sizes[: i + 1]) for i in range(depth)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def check(shape: ModelShape, layout: Fields) -> None:
    """Raise LayoutError unless the model can be cut into the stages of the layout, or of a schedule of one's own.

    A schedule that nobody can carry out raises ScheduleError.
    """
    if layout.pp == 1:
        _check_none(layout)
        return
    _check_chunks(layout)
    if layout.own_schedule is None and layout.stage_layers is None and depth(layout) > shape.layers:
        folded = KINDS[layout.schedule].chunks == 2
        what = f"pp * 2 (schedule={layout.schedule} folds the pipeline)" if folded else "pp * vpp"
        raise LayoutError(f"{what} must be at most layers = {shape.layers}, got {depth(layout)}")
    if layout.pp > MOST_RANKS:
        raise LayoutError(
            f"pp must be at most {MOST_RANKS}, several times the longest pipeline published, got {layout.pp}"
        )
    if layout.own_schedule is not None:
        _check_own(layout, layout.own_schedule)
    where = placement(layout) if layout.stage_layers or layout.own_schedule or shape.train != "full" else ()
    blocks = split(shape.layers, len(where[0]), layout.stage_layers) if where else []
    for rank, stages in enumerate(stages_of(where, layout.pp) if where else ()):
        ends, body = {0: ("embedding",), len(blocks) - 1: ("norms", "head")}, ("attention", "norms", "mlp")
        has = {part for s in stages for part in (*ends.get(s, ()), *(body if blocks[s] else ()))}
        if not has:
            raise LayoutError(
                f"stage_layers is {','.join(str(len(block)) for block in blocks)}, but rank {rank} of the pipeline "
                "then has neither a layer nor an end of the model: give it one"
            )
        if not shape.lora and not has & shape.trained:
            what = f"rank {rank} of the pipeline has {', '.join(sorted(has))} alone"
            raise LayoutError(f"train is {shape.train}, but {what}: freeze less, or give stage_layers")


def _check_none(layout: Fields) -> None:
    """There is no pipeline, so nothing may ask for one."""
    if layout.vpp > 1:
        raise LayoutError(f"vpp must be 1 where pp = 1 (no pipeline to interleave), got {layout.vpp}")
    for field, given in (("schedule", layout.own_schedule), ("stage_layers", layout.stage_layers)):
        if given is not None:
            raise LayoutError(f"{field} is given, but pp is 1: there is no pipeline, make it at least 2")


def _check_chunks(layout: Fields) -> None:
    name, fixed = layout.schedule, KINDS[layout.schedule].chunks
    if fixed == 2 and layout.vpp > 2:
        raise LayoutError(
            f"vpp must be 1 or 2 with schedule={name}, which always has two chunks a rank, got {layout.vpp}"
        )
    if fixed == 1 and layout.vpp > 1:
        raise LayoutError(
            f"vpp must be 1 with schedule={name}, whose ranks have one chunk each, got {layout.vpp}: for more "
            "say schedule=interleaved or schedule=breadth-first"
        )
    if KINDS[name].bidirectional and layout.pp % 2:
        raise LayoutError(f"pp is {layout.pp}, but schedule {name} meets in the middle: it must be even")


def _check_own(layout: Fields, schedule: Schedule) -> None:
    """A schedule of one's own, on as many ranks, which can carry it out."""
    if len(schedule.ranks) != layout.pp:
        raise LayoutError(
            f"pp is {layout.pp}, but schedule {schedule.name!r} has {len(schedule.ranks)} ranks: make them equal"
        )
    lab("schedule check", "own")(schedule, each_pass=layout.zero >= 2)


def check_microbatches(layout: Fields, microbatches: int) -> None:
    """Raise LayoutError unless the pipeline of ``layout`` takes so many micro-batches a step."""
    if layout.pp == 1:
        return
    if (schedule := layout.own_schedule) is not None:
        if schedule.microbatches != microbatches:
            raise LayoutError(
                f"grad_acc is {microbatches}, but schedule {schedule.name!r} has {schedule.microbatches} micro-batches a "
                "step: make them equal"
            )
        return
    _check_chunks(layout)
    name, pairs = layout.schedule, KINDS[layout.schedule].bidirectional
    least = least_microbatches(name, layout.pp)
    if microbatches < least or (pairs and microbatches % 2):
        raise LayoutError(
            f"grad_acc is {microbatches}, but schedule {name} with pp={layout.pp} needs {'an even number of ' * pairs}at "
            f"least {least} micro-batches per step"
        )
