"""``playbook bench experts``: a layer of experts beside transformers', and ways to spread experts over ranks.

Three kinds of groups. *layer*: forward and backward of one mixture on one process with one thread, beside the same
weights in transformers' `MixtralSparseMoeBlock`, as it is by default and as a loop over experts, and beside our own loop.
*dispatch*: the same of a layer with its experts on four ranks: rows sent to their experts beside all tokens sent to all.
*layout*: training steps with experts on four ranks beside tensor-parallel ones, on the same global batch.

Those of a group take turns and are compared as in ``bench parallel``, whose rows these are. The "loss" of a layer is the
squared distance of its output from a target; the norm is that of all gradients, its input's among them. As in ``bench
pipeline`` the ranks are started several times, since where memory comes to lie makes the same code up to 4 % faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from playbook import launch
from playbook._checks import unknown
from playbook.bench import provenance
from playbook.bench.experts_peers import LAYOUTS, RANKS, START, OneLayer
from playbook.bench.parallel import joined_row, report_parallel
from playbook.bench.turns import Track, Work, take_turns
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.model.moe import MoE
from playbook.shapes import ModelShape
from playbook.shapes import MoE as Sizes

_TIMEOUT = 1800.0
#: What is compared, by name.
GROUPS = {
    "layer": "a layer on one process beside transformers' MixtralSparseMoeBlock, and a loop over experts",
    "dispatch": "a layer on ranks: rows sent to their experts beside all tokens sent to all ranks",
    "layout": "training steps on the same global batch: experts on ranks beside slices of every expert",
}
#: Ours, the peer, and what the ratio is held to, by group.
PAIRS: dict[str, tuple[tuple[str, str, float | None], ...]] = {
    "layer": (
        ("ours", "transformers", 1.0),
        ("ours", "transformers, eager", 1.0),
        ("ours", "looped", None),
    ),
    "dispatch": (("all-to-all", "gather", 0.7), ("two-step", "all-to-all", None)),
    "layout": ((*LAYOUTS, None),),
}
#: What the names of peers stand for.
SETTINGS = {
    "transformers": "experts_implementation='grouped_mm', its default: F.grouped_mm, gate and up in one matrix",
    "transformers, eager": "experts_implementation='eager': a loop over the experts that tokens chose",
    "looped": "model.moe.looped",
    "gather": "all-gather of tokens, weights and choices, reduce-scatter of results",
    "all-to-all": "parallel.expert.AllToAll; for two steps, two ranks are a node",
    LAYOUTS[1]: "each rank has a quarter of the columns or rows of every matrix",
}
HIDDEN = 256
#: The layers on one process: few experts, wider ones, many small ones; and the one on ranks. Its experts are narrow:
#: both ways to reach them compute the same, and the wider they are the less is seen of the way.
LAYERS = (
    Sizes(experts=8, top_k=2, ffn=344),
    Sizes(experts=8, top_k=2, ffn=688),
    Sizes(experts=64, top_k=8, ffn=88),
)
ON_RANKS = Sizes(experts=16, top_k=2, ffn=172)


def bench_experts(
    shape: ModelShape,
    tokens: Sequence[int],
    seq: int,
    steps: int,
    device: str,
    only: Sequence[str] = tuple(GROUPS),
    launches: int = 1,
) -> dict[str, Any]:
    """Median seconds of both of each pair, their ratio, and bytes sent, as ``bench_parallel`` gives them, by group.

    ``steps`` are timed in each of ``launches``; ``launch_ratios`` are the ratios in each of them alone.
    ``tokens`` are those of a layer on one process, a group for each number and each of ``LAYERS``; ``seq`` those of each
    rank elsewhere. ``shape`` is what whole steps train, without its load-balancing loss, for that of a micro-batch
    depends on the layout. ``only`` chooses among ``GROUPS``. Raises ConfigError and LayoutError for what cannot be run.
    """
    for name in only:
        if name not in GROUPS:
            raise ConfigError(unknown("group", name, GROUPS))
    if shape.moe is None:
        raise ConfigError("this model has no experts: choose one that has, such as tiny-moe")
    shape = shape.replace(moe=dataclasses.replace(shape.moe, balance_loss=0.0), dropout=0.0)
    for text in LAYOUTS if "layout" in only else ():
        Layout.parse(text).check(shape, seq=seq)
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    needed = RANKS if {*only} - {"layer"} else 1
    if backend == "nccl" and torch.cuda.device_count() < needed:
        raise ConfigError(f"this takes {needed} GPUs, but this machine has {torch.cuda.device_count()}")
    work: dict[str, list[Work]] = {
        "layer": [_layer(sizes, n) for sizes in LAYERS for n in tokens],
        "dispatch": [_layer(ON_RANKS, seq)],
        "layout": [Work(shape, RANKS, seq, alike=True)],
    }
    groups = [
        group for name in dict.fromkeys(only) for group in _bench(name, work[name], steps, backend, launches)
    ]
    return {
        "provenance": provenance(device),
        "backend": backend,
        "threads_per_rank": 1 if backend == "gloo" else None,
        "steps": steps,
        "launches": launches,
        "peers": SETTINGS,
        "groups": groups,
    }


def _layer(sizes: Sizes, tokens: int) -> Work:
    shape = ModelShape(
        layers=1, hidden=HIDDEN, heads=1, vocab=1, max_seq=tokens, gated=True, activation="silu", bias=False, moe=sizes,
        name=f"top-{sizes.top_k} of {sizes.experts} experts of {HIDDEN} × {sizes.ffn}",
    )  # fmt: skip
    return OneLayer(shape, seq=tokens)


def _bench(name: str, works: Sequence[Work], steps: int, backend: str, launches: int) -> list[dict[str, Any]]:
    ranks = 1 if name == "layer" else RANKS
    found = [
        launch.run(measure, name, works, steps, ranks=ranks, backend=backend, timeout=_TIMEOUT).values
        for _ in range(launches)
    ]
    return [
        {
            "name": name,
            "title": GROUPS[name],
            "ranks": ranks,
            "model": work.shape.name,
            "parameters": _parameters(work),
            "micro_batch": work.micro_batch,
            "seq": work.seq,
            "grad_acc": work.grad_acc,
            "each": not work.alike,
            "comparisons": [
                joined_row(pair, [[rank[i] for rank in one] for one in found])
                for pair in PAIRS[name]
                if {*pair[:2]} <= found[0][0][i].keys()
            ],
        }
        for i, work in enumerate(works)
    ]


def _parameters(work: Work) -> int:
    if not isinstance(work, OneLayer):
        return work.shape.num_parameters
    assert work.shape.moe is not None
    with torch.device("meta"):
        return sum(p.numel() for p in MoE(work.shape, work.shape.moe).parameters())


def measure(name: str, works: Sequence[Work], steps: int) -> list[dict[str, Track]]:
    """In one rank: for each of ``works`` the tracks of a group, whose members take each step in turns."""
    found = []
    with launch.process_group() as world:
        if world.device.type == "cpu":
            torch.set_num_threads(1)
        for work in works:
            runs = START[name](work, world.device)
            take_turns(list(runs.values()), work, steps, world.device)
            found.append({one: run.track() for one, run in runs.items()})
    return found


def report_experts(result: dict[str, Any]) -> str:
    """The result of ``bench_experts`` as tables for people."""
    ratios = [c["launch_ratios"] for group in result["groups"] for c in group["comparisons"]]
    apart = max(max(each) - min(each) for each in ratios)
    launches = (
        f"{result['launches']} launches of so many steps; ratios of single ones are up to {apart:.2f} apart"
    )
    return f"{report_parallel(result)}\n\n{launches}"
