"""What would make it fit: small changes to a layout, alone or together, and the fastest layouts of all.

Changes are tried in the order of a rough cost; what fits is simulated (``planning.simulator``) and ranked by the seconds
of a step. ``planning.search`` adds layouts that no small change leads to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

from playbook.errors import PlaybookError
from playbook.hardware import CLUSTERS, Cluster
from playbook.planning.calibration import load_calibration
from playbook.planning.job import Job
from playbook.planning.search import Problem, search
from playbook.planning.simulator import Run
from playbook_widgets.compute.changes import CHANGES, Change, peak_within


@dataclass(frozen=True)
class Advice:
    """Changes that together make a job fit, and the seconds of a step with them."""

    changes: tuple[Change, ...]
    job: Job
    peak: int
    seconds: float = 0.0

    @property
    def rough(self) -> float:
        """What the changes cost by rule of thumb."""
        return sum(change.cost for change in self.changes)


def what_would_fit(
    job: Job, capacity: int, cluster: Cluster | None = None, *, most: int = 5, together: int = 3
) -> list[Advice]:
    """The ``most`` cheapest ways to keep every rank within ``capacity`` bytes: at most ``together`` changes, or a layout
    that a search of all on as many GPUs finds.

    First those that need no more GPUs, by their simulated time on ``cluster`` (without one it is H100's), then those
    that do. Empty when it fits already, or when nothing helps. A set that holds a smaller one that fits is not listed.
    """
    if peak_within(job, capacity) is not None:
        return []
    cluster = cluster or CLUSTERS["h100-8"]
    found = _changed(job, capacity, most, together)
    known = {advice.job.layout for advice in found}
    found += [one for one in _searched(job, capacity, cluster, most) if one.job.layout not in known]
    timed = [replace(one, seconds=_seconds(one.job, cluster)) for one in found]
    return sorted(
        timed, key=partial(_rank, job.layout.world_size, min((t.seconds for t in timed), default=1))
    )[:most]


def _rank(gpus: int, fastest: float, one: Advice) -> tuple[bool, float, float]:
    """Where advice stands: what needs more GPUs last, then by time; where it is a matter of a per cent, the smaller."""
    return one.job.layout.world_size > gpus, round(one.seconds / fastest, 2), one.rough


def _changed(job: Job, capacity: int, most: int, together: int) -> list[Advice]:
    """Sets of changes that fit, the cheapest first by rough cost, those that need more GPUs last."""
    same: list[Advice] = []
    more: list[Advice] = []
    applied: dict[tuple[Change, ...], Job | None] = {(): job}
    for changes in _by_cost(together):
        if any(set(advice.changes) <= set(changes) for advice in [*same, *more]):
            continue
        changed = _apply(applied, changes)
        if changed is None:
            continue
        found = same if changed.layout.world_size <= job.layout.world_size else more
        if len(found) == most or (peak := peak_within(changed, capacity)) is None:
            continue
        found.append(Advice(changes, changed, peak))
        if len(same) == most:
            break
    return [*same, *more]


def _searched(job: Job, capacity: int, cluster: Cluster, most: int) -> Iterator[Advice]:
    """The fastest layouts of all on as many GPUs."""
    gpus = job.layout.world_size
    reserve = max(0, cluster.accelerator.memory_bytes - capacity)
    problem = Problem(job, replace(cluster, gpus=gpus), job.layout.global_batch, reserve=reserve)
    try:
        result = search(problem, top=most, among=1)
    except PlaybookError:
        return
    for found in result.found:
        layout = found.layout
        sizes = [
            f"{axis.upper()} {size}"
            for axis in ("dp", "tp", "pp", "cp", "ep")
            if (size := getattr(layout, axis)) > 1
        ]
        words = [*sizes, *([f"ZeRO-{layout.zero}"] if layout.zero else [])]
        words += [f"{layout.recompute} recomputation"] if layout.recompute != "none" else []
        why = (
            f"one of the fastest of {result.candidates:,} layouts on {gpus} GPUs, "
            f"with micro-batches of {layout.micro_batch}"
        )
        label = " · ".join(words) or "one device"
        changed = job.on(layout)
        peak = peak_within(changed, capacity)
        if peak is not None:
            yield Advice((Change(label, 0.0, why, partial(_to, changed)),), changed, peak)


def _to(changed: Job, _: Job) -> Job:
    return changed


#: How much longer a step takes whose optimizer states cross PCIe twice: rough.
OFFLOADED = 0.4


def _seconds(job: Job, cluster: Cluster) -> float:
    """A simulated step, whether it fits or not."""
    calibration = load_calibration(None, cluster.accelerator)
    run = Run(job, replace(cluster, gpus=job.layout.world_size), calibration)
    return run.seconds * (1 + OFFLOADED * job.offload)


@cache
def _by_cost(together: int) -> tuple[tuple[Change, ...], ...]:
    """All sets of changes, cheapest first; of equal cost, the smaller."""
    sets = [s for n in range(1, together + 1) for s in itertools.combinations(CHANGES, n)]
    return tuple(sorted(sets, key=lambda changes: (sum(c.cost for c in changes), len(changes))))


def _apply(applied: dict[tuple[Change, ...], Job | None], changes: tuple[Change, ...]) -> Job | None:
    """A job changed one by one; ``applied`` remembers what all but the last came to."""
    if changes not in applied:
        before = _apply(applied, changes[:-1])
        try:
            applied[changes] = None if before is None else changes[-1].make(before)
        except PlaybookError:
            applied[changes] = None
    return applied[changes]
