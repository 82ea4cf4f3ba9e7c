"""One rank of a run: where it stands in the mesh, with whom it talks, what it keeps, what it sends, and how far.

Ranks are numbered as Megatron-LM numbers them by default, tensor parallelism fastest (Narayanan et al. 2021, arXiv
2104.04473, section 3: it belongs inside a node); nodes hold them in order. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from playbook._checks import check_int
from playbook.errors import LayoutError
from playbook.layout import AXES, Layout
from playbook.layout.stages import split
from playbook.planning.expert_traffic import Routing
from playbook.planning.job import Job
from playbook.planning.memory import StageMemory, predict_stages
from playbook.planning.messages import Message, Sender
from playbook.planning.recipes import Recipe
from playbook.planning.traffic import hops, sent
from playbook.shapes import ModelShape

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sends in a step along one axis: ``within`` its node, and ``across`` to other nodes."""

    within: int
    across: int

    @property
    def total(self) -> int:
        return self.within + self.across


@dataclass(frozen=True)
class RankView:
    """One rank of a layout.

    ``coordinates`` are its indices on the axes of ``layout.AXES``. ``groups`` are the ranks it forms a process group
    with, itself included, wherever there is more than one: for each axis, for ``ep`` (together they have all experts of a
    block), ``edp`` (copies of the same experts) and, where they are not those of dp alone, ``replicas`` (copies of all
    other weights: dp × cp and, in a pipeline that runs both ways, the mirrored ranks as well); with hybrid sharding
    ``shard`` (together they have all that ZeRO shards) and ``replicate`` (the same shards). ``neighbours`` are the
    ranks to which it sends activations and their gradients. It has ``stages`` of the pipeline with these ``blocks``
    (layers) and, of each block with experts, ``experts``. ``memory`` is in bytes, ``sent`` by axis, in bytes a step.
    """

    rank: int
    node: int
    coordinates: dict[str, int]
    groups: dict[str, Ranks]
    neighbours: Ranks
    stages: Ranks
    blocks: tuple[range, ...]
    experts: range
    memory: StageMemory
    sent: dict[str, Sent]

    @property
    def parameters(self) -> int:
        """Parameters that the rank computes with; ZeRO-3 keeps a shard of them."""
        return self.memory.counts.local

    def to_json(self) -> dict[str, Any]:
        """The object of ``playbook mesh --rank --json``."""
        counts = self.memory.counts
        return {
            "rank": self.rank,
            "node": self.node,
            "coordinates": self.coordinates,
            "groups": {name: list(group) for name, group in self.groups.items()},
            "neighbours": list(self.neighbours),
            "stages": list(self.stages),
            "blocks": [list(blocks) for blocks in self.blocks],
            "experts": list(self.experts),
            "parameters": self.parameters,
            "parts": {part.name: part.value for part in counts.parts},
            "updates": counts.shard,
            "memory": self.memory.to_json(),
            "sent": {axis: asdict(sent) for axis, sent in self.sent.items()},
        }


def rank_view(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    *,
    rank: int,
    recipe: str | Recipe = "bf16-mixed",
    ranks_per_node: int = 8,
    routing: Routing | None = None,
) -> RankView:
    """``rank`` of ``layout`` in training ``shape`` on samples of ``seq`` tokens, with ``ranks_per_node`` ranks in a node.

    ``sent`` sums the messages of ``traffic.traffic`` by axis and by level. Ranks fill nodes in order. What goes around a
    ring counts where its next rank is, a pipeline's message where its receiver is, and of an all-to-all each of the other
    ranks gets an equal part. The few bytes of ``world``, single numbers that several axes settle together, count as in a
    ring of all ranks. ``routing`` is what ``traffic`` takes; without it the load of experts is even. Raises LayoutError,
    ShapeError or ConfigError, in one sentence, for what cannot run.
    """
    check_int("ranks_per_node", ranks_per_node, LayoutError)
    at = layout.coordinates(rank)
    job = Job(shape, layout, seq=seq, recipe=recipe)  # type: ignore[arg-type]
    stages_of_ranks, here = list(predict_stages(job)), Sender(job, rank)
    groups = groups_of(layout, rank, mirrored=here.mirrored)
    cut = split(shape.layers, here.depth, layout.stage_layers)
    stages = tuple(sorted(here.passes))
    blocks = tuple(cut[stage] for stage in stages)
    return RankView(
        rank,
        rank // ranks_per_node,
        at,
        {name: group for name, group in groups.items() if len(group) > 1},
        tuple(sorted(set(_receivers(here)))),
        stages,
        blocks,
        _experts(shape, layout, groups["ep"].index(rank))
        if any(kind.experts for kind in shape.blocks(blocks))
        else range(0),
        stages_of_ranks[at["pp"]],
        _by_level(here, groups, ranks_per_node, routing),
    )


