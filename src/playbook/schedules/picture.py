"""A timeline in characters: a line for each rank, as wide as time is long."""

from __future__ import annotations

from playbook.schedules.timeline import Slot, Timeline


def picture(timeline: Timeline, width: int) -> list[str]:
    """Lines of at most ``width`` characters: actions by letter and micro-batch (where ranks have several stages: letter,
    stage, ":" and micro-batch), ``·`` where a rank waits, ``…`` where it goes on beyond the edge.

    Time is to scale: the shortest action has room for its label, unless it is far shorter than most.
    """
    several = timeline.schedule.chunks > 1
    cell = max(3, 2 + len(str(timeline.schedule.microbatches - 1)) + 2 * several)  # of the shortest action
    head = len(f"rank {len(timeline.ranks) - 1} ")
    room = max(width - head, 2 * cell)
    lengths = sorted(s.end - s.start for slots in timeline.ranks for s in slots[:200] if s.end > s.start)
    if not lengths:
        return []
    scale = cell / max(lengths[0], lengths[len(lengths) // 2] / 3)
    return [
        f"rank {rank}".ljust(head) + _line(slots, scale, room, several)
        for rank, slots in enumerate(timeline.ranks)
    ]


def _line(slots: tuple[Slot, ...], scale: float, room: int, several: bool) -> str:
    line, i = "", 0
    while i < len(slots) and len(line) <= room:
        slot, beside = slots[i], slots[i + 1 : i + 2]
        label = _label(slot, several)
        if beside and beside[0][1:3] == slot[1:3] and slot.end > slot.start:
            label += "+" + _label(beside[0], several)
            i += 1
        line = line.ljust(min(round(slot.start * scale), room + 1), "·")
        length = min(round(slot.end * scale), room + 1) - len(line)
        if length > 0:
            line += label[: max(length - 1, 1)].ljust(length - 1, "-").ljust(length)
        i += 1
    return line.rstrip() if len(line) <= room else line[: room - 1] + "…"


def _label(slot: Slot, several: bool) -> str:
    op, stage, microbatch = slot.action
    return f"{op}{stage}:{microbatch}" if several else f"{op}{microbatch}"
