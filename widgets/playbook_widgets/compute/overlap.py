"""The overlap widget: one pure function from a layout on a cluster to what hides behind what.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``: ``{"model": "llama3-70b", "tp": 8}``. The ratios are ``playbook_book.overlap_ratios``'s;
here they stand side by side, and words say what would bring each below 1. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ConfigError
from playbook.hardware import CLUSTERS, Cluster
from playbook.layout import Layout
from playbook.planning.rank_view import groups_of
from playbook.shapes import PRESETS, ModelShape
from playbook_book.overlap_ratios import (
    Overlap,
    across_nodes,
    context,
    data_parallel,
    expert,
    group_bandwidth,
    pipeline,
    tensor,
    zero3,
)
from playbook_widgets.compute.refusals import answered

#: What a control shows when nothing is set.
DEFAULTS: dict[str, Any] = {
    "model": "llama3-70b",
    "cluster": "h100-8",
    "tokens": 8192,  # of a micro-batch, on each GPU
    "reached": 50,  # FLOP/s that products reach, in percent of the peak
    "tp": 8,
    "cp": 1,
    "dp": 8,
    "pp": 4,
    "ep": 1,
    "two_step": False,
}
#: The least and the most of each number.
LIMITS = {
    "tokens": (64, 2**20),
    "reached": (1, 100),
    "tp": (1, 64),
    "cp": (1, 64),
    "dp": (1, 4096),
    "pp": (1, 64),
    "ep": (1, 512),
}
#: Name, axis, and whether more tokens on a GPU bring the ratio down.
TECHNIQUES = {
    "DP": ("dp", True),
    "ZeRO-3": ("dp", True),
    "TP": ("tp", False),
    "CP": ("cp", True),
    "PP": ("pp", False),
    "EP": ("ep", False),
}


@dataclass(frozen=True)
class OverlapSetting:
    """What a flat mapping of controls comes to; ``reached`` are FLOP/s."""

    shape: ModelShape
    cluster: Cluster
    layout: Layout
    tokens: int
    reached: float
    two_step: bool

    @property
    def seq(self) -> int:
        """Tokens of a sample, of which a micro-batch has one."""
        return self.tokens * self.layout.cp

    @property
    def node(self) -> int:
        """Ranks of an expert-parallel group in each node."""
        return sum(rank < self.cluster.gpus_per_node for rank in groups_of(self.layout, 0)["ep"])

    def ratios(self, name: str) -> dict[str, float]:
        """Sending over computing, by pass."""
        phases = ("backward",) if name == "DP" else ("forward", "backward")
        return {
            phase: sum(
                one.ratio(peak_flops=self.reached, bandwidth=self.speed(axis))
                for axis, one in self._sent(name, phase == "backward")
            )
            for phase in phases
        }

    def _sent(self, name: str, backward: bool) -> Iterator[tuple[str, Overlap]]:
        """What a technique sends in a pass, and along which axis."""
        run = (self.shape, self.layout, self.seq)
        if name == "DP":  # experts' gradients go to other ranks than the rest
            yield "dp", data_parallel(*run, experts=False)
            yield "edp", data_parallel(*run, experts=True)
        elif name == "ZeRO-3":
            yield "dp", zero3(*run, backward=backward, experts=False)
            yield "edp", zero3(*run, backward=backward, experts=True)
        elif name == "EP":  # rows inside a node go over NVLink, beside those that leave it
            node = self.node if self.node < self.layout.ep else None
            two_step = self.two_step and node is not None
            yield "ep", expert(*run, backward=backward, node=node, two_step=two_step)
        else:
            technique = {"TP": tensor, "CP": context, "PP": pipeline}[name]
            yield name.lower(), technique(*run, backward=backward)

    def speed(self, axis: str) -> float:
        return group_bandwidth(self.cluster, self.layout, axis)


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


def read(inputs: Mapping[str, Any]) -> OverlapSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the overlap widget")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    for name, known in (("model", PRESETS), ("cluster", CLUSTERS)):
        if str(values[name]) not in known:
            raise ConfigError(unknown(name, str(values[name]), known))
    if not isinstance(values["two_step"], bool):
        raise ConfigError(f"two_step must be true or false, got {values['two_step']!r}")
    for name, (least, most) in LIMITS.items():
        values[name] = typed_int(name, values[name], ConfigError, least=least, most=most)
    shape, cluster = PRESETS[str(values["model"])], CLUSTERS[str(values["cluster"])]
    layout = Layout(**{axis: values[axis] for axis in ("tp", "cp", "dp", "pp", "ep")}, sp=values["tp"] > 1)
    layout.check(shape)
    speed = cluster.accelerator.peak("bf16") * values["reached"] / 100
    setting = OverlapSetting(shape, cluster, layout, values["tokens"], speed, values["two_step"])
    if layout.ep % setting.node:
        raise ConfigError(f"ep must be a multiple of its {setting.node} ranks in a node, got {layout.ep}")
    return setting


# --- What the page draws


def describe(setting: OverlapSetting) -> dict[str, Any]:
    """All that the page shows: a row for each technique, and what all of them come to."""
    rows = [_row(setting, name) for name in TECHNIQUES]
    layout, cluster = setting.layout, setting.cluster
    balance = {name: setting.reached / speed for name, speed in _links(cluster).items()}
    return {
        "values": _values(setting),
        "gpus": layout.world_size,
        "balance": balance,
        "rows": rows,
        "machine": (
            f"{layout.world_size:,} GPUs, {cluster.gpus_per_node} in a node. While a GPU sends one byte it computes "
            f"{balance['NVLink']:,.0f} FLOPs (NVLink) or {balance['network']:,.0f} (network). Gradients travel in "
            "FP32, as Megatron-LM and torchtitan add them up by default, weights and activations in BF16."
        ),
        "answer": _answer(rows),
    }


def _values(setting: OverlapSetting) -> dict[str, Any]:
    layout, peak = setting.layout, setting.cluster.accelerator.peak("bf16")
    return {
        "model": setting.shape.name,
        "cluster": setting.cluster.name,
        "tokens": setting.tokens,
        "reached": round(100 * setting.reached / peak),
        **{axis: getattr(layout, axis) for axis in ("tp", "cp", "dp", "pp", "ep")},
        "two_step": setting.two_step,
    }


def _links(cluster: Cluster) -> dict[str, float]:
    return {"NVLink": cluster.intra_bandwidth, "network": cluster.inter_bandwidth}


def _row(setting: OverlapSetting, name: str) -> dict[str, Any]:
    """A technique in the pass in which it hides worse."""
    axis, _ = TECHNIQUES[name]
    if not _used(setting, name):
        return {
            "name": name,
            "axis": axis,
            "ratio": None,
            "phase": "",
            "link": "",
            "text": _unused(setting, name),
        }
    found = setting.ratios(name)
    phase = max(found, key=lambda phase: found[phase])
    inside = not across_nodes(setting.cluster, setting.layout, axis)
    return {
        "name": name,
        "axis": axis,
        "ratio": found[phase],
        "phase": phase,
        "link": f"{'NVLink' if inside else 'network'}, {' and '.join(_speeds(setting, axis))} GB/s",
        "text": _words(setting, name, found[phase], inside),
    }


def _speeds(setting: OverlapSetting, axis: str) -> list[str]:
    """GB/s of the links that a technique uses: experts' copies may be further apart than those of other weights."""
    layout = setting.layout
    axes = (axis, "edp") if axis == "dp" and 1 < layout.ep < layout.dp * layout.cp else (axis,)
    return list(dict.fromkeys(f"{setting.speed(each) / 1e9:,.0f}" for each in axes))


