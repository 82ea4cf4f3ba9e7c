"""What ranks of one machine do together: collectives among work, by size, and training passes that share its cores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from playbook import launch
from playbook.bench import backend_of
from playbook.bench.calls import seconds_of_call, slowest, there_and_back
from playbook.collectives.links import Sample, errors, fit, ring
from playbook.model.transformer import Transformer
from playbook.parallel import mesh
from playbook.shapes import ModelShape, MoE, load

Row = dict[str, Any]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Probe:
    """A small Llama, or with ``experts`` a small Mixtral, whose passes are timed as training makes them."""

    layers: int
    hidden: int
    batch: int
    seq: int
    experts: int = 0

    @property
    def shape(self) -> ModelShape:
        h = self.hidden
        return replace(
            load("tiny"), layers=self.layers, hidden=h, heads=max(2, h // 32), kv_heads=max(1, h // 64),
            head_dim=None, ffn=8 * h // 3, max_seq=self.seq,
            moe=MoE(experts=self.experts, top_k=2, ffn=4 * h // 3) if self.experts else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Together:
    """What ranks measure: vectors of ``sizes`` bytes, each sent after a product (``width``², ``rows`` times) and a pass
    over its result, as messages come in training; and ``probes``, a copy on each rank."""

    sizes: tuple[int, ...] = tuple(1 << i for i in range(10, 23, 3))
    repeats: int = 5
    width: int = 384
    rows: int = 1024
    probes: tuple[Probe, ...] = (
        Probe(4, 64, 1, 64), Probe(2, 128, 4, 128), Probe(4, 128, 1, 128), Probe(2, 256, 1, 256), Probe(2, 256, 8, 128),
        Probe(2, 512, 2, 256), Probe(4, 64, 1, 64, experts=4), Probe(4, 128, 1, 128, experts=8),
        Probe(2, 256, 2, 128, experts=8), Probe(2, 256, 8, 128, experts=4),
    )  # fmt: skip
    turns: int = 7


GPU = Together(
    width=2048,
    rows=4096,
    probes=(
        Probe(4, 512, 1, 512),
        Probe(2, 1024, 4, 1024),
        Probe(2, 2048, 2, 2048),
        Probe(2, 4096, 1, 4096),
        Probe(4, 512, 1, 512, experts=8),
        Probe(2, 1024, 4, 1024, experts=8),
        Probe(2, 2048, 1, 2048, experts=8),
    ),
    turns=15,
)
QUICK = Together(
    (1024, 8192, 65536),
    1,
    32,
    32,
    (Probe(1, 32, 1, 16), Probe(3, 64, 1, 32), Probe(2, 32, 1, 16, experts=2)),
    2,
)


def on_ranks(n: int, what: Together, threads: int, device: str) -> list[list[Row]]:
    """What each of ``n`` ranks measured; on a GPU each has its own."""
    return launch.run(measure, what, threads, ranks=n, backend=backend_of(device, n), timeout=_TIMEOUT).values


def measure(what: Together, threads: int) -> list[Row]:
    """In one rank: seconds of training passes that all ranks make at once, and of every collective among work."""
    torch.set_num_threads(threads)
    with launch.process_group() as world:
        rows = [_training(probe, what.turns, world) for probe in what.probes]
        if world.size > 1:
            work = _work(what, world)
            for together in group_sizes(world.size):
                group = _group(together, world)
                for collective in COLLECTIVES[: None if together == world.size else -1]:
                    for size in what.sizes:
                        call = _call(collective, size // 4 // together * together, group, world)
                        seconds = [_among(work, call, world) for _ in range(what.repeats)]
                        rows.append(
                            {"collective": collective, "group": together, "bytes": size, "seconds": seconds}
                        )
    return rows


def group_sizes(n: int) -> list[int]:
    """Groups that ``n`` ranks are cut into: pairs, fours and so on, as far as they come out even, and all of them."""
    return [*(2**i for i in range(1, n) if 2**i < n and n % 2**i == 0), n]


def _group(together: int, world: launch.World) -> dist.ProcessGroup:
    """This rank's group of so many neighbours. All groups talk at the same time, as those of a layout do."""
    groups = [dist.new_group(range(i, i + together)) for i in range(0, world.size, together)]
    return groups[world.rank // together]


def _training(probe: Probe, turns: int, world: launch.World) -> Row:
    """Forward and backward of one micro-batch, all ranks beginning together."""
    model = Transformer(probe.shape, device=world.device)
    tokens = torch.randint(0, 256, (probe.batch, probe.seq), device=world.device)
    half = world.device.type == "cuda"

    def passes() -> None:
        model.zero_grad()
        with torch.autocast(world.device.type, torch.bfloat16, enabled=half):
            loss = model.loss(tokens, tokens)[0]
        loss.backward()

    passes()
    return {"probe": probe, "seconds": [seconds_of_call(passes, world) for _ in range(turns)]}


#: Turns of work and message that are timed together: ranks drift apart and meet again, as they do in training.
_STREAM = 8


def _work(what: Together, world: launch.World) -> Callable[[], Any]:
    x, w = (
        torch.randn(what.rows, what.width, device=world.device),
        torch.randn(what.width, what.width, device=world.device),
    )
    return lambda: F.silu(F.linear(x, w))


def _among(
    work: Callable[[], Any], call: Callable[[], Any], world: launch.World
) -> tuple[float, float, float]:
    """Seconds of a call right after another one, of work alone, and of work and call in turn."""

    def often(*each: Callable[[], Any]) -> float:
        def stream() -> None:
            for _ in range(_STREAM):
                for one in each:
                    one()

        return seconds_of_call(stream, world) / _STREAM

    return often(call), often(work), often(work, call)


def _call(collective: str, elements: int, group: dist.ProcessGroup, world: launch.World) -> Callable[[], Any]:
    """A collective of a vector of so many fp32 numbers in all, or a message there and back again between neighbours."""
    whole = torch.zeros(elements, device=world.device)
    own, other = torch.zeros(elements // group.size(), device=world.device), torch.zeros_like(whole)
    neighbour = world.rank ^ 1
    alone = neighbour >= world.size
    found: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: mesh.all_gather(whole, own, group),
        "reduce_scatter": lambda: mesh.reduce_scatter(own, whole, group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send": lambda: None if alone else there_and_back(whole, world.rank, neighbour),
    }
    return found[collective]


def collective_rows(n: int, ranks: list[list[Row]]) -> list[Row]:
    """What each collective and size adds to work, a stream being as slow as its slowest rank: the median, and no less
    than calls take one after another. A message counts one way."""
    rows = []
    for calls in zip(*([row for row in rank if "collective" in row] for rank in ranks), strict=True):
        turns = zip(*(row["seconds"] for row in calls), strict=True)
        alone, work, both = map(statistics.median, zip(*(slowest(turn) for turn in turns), strict=True))
        one_way = 2 if calls[0]["collective"] == "send" else 1
        rows.append(
            {
                "collective": calls[0]["collective"],
                "ranks": n,
                "group": calls[0]["group"],
                "bytes": calls[0]["bytes"],
                "seconds": max(alone, both - work) / one_way,
                "alone_s": alone / one_way,
            }
        )
    return rows


def probe_rows(n: int, ranks: list[list[Row]]) -> list[Row]:
    """What the passes of each probe take where ``n`` ranks make them at once: the median turn of the slowest rank."""
    rows = []
    for probes in zip(*([row for row in rank if "probe" in row] for rank in ranks), strict=True):
        seconds = statistics.median(slowest(row["seconds"] for row in probes))
        rows.append({**asdict(probes[0]["probe"]), "ranks": n, "seconds": seconds})
    return rows


def links(rows: Sequence[Row]) -> list[Row]:
    """α and β of every collective, number of ranks and size of groups: K bytes take messages · α + volume · K · β."""
    found = []
    keys = ("collective", "ranks", "group")
    for collective, n, group in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        mine = [row for row in rows if tuple(row[key] for key in keys) == (collective, n, group)]
        messages, volume = ring(collective, group)
        samples = [Sample(volume * row["bytes"], row["seconds"], messages) for row in mine]
        link = fit(samples)
        worst = max(map(abs, errors(link, samples)))
        found.append(
            {
                "collective": collective,
                "ranks": n,
                "group": group,
                "alpha_s": link.alpha,
                "beta_s_per_byte": link.beta,
            }
            | {"messages": messages, "volume": volume, "worst_error": worst}
        )
    return found
