"""What ranks of one machine do together: collectives by size, and how they slow each other down when they share cores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from playbook import launch
from playbook.bench.calibrate_fits import cores
from playbook.bench.collectives import how_often, seconds_of_call
from playbook.parallel import mesh
from playbook.planning.communication import Cost, Network, closed_form
from playbook.planning.links import AlphaBeta, Sample, errors, fit

Row = dict[str, Any]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Together:
    """What ranks measure: vectors of ``sizes`` bytes, and products of ``width`` that take ``busy`` seconds alone."""

    sizes: tuple[int, ...] = tuple(1 << i for i in range(10, 23, 2))
    repeats: int = 3
    width: int = 384
    copied: int = 1 << 26  # bytes: more than caches hold
    busy: float = 0.25


QUICK = Together(sizes=(1024, 8192, 65536), repeats=1, width=32, copied=1 << 12, busy=0.01)


def on_ranks(n: int, what: Together, threads: int, device: str) -> list[list[Row]]:
    """What each of ``n`` ranks measured; on a GPU each has its own."""
    backend = "nccl" if device == "cuda" else "gloo"
    ranks = launch.run(measure, what, threads, ranks=n, backend=backend, timeout=_TIMEOUT)
    return ranks.values


def measure(what: Together, threads: int) -> list[Row]:
    """In one rank: seconds of every call of each collective, and of work that all ranks do at the same time."""
    torch.set_num_threads(threads)
    with launch.process_group() as world:
        rows = [_busy(name, what, world) for name in ("product", "copy")]
        if world.size > 1:
            for collective in COLLECTIVES:
                for size in what.sizes:
                    call = _call(collective, size // 4 // world.size * world.size, world)
                    count = what.repeats * how_often({"it": call}, world)
                    seconds = [seconds_of_call(call, world) for _ in range(count)]
                    rows.append({"collective": collective, "bytes": size, "seconds": seconds})
    return rows


def _busy(name: str, what: Together, world: launch.World) -> Row:
    """Seconds of a product or a copy while all ranks do the same: long enough for the system to move ranks about."""
    if name == "product":
        a, b = (torch.randn(what.width, what.width, device=world.device) for _ in range(2))
        work: Callable[[], Any] = lambda: F.linear(a, b)  # noqa: E731
    else:
        x, y = torch.zeros(2, what.copied // 4, device=world.device)
        work = lambda: y.copy_(x)  # noqa: E731
    once = min(seconds_of_call(work, world) for _ in range(5))
    count = torch.tensor([max(3, int(what.busy / world.size / max(once, 1e-7)))], device=world.device)
    dist.all_reduce(count, dist.ReduceOp.MIN)
    calls = int(count)

    def all_of_them() -> None:
        for _ in range(calls):
            work()

    return {"work": name, "seconds": [seconds_of_call(all_of_them, world) / calls for _ in range(7)]}


def _call(collective: str, elements: int, world: launch.World) -> Callable[[], Any]:
    """A collective of a vector of so many fp32 numbers in all, or a message there and back again."""
    whole = torch.zeros(elements, device=world.device)
    own, other = torch.zeros(elements // world.size, device=world.device), torch.zeros_like(whole)

    def there_and_back() -> None:
        if world.rank == 0:
            dist.send(whole, 1)
            dist.recv(whole, 1)
        elif world.rank == 1:
            dist.recv(whole, 0)
            dist.send(whole, 0)

    found: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: mesh.all_gather(whole, own),
        "reduce_scatter": lambda: mesh.reduce_scatter(own, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send": there_and_back,
    }
    return found[collective]


def collective_rows(n: int, ranks: list[list[Row]]) -> list[Row]:
    """The median of each collective and size, a call being as slow as its slowest rank; a message one way."""
    rows = []
    for calls in zip(*([row for row in rank if "collective" in row] for rank in ranks), strict=True):
        slowest = [max(call) for call in zip(*(row["seconds"] for row in calls), strict=True)]
        there = calls[0]["collective"] == "send"
        seconds = statistics.median(slowest) / (2 if there else 1)
        rows.append(
            {"collective": calls[0]["collective"], "ranks": n, "bytes": calls[0]["bytes"], "seconds": seconds}
        )
    return rows


def links(rows: Sequence[Row]) -> list[Row]:
    """α and β of every collective and number of ranks: seconds of K bytes = messages · α + volume · K · β."""
    found = []
    for collective, n in dict.fromkeys((row["collective"], row["ranks"]) for row in rows):
        cost = ring(collective, n)
        volume = float(cost.volume)
        samples = [
            Sample(volume * row["bytes"], row["seconds"], cost.messages)
            for row in rows
            if (row["collective"], row["ranks"]) == (collective, n)
        ]
        link = fit(samples)
        worst = max(map(abs, errors(link, samples)))
        found.append(
            {"collective": collective, "ranks": n, "alpha_s": link.alpha, "beta_s_per_byte": link.beta}
            | {"messages": cost.messages, "volume": volume, "worst_error": worst}
        )
    return found


def ring(collective: str, n: int) -> Cost:
    """Messages one after the other, and the part of K that they carry, as `planning.communication` counts a ring."""
    if collective == "send":
        return Cost(1, Fraction(1))
    cost = closed_form(collective, None, n, Network.uniform(AlphaBeta(0, 0)))
    assert cost is not None, collective
    return cost


def sharing(rows: dict[int, list[list[Row]]]) -> dict[str, Any]:
    """How much slower a product, and a copy, is with so many ranks at work, and how many ranks run at full speed."""
    seconds = {name: {n: _together(ranks, name) for n, ranks in rows.items()} for name in ("product", "copy")}
    slowdowns = {
        name: {n: t / min(times.values()) for n, t in times.items()} for name, times in seconds.items()
    }
    return {
        "ranks": list(rows),
        **{f"{name}_slowdown": list(found.values()) for name, found in slowdowns.items()},
        **{f"{name}_cores": cores(found) for name, found in slowdowns.items()},
    }


def _together(ranks: list[list[Row]], work: str) -> float:
    """What the slowest rank took (the others' work may be done before it is), in the fastest turn: whatever else this
    machine does can only make a turn longer."""
    found = [next(row["seconds"] for row in rank if row.get("work") == work) for rank in ranks]
    return min(max(turn) for turn in zip(*found, strict=True))