def _used(setting: OverlapSetting, name: str) -> bool:
    layout = setting.layout
    if name in ("DP", "ZeRO-3"):
        return layout.dp * layout.cp > 1
    return int(getattr(layout, TECHNIQUES[name][0])) > 1


def _unused(setting: OverlapSetting, name: str) -> str:
    if name == "EP" and not setting.shape.moe:
        return "this model has no experts"
    return f"not used: {TECHNIQUES[name][0]} = 1"


# --- What would bring a ratio below 1, or how far it stays there


def _words(setting: OverlapSetting, name: str, ratio: float, inside: bool) -> str:
    if TECHNIQUES[name][1]:
        return _tokens(setting, name, ratio)
    return {"TP": _tensor, "PP": _pipeline, "EP": _expert}[name](setting, ratio, inside)


def _tokens(setting: OverlapSetting, name: str, ratio: float) -> str:
    """Techniques whose ratio falls as tokens grow."""
    least = f"{setting.tokens * ratio:,.0f} tokens on each GPU"
    if ratio <= 1:
        return f"hidden, down to {least}"
    why = {
        "DP": "accumulation does not help: the last backward pass alone hides it",
        "ZeRO-3": "accumulation does not help: every micro-batch gathers again",
        "CP": "longer samples, or fewer ranks for each",
    }[name]
    return f"needs {least}; {why}"


def _tensor(setting: OverlapSetting, ratio: float, inside: bool) -> str:
    tp, node = setting.layout.tp, setting.cluster.gpus_per_node
    most = 1 + int((tp - 1) / ratio)
    if ratio <= 1:
        return f"hidden, if products are cut into chunks, up to tp = {min(most, node) if inside else most}"
    if not inside:
        return f"keep tp within a node of {node}; more tokens do not help"
    fewer = f"tp = {most} or less" if most > 1 else "tp = 1"
    return f"needs {fewer}, or a model {ratio:.1f} times as wide; more tokens do not help"


def _pipeline(setting: OverlapSetting, ratio: float, inside: bool) -> str:
    layers = setting.shape.layers / setting.layout.stages
    if ratio <= 1:
        return f"hidden, down to {max(1, math.ceil(layers * ratio))} layers in a stage".replace(
            "1 layers", "1 layer"
        )
    return f"needs {layers * ratio:.1f} layers in each stage, not {layers:.1f}; more tokens do not help"


def _expert(setting: OverlapSetting, ratio: float, inside: bool) -> str:
    width = setting.shape.moe.ffn if setting.shape.moe else 0
    if ratio <= 1:
        return f"hidden, if other rows are computed meanwhile, down to experts {width * ratio:,.0f} wide"
    first = "" if setting.two_step or inside else ", or one row for each node (two steps)"
    return f"needs experts {width * ratio:,.0f} wide, not {width:,}{first}; more tokens do not help"


def _answer(rows: list[dict[str, Any]]) -> str:
    used = [row for row in rows if row["ratio"] is not None]
    over = [row["name"] for row in used if row["ratio"] > 1]
    if not used:
        return "One GPU, or copies of nothing: there is nothing to send."
    if not over:
        return "Each of them can be hidden, taken by itself; together they share links and multiprocessors."
    helped = [name for name in over if TECHNIQUES[name][1]]
    rest = [name for name in over if not TECHNIQUES[name][1]]
    said = [f"{_list(helped)}, which more tokens on each GPU would hide"] if helped else []
    said += [f"{_list(rest)}, which no number of tokens hides"] if rest else []
    return f"Exposed: {'; '.join(said)}."


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
