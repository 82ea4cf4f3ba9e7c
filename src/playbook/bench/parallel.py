"""``playbook bench parallel``: ways to train on many ranks beside torch's own, one training step after the other.

Ours and the peer train the same model from the same weights on the same tokens, in turns inside the same ranks, each
step from a barrier on. A step takes as long as on its slowest rank; medians of all steps are compared. On a machine that
others use, too, its speed may jump by more than what is to be seen: there the ratios *within* each turn tell more, and
their quartiles are given, and so is the ratio of the seconds in which the busiest rank had a core. Losses and gradient
norms of all steps are compared: a fast wrong step is worth nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from playbook import launch
from playbook._checks import unknown
from playbook.bench import provenance
from playbook.bench.rounds import GROUPS, LONG_SEQ, SETTINGS, Group, long_work, make_runs
from playbook.bench.turns import Track, Work, compared, take_turns
from playbook.errors import ConfigError

_TIMEOUT = 1800.0
#: Losses and gradient norms of two that are compared differ by less, relatively.
TOLERANCE = 1e-5


def bench_parallel(
    work: Work,
    ranks: int,
    steps: int,
    device: str,
    only: Sequence[str] = tuple(GROUPS),
    long_seq: int = LONG_SEQ,
) -> dict[str, Any]:
    """Median seconds of a training step, ours and the peer's, their ratio, and the bytes that both send, by group.

    ``turn_ratio_quartiles`` are those of the ratios within each turn, ``loss_difference`` and ``norm_difference`` the
    largest relative ones of all steps; ``met`` says whether the ratio is within its limit, None where there is none.
    ``only`` chooses among ``GROUPS``, ``long_seq`` is what two ranks around a ring train. ``device`` "cpu" is gloo with
    one thread on each rank, "cuda" NCCL with a GPU for each. Raises ConfigError and LayoutError for what cannot be run.
    """
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    for name in only:
        if name not in GROUPS:
            raise ConfigError(unknown("group", name, GROUPS))
    if ranks < 2:
        raise ConfigError(f"ranks is {ranks}, but must be at least 2: one rank has nobody to share with")
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        raise ConfigError(f"ranks is {ranks} on cuda, but this machine has {torch.cuda.device_count()} GPUs")
    jobs = []
    for group in (GROUPS[name] for name in dict.fromkeys(only)):
        n = group.ranks or ranks
        task = long_work(work, n, long_seq) if group.ranks else group.work(work, n)
        group.check(task.shape, n)
        jobs.append((group, task, n))
    return {
        "provenance": provenance(device),
        "backend": backend,
        "threads_per_rank": 1 if backend == "gloo" else None,
        "steps": steps,
        "peers": SETTINGS,
        "groups": [_bench(*job, steps, backend) for job in jobs],
    }


def _bench(group: Group, work: Work, ranks: int, steps: int, backend: str) -> dict[str, Any]:
    results = launch.run(
        measure, group.name, work, steps, ranks=ranks, backend=backend, timeout=_TIMEOUT
    ).values
    rows = []
    for pair in group.pairs:
        ours, peer = pair.ours.name, pair.peer.name
        row = compared([r[ours] for r in results], [r[peer] for r in results])
        alike = max(row["loss_difference"], row["norm_difference"]) < TOLERANCE
        met = None if pair.limit is None else alike and row["ratio"] <= pair.limit
        rows.append({"ours": ours, "peer": peer} | row | {"limit": pair.limit, "alike": alike, "met": met})
    return {
        "name": group.name,
        "title": group.title,
        "ranks": ranks,
        "model": work.shape.name,
        "parameters": work.shape.num_parameters,
        "micro_batch": work.micro_batch,
        "seq": work.seq,
        "grad_acc": work.grad_acc,
        "each": not work.alike,
        "comparisons": rows,
    }


def measure(name: str, work: Work, steps: int) -> dict[str, Track]:
    """In one rank: every way to train of a group, by name; those of one round step by step in turns."""
    tracks: dict[str, Track] = {}
    with launch.process_group() as world:
        if world.device.type == "cpu":
            torch.set_num_threads(1)
        for turns in GROUPS[name].rounds:
            runs = make_runs(turns, work, world.device)
            take_turns(list(runs.values()), work, steps, world.device)
            tracks |= {one: run.track() for one, run in runs.items()}
            del runs
            gc.collect()  # models and their hooks hold each other
    return tracks


def joined_row(
    pair: tuple[str, str, float | None], launches: Sequence[Sequence[dict[str, Track]]]
) -> dict[str, Any]:
    """Ours and the peer, of whom each rank of each launch has a track, as a row, with the ratio in each launch alone."""
    ours, peer, limit = pair
    tracks = [[[rank[name] for rank in one] for one in launches] for name in (ours, peer)]
    each = [compared(*one)["ratio"] for one in zip(*tracks, strict=True)]
    joined = [[Track.joined(rank) for rank in zip(*one, strict=True)] for one in tracks]
    row = compared(joined[0], joined[1]) | {"launch_ratios": each}
    alike = max(row["loss_difference"], row["norm_difference"]) < TOLERANCE
    met = None if limit is None else alike and row["ratio"] <= limit
    return {"ours": ours, "peer": peer} | row | {"limit": limit, "alike": alike, "met": met}


def report_parallel(result: dict[str, Any]) -> str:
    """The result of ``bench_parallel`` as tables for people."""
    lines = [line for group in result["groups"] for line in (*_table(group, result), "")]
    used = {row["peer"] for group in result["groups"] for row in group["comparisons"]}
    return "\n".join(lines + [f"{name}: {text}" for name, text in result["peers"].items() if name in used])


def _table(group: dict[str, Any], result: dict[str, Any]) -> list[str]:
    tokens = f"{group['grad_acc']} × {group['micro_batch']} × {group['seq']} tokens"
    tokens += " on each" if group["each"] else " together"
    model = f"{group['model'] or 'model'}, {group['parameters']:,} parameters"
    lines = [
        f"{group['name']}: {group['title']}",
        f"  {model}, {group['ranks']} {result['backend']} ranks, {tokens}; medians of {result['steps']} steps",
        f"  {'ours':16} {'peer':23} {'ours ms':>9} {'peer ms':>9} {'ratio':>6} {'quartiles of turns':>18} "
        f"{'on a core':>9} {'MB sent':>8} {'peer':>7} {'apart':>7} {'limit':>6}",
    ]
    for c in group["comparisons"]:
        low, middle, high = c["turn_ratio_quartiles"]
        apart = max(c["loss_difference"], c["norm_difference"])
        lines.append(
            f"  {c['ours']:16} {c['peer']:23} {c['ours_s'] * 1e3:9.1f} {c['peer_s'] * 1e3:9.1f} {c['ratio']:6.3f} "
            f"{low:6.2f} {middle:5.2f} {high:5.2f} {c['cpu_ratio']:9.3f} "
            f"{c['ours_sent'] / 1e6:8.2f} {c['peer_sent'] / 1e6:7.2f} {apart:7.0e} {verdict(c)}".rstrip()
        )
    return lines


def verdict(row: dict[str, Any]) -> str:
    """Whether a comparison met its limit, in words for the end of its line."""
    if not row["alike"]:
        return "other steps than the peer's"
    if row["limit"] is None:
        return ""
    return f"{row['limit']:6.2f} {'met' if row['met'] else 'missed'}"
