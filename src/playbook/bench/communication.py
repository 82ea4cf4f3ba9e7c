"""``playbook bench communication``: replicas that say less, beside torch's own ways to do so.

*powersgd*: AdamW on gradients of rank r, ours beside DDP with `powerSGD_hook`, from the same first factors. *local*:
AdamW, and weights that are averaged after each H steps, beside `PostLocalSGDOptimizer` and its averager; a turn is a
round of H steps. Ours is what ``--data-parallel powersgd:r=…`` and ``local:H=…`` train with.

They take turns and are compared as in ``bench parallel``, whose rows these are, started several times as in ``bench
experts``. Bytes are those that a rank sends around rings, of what both ask their collectives for. Few tokens a step,
so that most of a step is what is compared: the products of a rank grow with tokens, messages do not.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from playbook import launch
from playbook._checks import unknown
from playbook.bench import provenance
from playbook.bench.communication_peers import START
from playbook.bench.parallel import joined_row, report_parallel
from playbook.bench.turns import Track, Work, take_turns
from playbook.errors import ConfigError

_TIMEOUT = 1800.0
#: What is compared, by name.
GROUPS = {
    "powersgd": "PowerSGD of rank {rank} beside torch's hook of DDP",
    "local": "local steps beside torch's post-local SGD: rounds of {period} steps",
}
#: Ours, the peer, and what both ratios are held to, that of seconds and that of bytes.
PAIRS: dict[str, tuple[str, str, float]] = {
    "powersgd": ("PowerSGD", "DDP, powerSGD_hook", 1.05),
    "local": ("local steps", "post-local SGD", 1.05),
}
#: What the names of peers stand for.
SETTINGS = {
    "DDP, powerSGD_hook": "gradient_as_bucket_view=True, broadcast_buffers=False, one bucket; powerSGD_hook, "
    "min_compression_rate=1, whole gradients in two steps before the first",
    "post-local SGD": "DDP likewise, post_localSGD_hook without all-reduce of gradients; PostLocalSGDOptimizer(AdamW, "
    "PeriodicModelAverager), averages after each round",
}
#: Two layers as wide as GPT-2's, and a vocabulary of a sixth.
MODEL: dict[str, Any] = {
    "name": "two layers as wide as GPT-2's", "layers": 2, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 8192,
    "max_seq": 1024,
}  # fmt: skip


def bench_communication(
    work: Work,
    ranks: Sequence[int],
    rank: int,
    period: int,
    steps: int,
    device: str,
    only: Sequence[str] = tuple(GROUPS),
    launches: int = 1,
) -> dict[str, Any]:
    """Median seconds of both of each pair, their ratio, and bytes sent, as ``bench_parallel`` gives them, by group.

    A group for each number of ``ranks`` and each name of ``only``; ``rank`` is that of PowerSGD's factors, ``period`` the
    steps of a round. ``steps`` turns are timed in each of ``launches``. ``device`` "cpu" is gloo with one thread on each
    rank, "cuda" NCCL with a GPU for each. Raises ConfigError for what cannot be run.
    """
    for name in only:
        if name not in GROUPS:
            raise ConfigError(unknown("group", name, GROUPS))
    if min(ranks) < 2:
        raise ConfigError(f"ranks is {min(ranks)}, but must be at least 2: one rank has nobody to tell")
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if backend == "nccl" and torch.cuda.device_count() < max(ranks):
        raise ConfigError(
            f"ranks is {max(ranks)} on cuda, but this machine has {torch.cuda.device_count()} GPUs"
        )
    tasks = {"powersgd": work, "local": replace(work, grad_acc=period)}
    return {
        "provenance": provenance(device),
        "backend": backend,
        "threads_per_rank": 1 if backend == "gloo" else None,
        "steps": steps,
        "launches": launches,
        "rank": rank,
        "period": period,
        "peers": SETTINGS,
        "groups": [
            _bench(name, tasks[name], n, rank, steps, backend, launches)
            for n in ranks
            for name in dict.fromkeys(only)
        ],
    }


def _bench(
    name: str, work: Work, ranks: int, rank: int, steps: int, backend: str, launches: int
) -> dict[str, Any]:
    found = [
        launch.run(measure, name, work, rank, steps, ranks=ranks, backend=backend, timeout=_TIMEOUT).values
        for _ in range(launches)
    ]
    row = joined_row(PAIRS[name], found)
    sent = row["ours_sent"] / row["peer_sent"]
    return {
        "name": name,
        "title": GROUPS[name].format(rank=rank, period=work.grad_acc),
        "ranks": ranks,
        "model": work.shape.name,
        "parameters": work.shape.num_parameters,
        "micro_batch": work.micro_batch,
        "seq": work.seq,
        "grad_acc": work.grad_acc,
        "each": True,
        "comparisons": [row | {"sent_ratio": sent, "met": row["met"] and sent <= row["limit"]}],
    }


def measure(name: str, work: Work, rank: int, steps: int) -> dict[str, Track]:
    """In one rank: ours and the peer of a group, who take each turn one after the other."""
    with launch.process_group() as world:
        if world.device.type == "cpu":
            torch.set_num_threads(1)
        runs = START[name](work, rank, world.device)
        take_turns(list(runs.values()), work, steps, world.device)
        tracks = {one: run.track() for one, run in runs.items()}
        del runs
        gc.collect()  # models and their hooks hold each other
    return tracks


def report_communication(result: dict[str, Any]) -> str:
    """The result of ``bench_communication`` as tables for people."""
    rows = [c for group in result["groups"] for c in group["comparisons"]]
    apart = max(max(c["launch_ratios"]) - min(c["launch_ratios"]) for c in rows)
    most = max(c["sent_ratio"] for c in rows)
    return (
        f"{report_parallel(result)}\n\nours sends at most {most:.3f} times the peer's bytes; {result['launches']} "
        f"launches of so many steps, ratios of single ones are up to {apart:.2f} apart"
    )
