"""The parts of a drawn schedule: boxes of actions, gaps by their cause, a strip of memory, the critical path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from playbook.figures.style import INK, OLIVE, PALETTE, PAPER
from playbook.schedules.explain import critical_path, idles
from playbook.schedules.timeline import PerStage, Slot, Timeline

#: What a gap looks like: hue, strength, pattern; several causes are told as one.
GAPS = {
    "filling": (PALETTE["idle"], 0.16, ""),
    "waiting for a rank": (PALETTE["idle"], 0.30, "////"),
    "waiting for a message": (OLIVE, 0.30, "||||"),
    "draining": (PALETTE["idle"], 0.16, "\\\\\\"),
}
_TOLD = {
    "fill": "filling",
    "dependency": "waiting for a rank",
    "link": "waiting for a message",
    "communication": "waiting for a message",
    "sending": "waiting for a message",
    "drain": "draining",
}
HIGH = 0.78  # of a box, in rows
FOOT = 0.2  # the part of a fused box that is W's
STRIP = 0.62  # rows that the memory of a rank takes
LETTER = 0.0098  # of the time axis, that a character of a box takes
#: Left, top, width and height.
Rectangle = tuple[float, float, float, float]


def draw_rows(
    axes: Any, line: Timeline, at: Sequence[float], high: float, shown: dict[str, None], gaps: bool
) -> None:
    """The actions of each rank around the height ``at[rank]``, and what it waits for between them."""
    looks: dict[tuple[str, float], list[Rectangle]] = {}
    for rank, slots in enumerate(line.ranks):
        for slot, (low, part) in zip(slots, _lanes(slots), strict=True):
            op, y = slot.action.op, at[rank] - high / 2 + low * high
            box = (slot.start, y, slot.end - slot.start, part * high)
            look = _strength(line, rank, slot)
            shown.setdefault(op)
            looks.setdefault(("F" if op == "F" else "W" if op == "W" else "B", look), []).append(box)
            if op == "BW":
                x, y, wide, tall = box
                looks.setdefault(("W", look), []).append((x, y + tall * (1 - FOOT), wide, tall * FOOT))
            _letter(axes, slot, box, look)
    for (op, strength), boxes in sorted(looks.items()):
        _fill(axes, boxes, PALETTE[op], strength)
    _fill(axes, [b for (op, _), boxes in looks.items() for b in boxes], None, 0.0)
    if gaps:
        _gaps(axes, line, at, high, shown)


def _lanes(slots: Sequence[Slot]) -> Iterable[tuple[float, float]]:
    """Top and height of each box, as parts of a row: actions side by side share it."""
    for i, slot in enumerate(slots):
        if i + 1 < len(slots) and slots[i + 1].start < slot.end and slots[i + 1].start == slot.start:
            yield 0.0, 0.5
        elif i and slots[i - 1].start == slot.start and slots[i - 1].end > slot.start:
            yield 0.5, 0.5
        else:
            yield 0.0, 1.0


def _strength(line: Timeline, rank: int, slot: Slot) -> float:
    """How strong the colour of a stage is: of several on a rank, the first one is strongest."""
    schedule, (_, stage, microbatch) = line.schedule, slot.action
    direction = schedule.placement[schedule.direction(microbatch)]
    held = [s for s, home in enumerate(direction) if home == rank]
    place, count = held.index(stage), len(held)
    if count == 1 and len(schedule.placement) > 1:  # both directions through the same ranks
        place, count = schedule.direction(microbatch), 2
    return 1.0 - 0.62 * place / max(1, count - 1) if count > 1 else 1.0


def _letter(axes: Any, slot: Slot, box: Rectangle, strength: float) -> None:
    """The micro-batch, with the letter of the action if there is room for it."""
    x, y, wide, tall = box
    end = axes.get_xlim()[1]
    room = wide / end / LETTER
    text = str(slot.action.microbatch)
    letter = slot.action.op[0] + text
    if room < len(text) + 0.3 or tall < 0.3 or x + wide > end:
        return
    text = letter if room >= len(letter) + 0.9 else text
    colour = "#ffffff" if strength > 0.55 else INK
    size = 7.2 if tall > 0.5 else 6.8
    axes.text(x + wide / 2, y + tall * 0.47, text, ha="center", va="center", color=colour, fontsize=size)


def _fill(axes: Any, boxes: Sequence[Rectangle], hue: str | None, strength: float, hatch: str = "") -> None:
    """All of these boxes as one path, which keeps a page light; without a hue, their outlines."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not boxes:
        return
    points, codes = [], []
    for x, y, wide, tall in boxes:
        points += [(x, y), (x + wide, y), (x + wide, y + tall), (x, y + tall), (x, y)]
        codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    look: dict[str, Any] = {"facecolor": (hue, strength), "linewidth": 0.0, "zorder": 1.0}
    if hatch:  # apart: in an SVG a pattern has the strength of what it lies on
        pattern = {"facecolor": "none", "hatch": hatch, "edgecolor": hue, "linewidth": 0.0, "zorder": 1.0}
        axes.add_patch(PathPatch(Path(points, codes), **pattern))
    if hue is None:
        look = {"facecolor": "none", "edgecolor": PAPER, "linewidth": 0.7, "zorder": 1.1}
    axes.add_patch(PathPatch(Path(points, codes), **look))


