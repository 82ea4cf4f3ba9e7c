"""Muon over ranks: who makes a matrix whole, what is sent for that, what it costs. Standard library only.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) moves a matrix of a hidden layer by its moment made nearly
orthogonal. For that it must be whole, and ranks have parts of it: slices (tp), stretches of slices (ZeRO), or all of it
beside others that have the same. There are three ways (`layout.fields.MUON`):

- gather: whoever has a part gets all others, and computes the whole update (Liu et al. 2025, arXiv 2502.16982);
- owner: one rank gets all parts of a matrix, and sends to each rank the update of what it has;
- all-to-all: the same, of as many matrices at once as there are ranks, by one collective each way (so does the code of
  Dion, Ahn et al. 2025, arXiv 2504.05295, with Muon).

`training/muon.py` sends what `Matrix` says here; the planner counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from playbook.block import Kind, Linear, evaluate, learns, symbols, weighty
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.memory import Held
from playbook.planning.messages import FP32, Message, Sender, WeightSet, message_in
from playbook.planning.operations import Operation
from playbook.planning.peak import CHUNK, RunSizes, Weights
from playbook.planning.recipes import BytesPerParameter
from playbook.planning.simulator import Run
from playbook.planning.terms import Term, total
from playbook.planning.weights import Weight
from playbook.shapes import ModelShape

#: Newton-Schulz iterations of an update.
STEPS = 5


def check(config: Any) -> None:
    """Raise ConfigError where a `TrainConfig` asks for Muon with what goes without it, or the other way round."""
    layout = config.layout
    if config.optimizer != "muon" and config.muon_lr is None:
        raise ConfigError(
            f"muon is {layout.muon}, but optimizer is adamw: leave it out, or say optimizer=muon"
        )
    if config.optimizer != "muon" or (config.muon_lr is not None and not config.lr):
        raise ConfigError(f"muon_lr is {config.muon_lr}, but needs optimizer=muon and an lr above 0")
    for field, usual in {"offload": False, "moments": "fp32"}.items():
        if (given := getattr(config, field)) != usual:
            raise ConfigError(f"{field} is {given}, but optimizer is muon, which goes without: leave one out")
    if layout.method or layout.find_unused:
        which = f"data_parallel={layout.data_parallel}" if layout.method else "find_unused"
        raise ConfigError(
            f"optimizer is muon, which needs the whole gradient of each matrix: leave {which} out"
        )


class Part(NamedTuple):
    """So many ``elements`` of a matrix, and the ranks that have them, by their places in the group."""

    elements: int
    holders: tuple[int, ...]


@dataclass(frozen=True)
class Matrix:
    """A matrix in ``parts``, or so many of them in a stack, of ``rows`` and ``columns`` when whole."""

    number: int
    rows: int
    columns: int
    parts: tuple[Part, ...]

    @property
    def flops(self) -> int:
        """Of its iterations: each multiplies X (m, n) by its transpose, that by itself, and X by a polynomial of it, with
        m the shorter side."""
        m, n = sorted((self.rows, self.columns))
        return self.number * STEPS * (4 * m * m * n + 2 * m**3)

    def makers(self, way: str, owner: int) -> tuple[int, ...]:
        """The ranks that compute its update."""
        return (
            tuple(sorted({rank for part in self.parts for rank in part.holders}))
            if way == "gather"
            else (owner,)
        )

    def there(self, makers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Which part goes from whom to whom, so that the makers have it whole."""
        for i, part in enumerate(self.parts):
            for maker in makers:
                if maker not in part.holders:
                    yield i, part.holders[maker % len(part.holders)], maker

    def back(self, makers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Which part of the update goes from whom to whom, so that all who have the part can make it."""
        for i, part in enumerate(self.parts):
            for holder in part.holders if len(makers) == 1 else ():
                if holder != makers[0]:
                    yield i, makers[0], holder


def rounds(matrices: Sequence[Matrix], ranks: int, way: str) -> list[list[tuple[int, int]]]:
    """Matrices and their owners, as many together as are under way at once: one, all, or one for each rank; the dearest
    first, like beside like, and to the last rank first in every other round."""
    order = sorted(range(len(matrices)), key=lambda i: -matrices[i].flops)
    owners = (i % ranks if i // ranks % 2 == 0 else ranks - 1 - i % ranks for i in range(len(order)))
    owned, each = (
        list(zip(order, owners, strict=True)),
        {"gather": 1, "owner": len(order) or 1}.get(way, ranks),
    )
    return [owned[i : i + each] for i in range(0, len(order), each)]


# ---- as a planner knows them


def _ranks(here: Sender, one: WeightSet) -> tuple[int, int, int]:
    """How many ranks share the shards of a set's matrices, or have the same ones; how many have other slices of them;
    and the place of this rank among all of these."""
    layout, expert = here.layout, one.units[0].weights[0].expert
    slices = 1 if expert and layout.etp else layout.tp
    same, place = one.shards if layout.zero else (1, 0) if layout.muon == "gather" else one.group
    return same, slices, place * slices + here.at["tp"] * (slices > 1)


def matrices(here: Sender, one: WeightSet) -> list[Matrix]:
    """The matrices of a set, in its order."""
    same, slices, _ = _ranks(here, one)
    stretches = dict[int, tuple[Weight, list[tuple[int, tuple[int, ...]]]]]()
    for bucket in one.buckets:
        for rank in range(same) if here.layout.zero else (0,):
            for segment in bucket.segments(rank):
                slot = segment.slot
                if slot.weight.matrix:
                    owners = (rank,) if here.layout.zero else tuple(range(same))
                    stretches.setdefault(id(slot), (slot.weight, []))[1].append((len(segment), owners))
    found = []
    for weight, parts in stretches.values():
        rows, columns = weight.matrix or (1, 1)
        down, along = weight.slices
        each = slices // (down * along)  # ranks of tp that have the same slice
        spread = [
            Part(n, tuple(r * slices + t for r in owners for t in range(i, i + each)))
            for n, owners in parts
            for i in range(0, slices, each)
        ]
        number = weight.elements // (rows * columns)
        found.append(Matrix(number, rows * down, columns * along, tuple(spread)))
    return found


def sent(here: Sender) -> Iterator[Message]:
    """What a rank sends for whole updates in a step: where one rank owns all at once, a message for each matrix and
    rank, else a collective there and one back."""
    way, size = here.layout.muon, here.recipe.compute
    for one in here.sets:
        same, slices, me = _ranks(here, one)
        ranks, found = same * slices, matrices(here, one)
        for together in rounds(found, ranks, way):
            there, back = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
            for i, owner in together:
                makers = found[i].makers(way, owner)
                for count, moves in ((there, found[i].there(makers)), (back, found[i].back(makers))):
                    for part, source, to in moves:
                        count[i if way == "owner" else 0, to] += found[i].parts[part].elements * (
                            source == me
                        )
            if way == "owner":
                for elements in filter(None, (*there.values(), *back.values())):
                    yield message_in("muon", "send", elements, size, (ranks, me), "parameters")
                continue
            for count in (there, back) if way == "all-to-all" else (there,):
                there_bytes = sum(count.values()) * size
                yield Message("muon", "all_to_all", there_bytes, 1, "parameters", there_bytes, ranks)


def states(job: Job, rank: int) -> int:
    """Bytes of moments and masters that the fullest replica keeps of a ``rank`` of the pipeline: of a matrix there is one
    moment, of all else two."""
    each = job.layout.world_size // job.layout.pp
    ranks = [Sender(job, i) for i in range(rank * each, (rank + 1) * each)]
    sets, zero = ranks[0].sets, job.layout.zero
    sizes = [
        [_kept(one, shard, job.recipe.states) for shard in range(one.shards[0] if zero else 1)]
        for one in sets
    ]

    def place(here: Sender, one: WeightSet) -> int:
        return here.sharing(here.layout.ep if one.units[0].weights[0].expert else 1)[1][1] if zero else 0

    return max(sum(some[place(here, one)] for some, one in zip(sizes, sets, strict=True)) for here in ranks)


def _kept(one: WeightSet, shard: int, each: BytesPerParameter) -> int:
    segments = (segment for bucket in one.buckets for segment in bucket.segments(shard))
    return sum(
        len(s) * (each.master + each.optimizer // (2 if s.slot.weight.matrix else 1)) for s in segments
    )


# ---- as an estimate: the matrices of a rank's blocks, whatever shards cut of them


def _whole(shape: ModelShape, kind: Kind, ep: int) -> list[tuple[bool, int, int, int]]:
    """Those of a block, whole: whether they are experts, how many, rows and columns."""
    values = symbols(shape, 1, ep)
    rows = (row for row in weighty(shape, kind) if isinstance(row, Linear) and row.part != "router")
    return [
        (
            row.part == "experts",
            evaluate(row.number, values),
            evaluate(row.rows, values),
            evaluate(row.columns, values),
        )
        for row in rows
        if learns(shape, row)
    ]


def _spread(layout: Layout, apart: bool) -> tuple[int, int]:
    """How many ranks share the shards of a matrix or have the same one, of experts ``apart`` or of all else; and how many
    have other slices of it."""
    replicas = layout.dp * layout.cp * layout.apart // layout.ep if apart else layout.dp * layout.cp
    slices = 1 if apart and layout.etp else layout.tp
    return replicas // layout.replicate if layout.zero else replicas, slices


def working(run: RunSizes, stage: Weights) -> tuple[Term, ...]:
    """What AdamW works with, or the updates of matrices that are under way at once, about: own parts and those that come,
    matrices whole, the iterations of one of them; before products in 16 bits also the moment and the gradient in fp32."""
    c, counts, layout, shape = run.recipe.compute, stage.counts, run.layout, run.shape
    every = [(n, *row) for kind, n in stage.blocks.items() for row in _whole(shape, kind, layout.ep)]
    most, elements = 0.0, 0.0
    for apart in (False, True):
        some = [
            (n, k * rows * columns, k * min(rows, columns) ** 2)
            for n, e, k, rows, columns in every
            if e is apart
        ]
        same, slices = _spread(layout, apart)
        ranks, all_ = same * slices, sum(n * size for n, size, _ in some)
        elements += all_ / slices * counts.shard / max(1, counts.learning)
        largest, square = max((each[1:] for each in some), default=(0, 0))
        found = (4.0 + (ranks > 1)) * largest + 2 * square
        if ranks > 1 and layout.muon != "gather":
            together = all_ if layout.muon == "owner" else min(all_, ranks * largest)
            parts = together / (ranks if layout.zero == 3 else slices)
            parts = min(parts, all_ / ranks) if layout.zero else parts
            made = max(largest, together / ranks)
            found = (
                2 * parts + 3 * made + max(2 * largest + 2 * square, made * (1 if layout.zero else same - 1))
            )
        most = max(most, c * found, (8 + c) * largest * (c < FP32))
    whole = Term("optimizer", "matrices made orthogonal", "parts, whole ones, iterations", round(most))
    rest = max(0, round(counts.shard - elements))
    wide = [
        Term(
            "optimizer",
            "gradients of a chunk (fp32)",
            "4 per weight",
            4 * min(rest, max(CHUNK, counts.table)),
        )
    ]
    adam = wide if run.recipe.states.master else []
    if run.job.device == "cpu":
        table = counts.table * bool({"embedding", "head"} & shape.trained)
        adam.append(Term("optimizer", "square root of the second moment", "8 per weight", 8 * table))
    return max((whole,), tuple(adam), key=total)


def seconds(run: Run, held: Held) -> float:
    """Seconds that whole updates take beyond those of elements: products of the matrices that a rank makes, and what
    ranks send for them, one after the other."""
    layout, size, found = run.layout, run.recipe.compute, 0.0
    everywhere, share = layout.muon == "gather", held.layers / run.shape.layers
    for apart in (False, True):
        blocks = run.shape.blocks().items()
        some = [
            (n, row[1:])
            for kind, n in blocks
            for row in _whole(run.shape, kind, layout.ep)
            if row[0] is apart
        ]
        same, slices = _spread(layout, apart)
        ranks = same * slices
        for n, (number, rows, columns) in some:
            m, k = sorted((rows, columns))
            products = (m, m, k), (m, m, m), (m, k, m)
            each = sum(run.device.seconds(Operation("", "product", *mnk, batch=number)) for mnk in products)
            found += STEPS * each * n * share / (1 if everywhere else ranks)
        elements = sum(n * number * rows * columns for n, (number, rows, columns) in some) * share
        if ranks == 1 or not elements:
            continue
        axis, whole = ("edp" if apart else "tp"), elements * size
        if everywhere:
            found += run.links.collective("all_gather", whole, ranks if layout.zero else slices, axis)
            continue
        count = max(1.0, sum(n * share for n, _ in some) / ranks)
        if layout.muon == "owner":  # there and back a message for each matrix and rank
            found += 2 * run.calibration.collective * count * (ranks - 1)
        for payload in (whole / ranks, whole / (ranks if layout.zero else slices)):
            found += count * run.links.collective("all_to_all", payload / count, ranks, axis)
    return found
