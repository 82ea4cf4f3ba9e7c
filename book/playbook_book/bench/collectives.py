"""``playbook bench collectives``: our collectives beside the backend's, and an α–β model held against sizes it never saw.

Ours and the backend's take turns inside the same ranks, call by call, each from a barrier on; a call takes as long as on
its slowest rank, and the medians of all calls are compared. Where ranks share cores, a call now and then
waits some milliseconds for a core; the model describes the others: it is fitted on the mean of the fastest quarter of the
calls at every other size, and predicts the sizes in between.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from playbook import launch
from playbook.bench import backend_of, provenance
from playbook.bench.calls import seconds_of_call, slowest, there_and_back
from playbook.collectives import CollectiveError
from playbook.collectives.links import Sample, errors, fit, ring
from playbook.parallel import mesh
from playbook.planning.communication import bus_bandwidth
from playbook_book import collectives
from playbook_book.collectives.regimes import Regimes, fit_regimes

RANKS = (2, 4, 8)
#: Bytes of the vector: 1 KB to 64 MB.
SIZES = tuple(1 << i for i in range(10, 27))
#: Bytes of the vector of all collectives but all-reduce.
_OTHERS = 1 << 20
#: In a turn something is called for so many seconds, at most so many times.
_TURN, _MOST = 0.1, 20
_TIMEOUT = 600.0

Pair = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]
#: A collective, or "message", and the bytes of its vector.
Task = tuple[str, int]


def bench_collectives(
    ranks: Sequence[int] = RANKS, sizes: Sequence[int] = SIZES, repeats: int = 7, device: str = "cpu"
) -> dict[str, Any]:
    """Median seconds of ours and the backend's by number of ranks, and how well α–β models predict undisturbed calls.

    ``all_reduce`` by ``sizes`` (bytes of fp32 numbers), every other collective at 1 MB, and messages between two
    ranks. ``device`` "cpu" is gloo, "cuda" NCCL with a GPU for each rank. Raises CollectiveError and ConfigError for
    what cannot be run.
    """
    _check(ranks, sizes, repeats, device)
    sizes = sorted(set(sizes))
    rows, messages = [], []
    for n in ranks:
        for (kind, size), times in _run(n, sizes, repeats, device).items():
            if kind == "message":
                seconds = statistics.median(times["there and back"]) / 2
                messages.append({"ranks": n, "bytes": size, "seconds": seconds})
            else:
                rows.append(_row(n, kind, size, times))
    all_reduce = [row for row in rows if row["collective"] == "all_reduce"]
    fits = [f for n in ranks for who in ("ours", "peer") if (f := _fitted(n, who, all_reduce)) is not None]
    return {
        "provenance": provenance(device),
        "backend": backend_of(device),
        "repeats": repeats,
        "all_reduce": all_reduce,
        "fits": fits,
        "worst_error": max((abs(e) for f in fits for e in f["errors"]), default=None),
        "others": [row for row in rows if row["collective"] != "all_reduce"],
        "point_to_point": messages,
    }


def report_collectives(result: dict[str, Any]) -> str:
    """The result of ``bench_collectives`` as tables for people."""
    peer = result["backend"]
    lines = [
        f"all-reduce, our ring from send and receive against {peer}'s; bus bandwidth in GB/s",
        f"  {'ranks':>5} {'bytes':>11} {'ours ms':>9} {f'{peer} ms':>9} {'ratio':>6} {'ours':>8} {peer:>8}",
    ]
    for row in result["all_reduce"]:
        bandwidths = f"{row['ours_bus'] / 1e9:8.3f} {row['peer_bus'] / 1e9:8.3f}"
        lines.append(f"  {row['ranks']:5} {row['bytes']:11,} {_pair(row)} {bandwidths}")
    lines.append("α–β models, fitted on every other size; errors of those in between")
    for f in result["fits"]:
        who = "ours" if f["who"] == "ours" else peer
        links = " then ".join(
            f"{a * 1e6:.1f} µs + {b / 1e9:.2f} GB/s"
            for a, b in zip(f["alpha_s"], f["bandwidth"], strict=True)
        )
        found = ", ".join(f"{error:+.0%}" for error in f["errors"])
        lines.append(f"  {f['ranks']} ranks, {who}: {links}")
        lines.append(f"    errors {found} (one line alone: worst {f['worst_error_of_one_line']:.0%})")
    misses = [abs(error) for f in result["fits"] for error in f["errors"]]
    lines.append(f"  {sum(miss < 0.2 for miss in misses)} of {len(misses)} predicted within 20 %")
    lines.append(f"other collectives, {_OTHERS:,} bytes: ours ms, {peer} ms, ratio")
    lines += [f"  {row['ranks']:5} {row['collective']:14} {_pair(row)}" for row in result["others"]]
    return "\n".join(lines)


def _pair(row: dict[str, Any]) -> str:
    return f"{row['ours_s'] * 1e3:9.3f} {row['peer_s'] * 1e3:9.3f} {row['ratio']:6.2f}"


def _check(ranks: Sequence[int], sizes: Sequence[int], repeats: int, device: str) -> None:
    for n in ranks:
        if n < 2:
            raise CollectiveError(f"ranks must be at least 2, got {n}: one rank has nobody to talk to")
    for size in sizes:
        if size < 4 or size % 4:
            raise CollectiveError(f"sizes must be multiples of 4 bytes, an fp32 number, got {size}")
    if repeats < 1:
        raise CollectiveError(f"repeats must be at least 1, got {repeats}")
    backend_of(device, max(ranks))


# ---- in the ranks


def _run(n: int, sizes: Sequence[int], repeats: int, device: str) -> dict[Task, Times]:
    """What the ranks measured, a call being as slow as its slowest rank."""
    ranks = launch.run(measure, sizes, repeats, ranks=n, backend=backend_of(device), timeout=_TIMEOUT).values
    return {
        task: {who: slowest(rank[task][who] for rank in ranks) for who in times}
        for task, times in ranks[0].items()
    }


def measure(sizes: Sequence[int], repeats: int) -> dict[Task, Times]:
    """In one rank: seconds of every call, by what was measured and who did it.

    One call of each thing follows one of another: nobody finds its own vector in the cache because it has just used it,
    and when the machine is slow for a while, it is slow for all.
    """
    torch.set_num_threads(1)
    with launch.process_group() as world:
        group = dist.group.WORLD
        assert group is not None
        x = torch.zeros(max(sizes) // 4, device=world.device)
        vectors = {size: x[: size // 4] for size in sizes}
        tasks: dict[Task, Pair] = {
            **{("all_reduce", size): _all_reduce(vector, group) for size, vector in vectors.items()},
            **{(kind, _OTHERS): pair for kind, pair in _others(group, world).items()},
            **{("message", size): _message(vectors[size], world) for size in list(vectors)[::2]},
        }
        often = {task: how_often(pair, world) for task, pair in tasks.items()}
        times: dict[Task, Times] = {task: {who: [] for who in pair} for task, pair in tasks.items()}
        for _, i in itertools.product(range(repeats), range(_MOST)):
            for task in (task for task, count in often.items() if i < count):
                for who, function in tasks[task].items():
                    times[task][who].append(seconds_of_call(function, world))
    return times


def how_often(pair: Pair, world: launch.World) -> int:
    """How often a turn calls a pair of functions: the same on all ranks. Warms them up, too."""
    for function in pair.values():
        function()
    longest = max(seconds_of_call(function, world) for function in pair.values())
    estimate = torch.tensor([longest], device=world.device)
    dist.all_reduce(estimate, dist.ReduceOp.MAX)
    return max(1, min(_MOST, int(_TURN / float(estimate))))


def _all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> Pair:
    return {"ours": lambda: collectives.all_reduce(x, group), "peer": lambda: dist.all_reduce(x)}


def _others(group: dist.ProcessGroup, world: launch.World) -> dict[str, Pair]:
    """Every other collective, ours and the backend's, the root being rank 0."""
    n, root = world.size, world.rank == 0
    whole = torch.zeros(_OTHERS // 4 // n * n, device=world.device)
    other, chunk = torch.zeros_like(whole), torch.zeros(len(whole) // n, device=world.device)
    chunks = list(other.view(n, -1))
    mine = other if root else None
    ours: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: collectives.broadcast(whole, group),
        "reduce": lambda: collectives.reduce(whole, group),
        "gather": lambda: collectives.gather(mine, chunk, group),
        "scatter": lambda: collectives.scatter(chunk, mine, group),
        "all_gather": lambda: collectives.all_gather(whole, chunk, group),
        "reduce_scatter": lambda: collectives.reduce_scatter(chunk, whole, group),
        "all_to_all": lambda: collectives.all_to_all(other, whole, group),
        "barrier": lambda: collectives.barrier(group),
    }
    peer: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "gather": lambda: dist.gather(chunk, chunks if root else None, 0),
        "scatter": lambda: dist.scatter(chunk, chunks if root else None, 0),
        "all_gather": lambda: mesh.all_gather(whole, chunk),
        "reduce_scatter": lambda: mesh.reduce_scatter(chunk, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "barrier": lambda: dist.barrier(),
    }
    return {kind: {"ours": ours[kind], "peer": peer[kind]} for kind in ours}


def _message(x: torch.Tensor, world: launch.World) -> Pair:
    """Between ranks 0 and 1; the others do nothing."""
    talks = world.rank < 2
    return {"there and back": lambda: there_and_back(x, world.rank, 1 - world.rank) if talks else None}


# ---- rows and models


def _row(n: int, kind: str, size: int, times: Times) -> dict[str, Any]:
    ours, peer = statistics.median(times["ours"]), statistics.median(times["peer"])
    row: dict[str, Any] = {"ranks": n, "collective": kind, "bytes": size}
    row |= {"ours_s": ours, "peer_s": peer, "ratio": ours / peer, "calls": len(times["ours"])}
    row |= {f"{who}_fast_s": _fast(times[who]) for who in ("ours", "peer")}
    if kind == "all_reduce":
        row["ours_bus"] = bus_bandwidth(kind, n, size, ours)
        row["peer_bus"] = bus_bandwidth(kind, n, size, peer)
    return row


def _fast(times: list[float]) -> float:
    """Mean of the fastest quarter."""
    return statistics.fmean(sorted(times)[: (len(times) + 3) // 4])


def _fitted(n: int, who: str, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The α–β model of one curve, and its errors on the sizes that were held back; None where they are too few."""
    messages, volume = ring("all_reduce", n)
    mine = (row for row in rows if row["ranks"] == n)
    samples = [Sample(volume * row["bytes"], row[f"{who}_fast_s"], messages) for row in mine]
    held_back = samples[1:-1:2]
    fitted = [sample for sample in samples if sample not in held_back]
    if not held_back:
        return None
    model, line = fit_regimes(fitted), Regimes((fit(fitted),))
    return {
        "ranks": n,
        "who": who,
        "alpha_s": [link.alpha for link in model.links],
        "bandwidth": [link.bandwidth for link in model.links],
        "limits_bytes": [limit * messages / volume for limit in model.limits],
        "fitted_on": [round(sample.bytes / volume) for sample in fitted],
        "held_back": [round(sample.bytes / volume) for sample in held_back],
        "errors": errors(model, held_back),
        "worst_error_of_one_line": max(map(abs, errors(line, held_back))),
    }