def groups_of(layout: Layout, rank: int, *, mirrored: bool = False) -> dict[str, Ranks]:
    """Those of ``Layout.groups`` (``Layout.mirrored``) that ``rank`` is in, by `RankView`'s names, without making all."""
    at = layout.coordinates(rank)
    found = {axis: _along(layout, at, axis) for axis in AXES}
    same, place, ep = _along(layout, at, "dp", "cp"), at["cp"] + layout.cp * at["dp"], layout.ep
    routed = _along(layout, at, "dp", "cp", *["tp"] * layout.etp)
    which = place * layout.apart + at["tp"] * layout.etp
    found["ep"] = routed[which // ep * ep :][:ep]
    copies = {"edp": routed[which % ep :: ep] if ep > 1 else (), "replicas": same}
    if layout.replicate > 1:
        start = place // layout.shards * layout.shards
        copies["shard"] = same[start : start + layout.shards]
        found["replicate"] = same[place - start :: layout.shards]
    if mirrored:
        there = layout.rank(**{**at, "pp": layout.pp - 1 - at["pp"]}) - rank
        copies = {name: tuple(sorted({*g, *(r + there for r in g)})) for name, g in copies.items()}
    if copies["replicas"] == found["dp"]:
        del copies["replicas"]
    return {**found, **copies}


def _along(layout: Layout, at: dict[str, int], *axes: str) -> Ranks:
    """The ranks that differ from the one ``at`` these coordinates along ``axes`` (the slowest first) alone, in order."""
    places = product(*(range(getattr(layout, axis)) for axis in axes))
    return tuple(layout.rank(**{**at, **dict(zip(axes, place, strict=True))}) for place in places)


def _experts(shape: ModelShape, layout: Layout, index: int) -> range:
    each = shape.moe.experts // layout.ep if shape.moe else 0
    return range(index * each, (index + 1) * each)


def _receivers(here: Sender) -> list[int]:
    """The rank to which each of this one's ``hops`` goes."""
    return [here.layout.rank(**{**here.at, "pp": peer}) for _, _, peer, _ in hops(here)]


def _by_level(
    here: Sender, groups: dict[str, Ranks], ranks_per_node: int, routing: Routing | None
) -> dict[str, Sent]:
    """Bytes of a step, by axis."""
    messages = sent(here, routing=routing)
    found: dict[str, Sent] = {}
    for message, receivers in _received(here, messages, groups):
        near = sum(r // ranks_per_node == here.rank // ranks_per_node for r in receivers)
        within, before = message.total * near // len(receivers), found.get(message.axis, Sent(0, 0))
        found[message.axis] = Sent(before.within + within, before.across + message.total - within)
    return {axis: found[axis] for axis in (*AXES, "replicate", "ep", "world") if axis in found}


def _received(
    here: Sender, messages: Iterable[Message], groups: dict[str, Ranks]
) -> Iterator[tuple[Message, Ranks]]:
    """Each message with the ranks that get equal parts of it."""
    onward, known = iter(_receivers(here)), _known(here, groups)
    for message in messages:
        if (message.axis, message.collective) == ("pp", "send"):
            yield message, (next(onward),)
            continue
        if message.axis in known:
            group = next((g for g in known[message.axis] if len(g) == message.ranks), known["world"][-1])
        else:
            group = _part(groups[message.axis], here.rank, message)
        place = group.index(here.rank)
        others = group[place + 1 :] + group[:place]
        yield message, others if message.collective == "all_to_all" else others[:1]


def _known(here: Sender, groups: dict[str, Ranks]) -> dict[str, list[Ranks]]:
    """Groups that are told apart by how many ranks they have, by the axis that their messages count for."""
    pp, samples = groups["pp"], _along(here.layout, here.at, "dp", "cp")
    whole = groups.get("replicas", groups["dp"])
    shard = groups.get("shard", whole)
    dps = {here.layout.coordinates(rank)["dp"] for rank in shard}
    experts = tuple(rank for rank in groups["edp"] if here.layout.coordinates(rank)["dp"] in dps)
    ends = sorted((here.where[0][0], here.where[0][-1]))
    return {
        "dp": [shard, experts, whole, samples, groups["dp"]],
        "replicate": [groups.get("replicate", ())],
        "pp": [pp, tuple(pp[end] for end in ends)],  # all, or two with a tied table
        "world": [samples, tuple(range(here.layout.world_size))],
    }


def _part(line: Ranks, rank: int, message: Message) -> Ranks:
    """Of an axis the ranks of a message: all, neighbours, or ranks that are so many places apart."""
    span, index = message.ranks * message.apart, line.index(rank)
    start = index // span * span + index % message.apart
    return line[start : start + span : message.apart]
