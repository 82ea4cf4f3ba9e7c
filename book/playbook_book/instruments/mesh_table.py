"""Who is with whom: the ranks of a layout and their groups, as a table."""

from __future__ import annotations

from playbook.layout import AXES, Layout


def describe(layout: Layout, rank: int | None = None) -> str:
    """A table of who is with whom: for every rank its coordinates, and its group along each axis; ``rank`` is marked."""
    long = [axis for axis in reversed(AXES) if getattr(layout, axis) > 1]
    sizes = " · ".join(f"{axis} {getattr(layout, axis)}" for axis in long) or "one device"
    rows = [["rank", *long, *(f"{axis} group" for axis in long)]]
    for r in range(layout.world_size):
        place = layout.coordinates(r)
        groups = [next(group for group in layout.groups(axis) if r in group) for axis in long]
        mark = "→ " if r == rank else ""
        rows.append([f"{mark}{r}", *(str(place[axis]) for axis in long), *(_written(g) for g in groups)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([f"{layout.world_size} ranks: {sizes}", *lines])


def _written(group: tuple[int, ...]) -> str:
    """0,1,2,3 or, where it is long, 0,4,…,60."""
    return ",".join(map(str, group if len(group) <= 8 else (*group[:2], "…", group[-1])))
