"""A contest on many ranks: ways to train, ours and a peer's, who take turns in the same ranks and stand in one table.

What ``bench parallel``, ``pipeline``, ``experts`` and ``communication`` have in common: who is compared with whom
(`Way`, `Pair`, `Group`), how ranks measure them, in turns as ``turns.py`` has them (`measure`), and the tables of what
was found. A fast wrong step is worth nothing: losses and gradient norms of all steps are compared, too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist

from playbook import launch
from playbook.bench import backend_of, provenance
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.training.optimizer import adamw
from playbook_book.bench.turns import OPTIMIZER, Run, RunOnMesh, Track, Work, compared, take_turns

_TIMEOUT = 1800.0
#: Losses and gradient norms of two that are compared differ by less, relatively.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Way:
    """A way to train, with its name in tables. ``start`` makes it ready in a rank, on this work and device, from the same
    weights as all others; ``settings`` say what is asked of a peer."""

    name: str
    start: Callable[[Work, torch.device], Run]
    settings: str = ""


@dataclass(frozen=True)
class Pair:
    """Two that are compared: ours may take at most ``limit`` times as long as the peer, if there is a limit, and losses
    and norms may be ``apart`` by so much."""

    ours: Way
    peer: Way
    limit: float | None = None
    apart: float = TOLERANCE


@dataclass(frozen=True)
class Group:
    """A table: rounds of pairs that share ranks and work. The ways to train of one round take turns.

    ``parameters`` is None where they are those of the model of ``work``.
    """

    name: str
    title: str
    ranks: int
    work: Work
    rounds: tuple[tuple[Pair, ...], ...]
    parameters: int | None = None


def ways(turns: Iterable[Pair]) -> list[Way]:
    """Those of one round, each once."""
    return list({one.name: one for pair in turns for one in (pair.peer, pair.ours)}.values())


# ---- ours


def ours(name: str, layout: str, **options: Any) -> Way:
    """``parallelize`` with a layout, in which N is the number of ranks, and its other options."""
    return Way(name, partial(start_ours, layout, options))


def start_ours(layout: str, options: Mapping[str, Any], work: Work, device: torch.device) -> Run:
    engine, mesh = engine_of(
        Layout.parse(layout.replace("N", str(dist.get_world_size()))).replace(**options), work, device
    )
    if mesh.layout.tp == mesh.layout.cp == 1:
        return Run(engine, work.tokens * mesh.layout.dp)
    return RunOnMesh(engine, work, mesh, mesh.layout.token_placement)


def engine_of(layout: Layout, work: Work, device: torch.device) -> tuple[Engine, Mesh]:
    mesh = Mesh(layout)
    return parallelize(model_of(work, device), mesh, partial(adamw, **OPTIMIZER)), mesh


def model_of(work: Work, device: torch.device) -> Transformer:
    """What all train, from the same weights. Without dropout: what is dropped would differ."""
    return Transformer(work.shape.replace(dropout=0.0), device=device)


# ---- launches and rows


def contest(
    groups: Sequence[Group], steps: int, device: str, launches: int | None = None, **about: Any
) -> dict[str, Any]:
    """A record, in which each of ``groups`` has a table: of each pair the medians of ``steps``, and their ratio.

    ``device`` "cpu" is gloo with one thread on each rank, "cuda" NCCL with a GPU for each. Groups of one name and number
    of ranks, next to each other, share their launches. There are several, since where memory comes to lie makes the same
    code up to 4 % faster; ``launch_ratios`` are the ratios in each of them alone (``launches`` None: one, without them).
    Rows are those of ``turns.compared``; ``met`` says whether a ratio is within its limit, None where there is none.
    ``about`` is what else the record says. Raises ConfigError for GPUs that are not there.
    """
    backend, tables = backend_of(device, max(group.ranks for group in groups)), []
    where = provenance(device)
    for (_, ranks), some in groupby(groups, key=lambda group: (group.name, group.ranks)):
        shared = list(some)
        found = [
            launch.run(measure, shared, steps, bool(i % 2), ranks=ranks, backend=backend, timeout=_TIMEOUT).values
            for i in range(launches or 1)
        ]  # fmt: skip
        for g, group in enumerate(shared):
            rows = [
                _row(pair, [[rank[g][r] for rank in one] for one in found], launches is not None)
                for r, turns in enumerate(group.rounds)
                for pair in turns
            ]
            tables.append(_about(group) | {"comparisons": rows})
    return {
        "provenance": where,
        "backend": backend,
        "threads_per_rank": 1 if backend == "gloo" else None,
        "steps": steps,
        **({"launches": launches} if launches else {}),
        **about,
        "peers": {
            one.name: one.settings
            for group in groups
            for turns in group.rounds
            for one in ways(turns)
            if one.settings
        },
        "groups": tables,
    }


def measure(groups: Sequence[Group], steps: int, reverse: bool = False) -> list[list[dict[str, Track]]]:
    """In one rank: for each round of each group the tracks of all its ways to train, which take each step in turns.

    ``reverse``: they are made in the opposite order, and so lie elsewhere in memory.
    """
    with launch.process_group() as world:
        if world.device.type == "cpu":
            torch.set_num_threads(1)
        return [
            [_tracks(ways(turns)[:: -1 if reverse else 1], group.work, steps, world.device) for turns in group.rounds]
            for group in groups
        ]  # fmt: skip


def _tracks(order: Sequence[Way], work: Work, steps: int, device: torch.device) -> dict[str, Track]:
    runs = {one.name: one.start(work, device) for one in order}
    take_turns(list(runs.values()), work, steps, device)
    tracks = {name: run.track() for name, run in runs.items()}
    del runs
    gc.collect()  # models and their hooks hold each other
    return tracks


def _row(pair: Pair, launches: Sequence[Sequence[Mapping[str, Track]]], apart: bool) -> dict[str, Any]:
    """Ours and the peer, of whom each rank of each launch has a track, as a row."""
    both = [[[rank[one.name] for rank in ranks] for ranks in launches] for one in (pair.ours, pair.peer)]
    row = compared(*([Track.joined(rank) for rank in zip(*one, strict=True)] for one in both))
    if apart:
        row["launch_ratios"] = [compared(*one)["ratio"] for one in zip(*both, strict=True)]
    alike = max(row["loss_difference"], row["norm_difference"]) < pair.apart
    met = None if pair.limit is None else alike and row["ratio"] <= pair.limit
    names = {"ours": pair.ours.name, "peer": pair.peer.name}
    return names | row | {"limit": pair.limit, "alike": alike, "met": met}


def _about(group: Group) -> dict[str, Any]:
    work = group.work
    return {
        "name": group.name,
        "title": group.title,
        "ranks": group.ranks,
        "model": work.shape.name,
        "parameters": group.parameters or work.shape.num_parameters,
        "micro_batch": work.micro_batch,
        "seq": work.seq,
        "grad_acc": work.grad_acc,
        "each": not work.alike,
    }


# ---- tables for people

#: What a table may show of a comparison: the heading, which stands as wide as what is below it.
_CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "ours ms": lambda c: f"{c['ours_s'] * 1e3:9.1f}",
    "peer ms": lambda c: f"{c['peer_s'] * 1e3:9.1f}",
    "ratio": lambda c: f"{c['ratio']:6.3f}",
    "quartiles of turns": lambda c: "{:6.2f} {:5.2f} {:5.2f}".format(*c["turn_ratio_quartiles"]),
    "launches": lambda c: f"{min(c['launch_ratios']):6.2f}{max(c['launch_ratios']):5.2f}",
    "on a core": lambda c: f"{c['cpu_ratio']:9.3f}",
    "MB sent": lambda c: f"{c['ours_sent'] / 1e6:8.2f}",
    "peer": lambda c: f"{c['peer_sent'] / 1e6:7.2f}",
    "apart": lambda c: f"{max(c['loss_difference'], c['norm_difference']):7.0e}",
}


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str], widths: tuple[int, int]) -> list[str]:
    """Comparisons line by line, and above them what their ``columns`` are; names take ``widths``."""
    ours, peer = widths
    head = [f"{name:>{len(_CELLS[name](rows[0]))}}" for name in columns]
    lines = [" ".join([f"  {'ours':{ours}} {'peer':{peer}}", *head, f"{'limit':>6}"])]
    for row in rows:
        cells = [_CELLS[name](row) for name in columns]
        lines.append(
            " ".join([f"  {row['ours']:{ours}} {row['peer']:{peer}}", *cells, _verdict(row)]).rstrip()
        )
    return lines


def _verdict(row: dict[str, Any]) -> str:
    """Whether a comparison met its limit, in words for the end of its line."""
    if not row["alike"]:
        return "other steps than the peer's"
    if row["limit"] is None:
        return ""
    return f"{row['limit']:6.2f} {'met' if row['met'] else 'missed'}"


_COLUMNS = [name for name in _CELLS if name != "launches"]


def report_groups(result: dict[str, Any]) -> str:
    """Tables of all groups of a record, what is asked of the peers in them, and how far launches were apart."""
    lines, rows = [], [row for group in result["groups"] for row in group["comparisons"]]
    for group in result["groups"]:
        tokens = f"{group['grad_acc']} × {group['micro_batch']} × {group['seq']} tokens"
        tokens += " on each" if group["each"] else " together"
        model = f"{group['model'] or 'model'}, {group['parameters']:,} parameters"
        lines += [
            f"{group['name']}: {group['title']}",
            f"  {model}, {group['ranks']} {result['backend']} ranks, {tokens}; medians of {result['steps']} steps",
            *table(group["comparisons"], _COLUMNS, (16, 23)),
            "",
        ]
    used = {row["peer"] for row in rows}
    lines += [f"{name}: {text}" for name, text in result["peers"].items() if name in used]
    if launches := result.get("launches"):
        apart = max(max(row["launch_ratios"]) - min(row["launch_ratios"]) for row in rows)
        said = f"{launches} launches of so many steps; ratios of single ones are up to {apart:.2f} apart"
        lines += ["", said]
    return "\n".join(lines)
