"""The memory access widget: one pure function from what a reader sets to what a block's warps ask of memory.

``compute`` runs in a kernel and, as the same file, in the reader's browser. ``warps.py`` counts: sectors of global
memory, passes of shared memory's banks. Standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from playbook_book.kernels.warps import BANKS, SECTOR, WARP, Dim, Step, banks, count, passes, touched
from playbook_widgets.compute.access_setting import DEFAULTS, LINE, AccessSetting, read
from playbook_widgets.compute.access_words import answer, cuda, python
from playbook_widgets.compute.refusals import answered

#: Rows and columns of the matrix that are drawn at least, where it has as many.
WINDOW = 32


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


def describe(setting: AccessSetting) -> dict[str, Any]:
    """All that the page shows of a setting: a picture of each warp, addresses in bytes from the array's beginning."""
    counted = count(setting.kernel, Dim(1), setting.block)
    kinds = ("load", "store", "shared")
    return {
        "values": {name: getattr(setting, name) for name in DEFAULTS if name not in ("step", "thread")},
        "bytes": setting.bytes,
        "pictures": [_picture(setting, warp) for warp in range(setting.warps)],
        "block": {
            "warps": setting.warps,
            "sectors": counted.sectors,
            "passes": counted.sum("passes", *kinds),
            "least": counted.sum("least", *kinds),
            "needed": counted.sum("needed", *kinds),
            "efficiency": counted.efficiency,
        },
        "cuda": cuda(setting),
    }


def _picture(setting: AccessSetting, warp: int) -> dict[str, Any]:
    """What is drawn of one warp; ``lines`` are of 128 bytes, in shared memory each as wide as all banks."""
    request = setting.request(warp)
    steps = [step for step in request if step]
    threads = [_thread(setting, warp, lane, step) for lane, step in enumerate(request)]
    counted = _of_banks(request) if setting.memory == "shared" else _of_sectors(setting, request)
    found = {
        "threads": threads,
        "active": len(steps),
        "cells": _cells(request),
        "lines": sorted({step.address // LINE for step in steps}),
        "needed": len({step.address for step in steps}) * setting.bytes,
        "window": _window(setting, [thread for thread in threads if thread]),
        **counted,
        "python": python(setting, warp),
    }
    return {**found, "answer": answer(setting, found, warp)}


def _thread(setting: AccessSetting, warp: int, lane: int, step: Step | None) -> list[int] | None:
    """Row, column and byte; None for an inactive thread."""
    t = setting.thread(warp * WARP + lane)
    return [*setting.place(t.x, t.y), step.address] if step else None


def _cells(request: list[Step | None]) -> list[list[Any]]:
    """For each address the threads that want it: ``[address, [0, 1, …]]``."""
    found: dict[int, list[int]] = defaultdict(list)
    for lane, step in enumerate(request):
        if step:
            found[step.address].append(lane)
    return [[address, lanes] for address, lanes in sorted(found.items())]


def _window(setting: AccessSetting, places: list[list[int]]) -> list[int]:
    """The part of the matrix that is drawn, as row, column, rows, columns: what a warp takes, and what is around it."""
    found, ends = [[0, 0], [1, 1]], (1, setting.vector) if setting.by_rows else (setting.vector, 1)
    for axis, most in enumerate((setting.rows, setting.columns)):
        at = [place[axis] for place in places] or [0]
        first = min(at) // WINDOW * WINDOW
        last = min(most, max(first + WINDOW, max(at) + ends[axis]))
        found[0][axis], found[1][axis] = max(0, min(first, last - WINDOW)), last
    (row, column), (below, right) = found
    return [row, column, below - row, right - column]


def _of_sectors(setting: AccessSetting, request: list[Step | None]) -> dict[str, Any]:
    """Sectors, and ``runs``: the rectangles (row, column, rows, columns) of the matrix that they hold."""
    found = sorted(touched(request))
    return {
        "sectors": found,
        "moved": SECTOR * len(found),
        "runs": [run for sector in found for run in _runs(setting, sector)],
    }


def _runs(setting: AccessSetting, sector: int) -> Iterator[list[int]]:
    """Where the elements of a sector are in the matrix: it may hold the end of a row and the beginning of the next."""
    each = SECTOR // setting.size
    first = max(0, sector * each - setting.offset)
    last = min(setting.rows * setting.columns, (sector + 1) * each - setting.offset)
    while first < last:
        outer, inner = divmod(first, setting.pitch)
        long = min(last - first, setting.pitch - inner)
        yield [outer, inner, 1, long] if setting.by_rows else [inner, outer, long, 1]
        first += long


def _of_banks(request: list[Step | None]) -> dict[str, Any]:
    """Passes, and for each bank the most words that it is asked for at a time."""
    parts = banks(request)
    return {
        "passes": passes(request),
        "least": len(parts),
        "ways": [max((len(part.get(bank, ())) for part in parts), default=0) for bank in range(BANKS)],
        "words": sum(len(words) for part in parts for words in part.values()),
    }
