"""Pipeline stages: which layers each has, and what a rank keeps of them at the fullest moments of its step.

A schedule is a list of actions for each rank, so nothing has to be timed to know what a rank keeps: F of a stage adds
what it saves for one micro-batch, B takes it away but for what W needs, W takes that. At which moment most is kept
depends on the bytes of each stage; which moments it *can* be depends on the schedule alone, and is worked out once.

Narayanan et al. 2021 (arXiv 2104.04473, section 2.2) for 1F1B and the interleaved schedule, Lamy-Poirier 2022 (arXiv
2211.05953) for the breadth-first one, Qi et al. 2023 (arXiv 2401.10241) for zero-bubble ones, DeepSeek-AI 2024 (arXiv
2412.19437, table 2) for DualPipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import make, placement
from playbook.schedules.interleaved import rounds


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


def parse_stage_layers(text: str | None) -> tuple[int, ...] | None:
    """``3,5`` as the layers of each stage; None stays None. Raises LayoutError for what are no whole numbers."""
    try:
        return None if text is None else tuple(int(size) for size in text.split(","))
    except ValueError:
        raise LayoutError(
            f"stage_layers is {text!r}, but must be whole numbers, one for each stage, as in 3,5"
        ) from None


class InFlight(NamedTuple):
    """Micro-batches that a rank keeps something of, one number for each of its stages.

    Of ``full`` it keeps all that F saved, of ``rest`` what W needs once B is over.
    """

    full: tuple[int, ...]
    rest: tuple[int, ...]


Moments = tuple[InFlight, ...]


@dataclass(frozen=True)
class Line:
    """Who has which stages of a pipeline, and the most that each keeps.

    ``stages[r]`` are those of rank r, ``fullest[r]`` the moments of its step of which none keeps less than another of
    everything; ``before[r]`` are such among those with which a backward pass begins. ``depth`` counts stages, ``ways``
    the directions in which they stand on the ranks.
    """

    depth: int
    ways: int
    stages: tuple[tuple[int, ...], ...]
    fullest: tuple[Moments, ...]
    before: tuple[Moments, ...]


def line_of(layout: Layout, schedule: Schedule | None = None) -> Line:
    """The pipeline of a layout, or of a schedule of one's own. Raises ScheduleError for what has no schedule."""
    if schedule is not None:
        stages = _stages(schedule.placement)
        walked = [_walk(schedule, rank, stages[rank]) for rank in range(len(schedule.ranks))]
        fullest, before = (tuple(moments) for moments in zip(*walked, strict=True))
        return Line(schedule.depth, len(schedule.placement), stages, fullest, before)
    if layout.pp == 1:
        return _ONE
    return _line(layout.schedule, layout.pp, chunks(layout), layout.grad_acc)


_ONE = Line(1, 1, ((0,),), ((InFlight((1,), (0,)),),), ((InFlight((1,), (0,)),),))


def chunks(layout: Layout) -> int:
    """What a schedule is told of chunks: a V always has two, said or not."""
    return 1 if layout.schedule in ("zb-v", "dualpipev") and layout.vpp == 2 else layout.vpp


def least_microbatches(schedule: str, pp: int) -> int:
    """Micro-batches that fill the pipeline of a named schedule, which it cannot do without; DualPipe takes pairs."""
    least = {
        "zb-h1": pp,
        "zb-h2": 2 * pp - 1,
        "zb-v": 2 * pp - 1,
        "dualpipe": 2 * pp,
        "dualpipev": 2 * pp,
    }
    return least.get(schedule, 1)


def check_microbatches(layout: Layout, microbatches: int, schedule: Schedule | None = None) -> None:
    """Raise LayoutError unless the pipeline of ``layout`` takes so many micro-batches a step."""
    if layout.pp == 1:
        return
    if schedule is not None:
        if schedule.microbatches != microbatches:
            raise LayoutError(
                f"grad_acc is {microbatches}, but schedule {schedule.name!r} has {schedule.microbatches} micro-batches a "
                "step: make them equal"
            )
        return
    name, pp, least = layout.schedule, layout.pp, least_microbatches(layout.schedule, layout.pp)
    pairs = name == "dualpipe"
    if pairs and pp % 2:
        raise LayoutError(f"pp is {pp}, but schedule dualpipe meets in the middle: it must be even")
    if microbatches < least or (pairs and microbatches % 2):
        raise LayoutError(
            f"grad_acc is {microbatches}, but schedule {name} with pp={pp} needs {'an even number of ' * pairs}at least "
            f"{least} micro-batches per step"
        )


