"""The mesh explorer: one pure function from a layout and a rank to that rank's groups, what it holds and sends.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``: ``{"model": "llama3-8b", "tp": 8, "rank": 5}``. All of it is
``planning.rank_view``'s; here it is put into words and into the order in which a page draws it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ConfigError
from playbook.figures.units import format_count, format_size
from playbook.layout import AXES, Layout
from playbook.planning.rank_view import RankView, rank_view
from playbook.shapes import PRESETS, ModelShape
from playbook_widgets.compute.refusals import answered

#: What a control shows when nothing is set: two nodes, and every axis that a dense model has.
DEFAULTS: dict[str, Any] = {
    "model": "llama3-8b",
    "dp": 2,
    "tp": 2,
    "cp": 2,
    "pp": 2,
    "ep": 1,
    "etp": 0,
    "sp": False,
    "zero": 1,
    "replicate": 1,
    "micro_batch": 1,
    "grad_acc": 4,
    "seq": 8192,
    "per_node": 8,
    "rank": 5,
    "point": None,  # a rank that a pointer is on, for as long as it is
}
#: The least and the most of each number.
LIMITS = {
    "dp": (1, 4096),
    "tp": (1, 64),
    "cp": (1, 64),
    "pp": (1, 64),
    "ep": (1, 512),
    "etp": (0, 1),
    "zero": (0, 3),
    "replicate": (1, 512),
    "micro_batch": (1, 64),
    "grad_acc": (1, 512),
    "seq": (1, 2**20),
    "per_node": (1, 72),
}
MOST_RANKS = 16384
#: Fields of ``Layout`` that are controls.
LAYOUT = ("dp", "tp", "cp", "pp", "ep", "etp", "sp", "zero", "replicate", "micro_batch", "grad_acc")
#: Of each group of ranks: the letter that marks it, the axis whose colour it has, and what its ranks have in common.
GROUPS = {
    "tp": ("T", "tp", "share every matrix"),
    "cp": ("C", "cp", "share the tokens of each sample"),
    "dp": ("D", "dp", "same part of the model, other samples"),
    "pp": ("P", "pp", "the other layers"),
    "ep": ("E", "ep", "share the experts of each block"),
    "edp": ("X", "ep", "copies of the same experts"),
    "replicas": ("R", "dp", "dp × cp: copies of the same weights, experts aside"),
    "shard": ("S", "dp", "together all that ZeRO shards"),
    "replicate": ("Y", "dp", "copies of the same shards"),
}


@dataclass(frozen=True)
class MeshSetting:
    """What a flat mapping of controls comes to."""

    shape: ModelShape
    layout: Layout
    seq: int
    per_node: int
    rank: int
    point: int | None

    @property
    def shown(self) -> int:
        """The rank that is looked at."""
        return self.rank if self.point is None else self.point


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


def read(inputs: Mapping[str, Any]) -> MeshSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the mesh explorer")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    if str(values["model"]) not in PRESETS:
        raise ConfigError(unknown("model", str(values["model"]), PRESETS))
    if not isinstance(values["sp"], bool):
        raise ConfigError(f"sp must be true or false, got {values['sp']!r}")
    for name, (least, most) in LIMITS.items():
        values[name] = typed_int(name, values[name], ConfigError, least=least, most=most)
    layout = Layout(**{name: values[name] for name in LAYOUT})
    if layout.world_size > MOST_RANKS:
        raise ConfigError(
            f"dp * cp * tp * pp must be at most {MOST_RANKS} ranks here, got {layout.world_size}"
        )
    rank = typed_int("rank", values["rank"], ConfigError, least=0)
    layout.coordinates(rank)
    point = values["point"]
    if point is not None:
        layout.coordinates(point)
    return MeshSetting(PRESETS[str(values["model"])], layout, values["seq"], values["per_node"], rank, point)


# --- What the page draws


def describe(setting: MeshSetting) -> dict[str, Any]:
    """All that the page shows of a setting; sizes are bytes of one rank in a step."""
    layout, per_node = setting.layout, setting.per_node
    view = rank_view(setting.shape, layout, setting.seq, rank=setting.shown, ranks_per_node=per_node)
    return {
        "values": _values(setting),
        "ranks": layout.world_size,
        "nodes": -(-layout.world_size // per_node),
        "rank": view.rank,
        "node": view.node,
        "coordinates": {axis: view.coordinates[axis] for axis in AXES},
        "groups": [_group(setting, view, name) for name in GROUPS if name in view.groups],
        "neighbours": list(view.neighbours),
        "holds": list(_holds(setting, view)),
        "memory": _memory(view),
        "sent": [
            {"axis": axis, "within": sent.within, "across": sent.across} for axis, sent in view.sent.items()
        ],
        "answer": _answer(view),
        "command": command(setting),
    }


def _values(setting: MeshSetting) -> dict[str, Any]:
    layout = setting.layout
    own = {
        "model": setting.shape.name,
        "seq": setting.seq,
        "per_node": setting.per_node,
        "rank": setting.rank,
    }
    return {**{name: getattr(layout, name) for name in LAYOUT}, **own}


def _group(setting: MeshSetting, view: RankView, name: str) -> dict[str, Any]:
    ranks, (letter, axis, common) = view.groups[name], GROUPS[name]
    nodes = len({rank // setting.per_node for rank in ranks})
    return {
        "name": name,
        "letter": letter,
        "axis": axis,
        "common": common,
        "ranks": list(ranks),
        "place": ranks.index(view.rank),
        "nodes": nodes,
    }


def _holds(setting: MeshSetting, view: RankView) -> Iterator[str]:
    """What the rank has of the model, a line each."""
    shape, last = setting.shape, setting.layout.stages - 1
    for stage, blocks in zip(view.stages, view.blocks, strict=True):
        ends = [name for name, here in (("the embedding", stage == 0), ("the head", stage == last)) if here]
        what = ", ".join([*([f"{_run('block', blocks)}"] if blocks else []), *ends])
        yield f"stage {stage} of {last + 1}: {what}"
    if view.experts and shape.moe:
        yield f"{_run('expert', view.experts)} of {shape.moe.experts} in each block that has them"
    updates = view.memory.counts.shard
    yield f"{format_count(view.parameters)} of the model's {format_count(shape.num_parameters)} parameters"
    if updates != view.parameters:
        yield f"optimizer states of {format_count(updates)}: the optimizer is sharded"


def _run(what: str, numbers: range) -> str:
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    return f"{what}s {numbers[0]} to {numbers[-1]}"


def _memory(view: RankView) -> dict[str, int]:
    """Bytes that it keeps between steps."""
    names = ("parameters", "gradients", "optimizer")
    return {name: getattr(view.memory, name) for name in names}


def _answer(view: RankView) -> str:
    """What goes where, in a sentence."""
    sent = {axis: sent for axis, sent in view.sent.items() if axis != "world"}
    if not sent:
        return "There is one rank: it sends nothing."
    within = sum(one.within for one in sent.values())
    across = sum(one.across for one in sent.values())
    most = max(sent, key=lambda axis: sent[axis].total)
    leaving = [axis for axis, one in sent.items() if one.across]
    leaves = f"of which {format_size(across)} leaves its node ({', '.join(leaving)})"
    return (
        f"In a step rank {view.rank} sends {format_size(within + across)}, {leaves if across else 'all in its node'}. "
        f"The largest part is {most}, {format_size(sent[most].total)}."
    )


def command(setting: MeshSetting) -> str:
    """The same on the command line."""
    layout = f"--layout {setting.layout} " if str(setting.layout) else ""
    nodes = f" --per-node {setting.per_node}" if setting.per_node != DEFAULTS["per_node"] else ""
    return f"playbook mesh --model {setting.shape.name} {layout}--seq {setting.seq} --rank {setting.shown}{nodes}"