def _gaps(axes: Any, line: Timeline, at: Sequence[float], high: float, shown: dict[str, None]) -> None:
    found: dict[str, list[Rectangle]] = {}
    for idle in idles(line):
        box = (idle.start, at[idle.rank] - high / 2, idle.end - idle.start, high)
        found.setdefault(_TOLD[idle.cause], []).append(box)
    for cause, (hue, strength, hatch) in GAPS.items():
        if cause in found:
            _fill(axes, found[cause], hue, strength, hatch)
            shown.setdefault(cause)


def kept_by(
    line: Timeline, rank: int, full: PerStage | None = None, rest: PerStage | None = None
) -> list[tuple[float, float]]:
    """What a rank keeps from each moment on; without ``full`` in micro-batches of its whole part of the model."""
    share = len(line.schedule.placement) / line.schedule.chunks
    return line.in_flight(rank, share if full is None else full, rest)


def draw_memory(
    axes: Any, line: Timeline, at: Sequence[float], full: PerStage | None, rest: PerStage | None
) -> None:
    """Under each row a strip as high as what the rank keeps, to one scale for all, with its peak at the end."""
    steps = [kept_by(line, rank, full, rest) for rank in range(len(line.ranks))]
    most = max((amount for found in steps for _, amount in found), default=0.0) or 1.0
    for y, found in zip(at, steps, strict=True):
        base = y + HIGH / 2 + STRIP - 0.02
        moments = [moment for moment, _ in found] + [line.makespan]
        tops = [base - (STRIP - 0.1) * amount / most for _, amount in found]
        axes.fill_between(
            moments, [*tops, tops[-1]], base, step="post", color=(PALETTE["activations"], 0.4), linewidth=0
        )
        peak = max(amount for _, amount in found)
        axes.text(1.005, base, f"{peak:.3g}", transform=axes.get_yaxis_transform(), fontsize=8.5, va="bottom")


def phases_of(line: Timeline, rank: int) -> list[tuple[str, float, float]]:
    """Warm-up, steady state and cool-down of a rank, those that it has, with where each begins and ends.

    The steady state is from the forward pass before the first backward pass to the backward pass after the last
    forward pass.
    """
    slots = line.ranks[rank]
    forward = [i for i, slot in enumerate(slots) if slot.action.op == "F"]
    backward = [i for i, slot in enumerate(slots) if slot.action.op in ("B", "BW")]
    if not forward or not backward:
        return []
    ahead = max((i for i in forward if i < backward[0]), default=0)
    last = next((i for i in backward if i > forward[-1]), len(slots) - 1)
    cuts = {"warm-up": slots[:ahead], "steady state": slots[ahead : last + 1], "cool-down": slots[last + 1 :]}
    return [(name, part[0].start, part[-1].end) for name, part in cuts.items() if part]


def draw_phases(axes: Any, line: Timeline, at: Sequence[float]) -> None:
    """Under each row a line for each of its phases, with its name where there is room."""
    for rank, y in enumerate(at):
        for name, start, end in phases_of(line, rank):
            low = y + HIGH / 2 + 0.13
            axes.plot([start, end], [low, low], "|-", color=INK, linewidth=1.0, markersize=5)
            if (end - start) / axes.get_xlim()[1] / LETTER > 0.8 * len(name):
                axes.text((start + end) / 2, low + 0.05, name, ha="center", va="top", fontsize=7.5)


def draw_path(axes: Any, line: Timeline, at: Sequence[float]) -> None:
    """Frames around the actions of the critical path, and a line along it."""
    from matplotlib.patches import Rectangle as Box

    steps = critical_path(line)
    rows = [at[line.places[slot.action][0]] for slot in steps]
    boxes = [(s.start, y - HIGH / 2, s.end - s.start, HIGH) for s, y in zip(steps, rows, strict=True)]
    for x, y, wide, tall in boxes:
        axes.add_patch(Box((x, y), wide, tall, facecolor="none", edgecolor=INK, linewidth=1.3, zorder=3))
    xs = [x for slot in steps for x in (slot.start, slot.end)]
    axes.plot(xs, [y + HIGH * 0.36 for y in rows for _ in range(2)], color=INK, linewidth=0.9, zorder=3)
