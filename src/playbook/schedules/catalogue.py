"""Every schedule by its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playbook._checks import check_int, unknown
from playbook.errors import ScheduleError
from playbook.layout import Layout
from playbook.layout.stages import chunks
from playbook.registry import lab
from playbook.schedules.actions import Schedule

if TYPE_CHECKING:
    from playbook.schedules.timeline import PerStage, Times

#: Schedules that two numbers determine, ranks and micro-batches.
BY_HAND = ("naive", "afab", "1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev")
NAMES = (*BY_HAND, "interleaved", "breadth-first", "zb-1p", "zb-2p")
#: Names of what the solver finds; it needs scipy.
EXACT = ("exact", "zb-exact")
#: Actions that a schedule may have, a forward and a backward pass counted each: half a minute, and a gigabyte.
MOST_ACTIONS = 2_000_000
_FITTED = re.compile(r"zb-(\d{1,6}(?:\.\d{1,6})?)p")


def make(
    name: str,
    stages: int,
    microbatches: int,
    vpp: int = 1,
    times: Times | None = None,
    *,
    run: int | None = None,
    limit: PerStage | None = None,
    rest: PerStage = 1.0,
    time_limit: float = 10.0,
) -> Schedule:
    """A schedule on ``stages`` ranks: one of `NAMES`, zb-1.5p and the like for any limit of memory, or exact.

    ``vpp`` chunks and ``run`` micro-batches at a time are for the interleaved ones. ``times``, ``limit`` (micro-batches
    whose activations fit, one number or one per rank; zb-xp means x·stages) and ``rest`` (the part of them that W needs)
    are for those that are fitted to them, ``time_limit`` in seconds for the exact one. Raises ScheduleError for unknown
    names and numbers that do not fit.
    """
    check_size(stages, microbatches, vpp)
    check_name(name)
    if name in ("interleaved", "breadth-first"):
        if name == "breadth-first" and run not in (None, microbatches):
            raise ScheduleError(f"run is {run}, but breadth-first runs all {microbatches}: leave it out")
        turn = microbatches if name == "breadth-first" else run
        return lab("schedule", "interleaved")(stages, microbatches, vpp, turn)
    if vpp != 1:
        raise ScheduleError(
            f"vpp is {vpp}, but {name} has a fixed number of chunks: leave it out, or take interleaved"
        )
    if run is not None:
        raise ScheduleError(f"run is {run}, but only interleaved has one: leave it out of {name}")
    if name in BY_HAND:
        return lab("schedule", name)(stages, microbatches)
    given = default_limit(name, stages) if limit is None else limit
    if name in EXACT:
        solve = lab("schedule", "exact")
        return solve(stages, microbatches, given, times, rest=rest, time_limit=time_limit).schedule
    return lab("schedule", "fitted")(stages, microbatches, given, times, rest=rest, name=name)


def of_layout(layout: Layout, microbatches: int) -> Schedule:
    """The schedule of so many micro-batches that a layout names, or a reader's own."""
    return layout.own_schedule or make(layout.schedule, layout.pp, microbatches, chunks(layout))


def check_size(stages: int, microbatches: int, vpp: int = 1) -> None:
    """Raise ScheduleError for sizes below 1, and for those that make more than `MOST_ACTIONS`."""
    for field, value in (("stages", stages), ("microbatches", microbatches), ("vpp", vpp)):
        check_int(field, value, ScheduleError)
    if (actions := 2 * stages * microbatches * vpp) > MOST_ACTIONS:
        made = f"stages={stages}, microbatches={microbatches} and vpp={vpp} make at least {actions:,} actions"
        raise ScheduleError(f"{made}, but at most {MOST_ACTIONS:,} are allowed")


def check_name(name: str) -> None:
    """Raise ScheduleError for a name that `make` does not know."""
    if name not in NAMES and name not in EXACT and not _FITTED.fullmatch(name):
        raise ScheduleError(unknown("schedule", name, (*NAMES, "exact")))


def default_limit(name: str, stages: int) -> float:
    """How many micro-batches' activations a fitted schedule may keep: zb-xp means x·stages, exact as many as 1F1B."""
    found = _FITTED.fullmatch(name)
    return float(found[1]) * stages if found else float(stages)