def _stages(placement: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    ranks = 1 + max(max(way) for way in placement)
    held = [{s for way in placement for s, home in enumerate(way) if home == rank} for rank in range(ranks)]
    return tuple(tuple(sorted(stages)) for stages in held)


@cache
def _line(name: str, pp: int, vpp: int, microbatches: int) -> Line:
    if vpp == 1 and name in ("interleaved", "breadth-first"):
        name = "1f1b"  # with one chunk they are that
    where = _placement(name, pp, vpp)
    stages = _stages(where)
    if name in ("interleaved", "zb-v", "dualpipe", "dualpipev"):
        walked = _walked(name, pp, vpp, *_enough(name, pp, microbatches))
    else:
        walked = tuple(_by_formula(name, pp, vpp, microbatches, rank) for rank in range(pp))
    fullest, before = (tuple(moments) for moments in zip(*walked, strict=True))
    return Line(len(where[0]), len(where), stages, fullest, before)


_placement = cache(placement)


def _by_formula(name: str, pp: int, vpp: int, m: int, rank: int) -> tuple[Moments, Moments]:
    """Schedules whose fullest moments can be written down.

    ZB-H1 and ZB-H2 have so many micro-batches ahead of the first B, and so many Ws are put off: F comes before or after
    one of either goes.
    """
    if name == "breadth-first":  # all of them on every chunk but the last, which is 1F1B
        last = min(m, 2 * (pp - rank - 1) + 1)
        most = (InFlight((m,) * (vpp - 1) + (last,), (0,) * vpp),)
        return most, most
    if name in ("zb-h1", "zb-h2"):
        double = 1 if name == "zb-h1" else 2
        ahead, late = double * (pp - rank) - (double - 1), double * rank
        before = InFlight((ahead,), (late,))
        return (before, InFlight((ahead - 1,), (late + 1,))), (before,)
    most = (InFlight(({"naive": 1, "afab": m, "1f1b": min(m, pp - rank)}[name],), (0,)),)
    return most, most


def _enough(name: str, pp: int, m: int) -> tuple[int, int | None]:
    """Micro-batches beyond which a rank keeps no more, and how many of them run through a chunk at a time."""
    if name != "interleaved":
        least = least_microbatches(name, pp)
        return min(m, least + 2 + (m - least) % 2), None
    turns = rounds(pp, m, min(pp, m))
    longer = min(sum(turn > turns[-1] for turn in turns), 3)
    return min(m, turns[-1] * min(len(turns), longer + 3) + longer), turns[-1]


@cache
def _walked(name: str, pp: int, vpp: int, m: int, run: int | None) -> tuple[tuple[Moments, Moments], ...]:
    schedule = make(name, pp, m, vpp, run=run)
    stages = _stages(schedule.placement)
    return tuple(_walk(schedule, rank, stages[rank]) for rank in range(pp))


def _walk(schedule: Schedule, rank: int, stages: Sequence[int]) -> tuple[Moments, Moments]:
    """The moments of a rank that can be its fullest, after F or B when less comes next; those before B and BW."""
    place = {stage: i for i, stage in enumerate(stages)}
    full, rest, moments, before = [0] * len(stages), [0] * len(stages), [], []
    actions = schedule.ranks[rank]
    for action, after in zip(actions, [*actions[1:], None], strict=True):
        i = place[action.stage]
        full[i] += {"F": 1, "W": 0}.get(action.op, -1)
        rest[i] += {"B": 1, "W": -1}.get(action.op, 0)
        if action.op in ("F", "B") and (after is None or after.op != "F"):
            moments.append((*full, *rest))
        if after is not None and after.op in ("B", "BW"):
            before.append((*full, *rest))
    many = len(stages)
    fullest, beginning = (
        tuple(InFlight(one[:many], one[many:]) for one in _largest(each)) for each in (moments, before)
    )
    return fullest, beginning


def _largest(moments: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those of which one keeps most, whatever each number weighs.

    Left out are moments half-way between the one before and the one after, and such than which another has at least as
    much of everything.
    """
    found: list[tuple[int, ...]] = []
    for before, one, after in zip([None, *moments], moments, [*moments[1:], None], strict=False):
        half_way = (
            before and after and all(a + c == 2 * b for a, b, c in zip(before, one, after, strict=True))
        )
        if not half_way and not any(_covers(other, one) for other in found):
            found = [other for other in found if not _covers(one, other)] + [one]
    return found


def _covers(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(map(int.__ge__, a, b))
