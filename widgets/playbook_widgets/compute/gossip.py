"""The gossip widget: one pure function from a topology and the values of its nodes to how they mix, step by step.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``: ``{"topology": "torus", "values": "10,0,0,5"}``. Mixing matrices and spectral gaps are
``decentralized.topology``'s, the bytes of a ring all-reduce ``compute.volumes``'. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from playbook._checks import typed_int
from playbook.decentralized.topology import (
    Mixing,
    Topology,
    mix,
    sends,
    topology,
)
from playbook.errors import ConfigError
from playbook.figures.units import format_size
from playbook_book.gaps import gap_in_theory, spectral_gap
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.volumes import busiest_rank_sends
from playbook_widgets.compute.zero_setting import read_count

#: What a control shows when nothing is set: a value of 10 at node 0, and none elsewhere; a billion parameters in bf16.
DEFAULTS: dict[str, Any] = {
    "topology": "ring",
    "nodes": 16,
    "values": "10",
    "parameters": 10**9,
    "itemsize": 2,
    "step": 0,
    "node": 0,  # the one whose neighbours are shown
}
NODES, MOST, ITEMSIZES = (2, 64), 100, (1, 2, 4)
TITLES = {
    "ring": "Ring",
    "grid": "Grid",
    "torus": "Torus",
    "star": "Star",
    "complete": "Complete graph",
    "hypercube": "Hypercube",
    "exponential": "Static exponential graph",
    "one-peer-exponential": "One-peer exponential graph",
    "matching": "Random matchings",
}
#: ε: the part of the disagreement that is left when nodes count as agreed.
EPSILON = 1e-3
#: Steps are shown until so little disagreement is left, but no more than these; they are counted further.
CLOSE, SHOWN, COUNTED = 1e-4, 200, 3000
#: Where the corners of a hypercube are drawn: a step for each bit, so that no node lies on another one's link.
CORNERS = ((1, 0), (0, 1), (0.5, 0.5), (-0.26, 0.24), (2.6, 0.2), (-0.2, 2.6))


@dataclass(frozen=True)
class GossipSetting:
    """What a flat mapping of controls comes to: ``values`` of all nodes, ``bytes`` of the vector that each one sends."""

    topology: str
    nodes: int
    values: tuple[float, ...]
    bytes: int


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(*read(inputs)))


def read(inputs: Mapping[str, Any]) -> tuple[GossipSetting, dict[str, Any]]:
    """The setting that a flat mapping means, and its numbers; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the gossip widget")
    given = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    nodes = typed_int("nodes", given["nodes"], ConfigError, least=NODES[0], most=NODES[1])
    _rate(str(given["topology"]), nodes)  # refuses what is none
    values = [_value(text) for text in str(given["values"]).split(",")]
    parameters, itemsize = (
        read_count(given["parameters"]),
        typed_int("itemsize", given["itemsize"], ConfigError),
    )
    if itemsize not in ITEMSIZES:
        raise ConfigError(f"itemsize must be one of {', '.join(map(str, ITEMSIZES))}, got {itemsize}")
    shown: dict[str, Any] = {
        "topology": str(given["topology"]),
        "nodes": nodes,
        "values": str(given["values"]),
        "parameters": parameters,
        "itemsize": itemsize,
        "node": typed_int("node", given["node"], ConfigError, least=0, most=NODES[1] - 1),
        "step": typed_int("step", given["step"], ConfigError, least=0),  # what is not there is the last
    }
    started = tuple((values + [0.0] * nodes)[:nodes])
    return GossipSetting(shown["topology"], nodes, started, parameters * itemsize), shown


def _value(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= MOST:
        raise ConfigError(f"values must be numbers from −{MOST} to {MOST}, got {text.strip()!r}")
    return value


# --- What happens


def mixed(graph: Topology, values: Sequence[float]) -> tuple[list[list[float]], list[float], int | None]:
    """Values after each step that is shown; the disagreement that is left of that at the start; steps until ε is.

    Disagreement is ‖x − x̄·1‖₂. At least one step is shown; steps are None where there are more than COUNTED.
    """
    mean = math.fsum(values) / len(values)
    first = math.dist(values, [mean] * len(values))
    now = list(values)
    shown, left, reached = [now], [1.0 if first else 0.0], None if first else 0
    for step in range(COUNTED):
        drawn = step > 0 and (step >= SHOWN or left[-1] <= CLOSE)
        if drawn and reached is not None:
            break
        now = mix(graph.at(step), now)
        part = math.dist(now, [mean] * len(now)) / first if first else 0.0
        if reached is None and part <= EPSILON:
            reached = step + 1
        if not drawn:
            shown.append(now)
            left.append(part)
    return shown, left, reached


@lru_cache(maxsize=32)
def _graph(name: str, nodes: int) -> Topology:
    return topology(name, nodes)


@lru_cache(maxsize=256)
def _rate(name: str, nodes: int) -> float:
    """By which factor a step shrinks the disagreement at least: ρ = 1 − spectral gap, for matrices in turn their mean.

    For matrices in turn it is the root of that of their product. A random matching halves pairs: WᵀW = W, so that on
    average over matchings ‖W·x‖² shrinks by the second eigenvalue of E[W] (Boyd et al. 2006, section III).
    """
    graph = _graph(name, nodes)
    if name == "matching":
        return math.sqrt((nodes - 2) / (2 * nodes - 2) if nodes % 2 == 0 else 1 / 2)
    gap = gap_in_theory(name, nodes)
    left = 1 - (spectral_gap(_product(graph.matrices)) if gap is None else gap)
    return left ** (1 / graph.period) if left > 1e-9 else 0.0


def _product(matrices: Iterable[Mixing]) -> Mixing:
    """The matrix of all steps, the first of them on the right."""
    done: list[dict[int, float]] = []
    for mixing in matrices:
        rows: list[dict[int, float]] = []
        for i, row in enumerate(mixing):
            rows.append({})
            for j, weight in row:
                for k, before in (done[j] if done else {j: 1.0}).items():
                    rows[i][k] = rows[i].get(k, 0.0) + weight * before
        done = rows
    return tuple(tuple(sorted(row.items())) for row in done)


def promised(name: str, nodes: int) -> int:
    """Steps after which ε is left at most, whatever the values (of matchings: on average)."""
    rate, period = _rate(name, nodes), 1 if name == "matching" else _graph(name, nodes).period
    return (
        period * max(1, math.ceil(math.log(EPSILON) / (period * math.log(rate)) - 1e-9)) if rate else period
    )


def places(name: str, nodes: int) -> list[tuple[float, float]]:
    """Where nodes are drawn, in any unit: on a circle, but for grids, hypercubes, and the hub of a star."""
    if name in ("grid", "torus"):
        width = nodes // max(r for r in range(1, math.isqrt(nodes) + 1) if nodes % r == 0)
        return [(float(i % width), float(i // width)) for i in range(nodes)]
    if name == "hypercube":
        bits = [[corner for k, corner in enumerate(CORNERS) if i >> k & 1] for i in range(nodes)]
        return [(math.fsum(x for x, _ in own), math.fsum(y for _, y in own)) for own in bits]
    hubs = int(name == "star")
    angles = [2 * math.pi * i / (nodes - hubs) for i in range(nodes - hubs)]
    return [(0.0, 0.0)] * hubs + [(math.sin(angle), -math.cos(angle)) for angle in angles]


# --- What is said of it


def describe(setting: GossipSetting, values: Mapping[str, Any]) -> dict[str, Any]:
    """All that the page shows: values step by step, the disagreement beside its bound, links, and what they come to."""
    graph, rate = _graph(setting.topology, setting.nodes), _rate(setting.topology, setting.nodes)
    shown, left, reached = mixed(graph, setting.values)
    steps = len(shown) - 1
    return {
        "values": dict(values),
        "places": [[round(x, 4), round(y, 4)] for x, y in places(setting.topology, setting.nodes)],
        "mixing": [
            [[[j, float(f"{weight:.4g}")] for j, weight in row] for row in graph.at(step)]
            for step in range(min(steps, graph.period))
        ],
        "frames": [[float(f"{x:.6g}") for x in frame] for frame in shown],
        "mean": math.fsum(setting.values) / setting.nodes,
        "left": left,
        "rate": rate,
        "epsilon": EPSILON,
        "reached": reached,
        "answer": _answer(setting, rate, reached),
        "machine": _machine(setting, graph, reached),
        "facts": _facts(setting, graph, rate, reached),
    }


def _answer(setting: GossipSetting, rate: float, reached: int | None) -> str:
    name, nodes = setting.topology, setting.nodes
    said = f"{TITLES[name]}, {nodes} nodes. "
    steps = promised(name, nodes)
    if not rate:
        many = "one step" if steps == 1 else f"log₂ {nodes} = {steps} steps"
        return f"{said}After {many} every node holds the average exactly, whatever the values."
    average = "on average" if name == "matching" else "at most"
    said += f"A step leaves {average} {_percent(rate)} of the disagreement"
    if name == "one-peer-exponential":
        said += ", as a mean of those in turn: the average is exact only for powers of two"
    measured = f"after {_steps(reached)}" if reached is not None else f"not within {COUNTED:,} steps"
    about = "about" if name == "matching" else "at most"
    return f"{said}. With these values {EPSILON:.1%} is left {measured}; the spectral gap says {about} {_steps(steps)}."


def _machine(setting: GossipSetting, graph: Topology, reached: int | None) -> str:
    each, ring, who = _most(graph), _ring(setting), "the hub" if setting.topology == "star" else "a node"
    said = f"In each step {who} sends {format_size(each * setting.bytes)}, "
    said += f"a rank of ring all-reduce {format_size(ring)}, which is exact at once."
    if reached:
        times = reached * each * setting.bytes / ring
        said += f" Until {EPSILON:.1%} is left, gossip has sent {times:,.{0 if times >= 100 else 1}f} times as much."
    return said


def _facts(setting: GossipSetting, graph: Topology, rate: float, reached: int | None) -> list[list[str]]:
    """Name, number, remark."""
    each, n, ring = _most(graph), setting.nodes, _ring(setting)
    gap = f"{1 - rate:.3g}"
    told = {
        "matching": "on average; of one matching alone: 0",
        "one-peer-exponential": f"a step's share in all {graph.period} together",
    }
    bound = "on average" if setting.topology == "matching" else "at most, whatever the values"
    who = "the hub; the others send one" if setting.topology == "star" and n > 2 else ""
    return [
        ["Spectral gap, 1 − ρ", gap, told.get(setting.topology, f"ρ = {rate:.4g}")],
        [f"Steps to ε = {EPSILON:g}", f"{reached:,}" if reached is not None else f"> {COUNTED:,}", "with these values"],
        ["Steps by the gap", f"{promised(setting.topology, n):,}", bound],
        ["A node sends in a step", format_size(each * setting.bytes), who or _messages(each, setting.bytes)],
        ["Ring all-reduce sends", format_size(ring), f"2(n − 1)/n: {_messages(2 * (n - 1), setting.bytes / n)}"],
        [
            "Sent until ε",
            f"{'> ' * (reached is None)}{format_size((COUNTED if reached is None else reached) * each * setting.bytes)}",
            "by that node; all-reduce is done after one",
        ],
    ]  # fmt: skip


def _most(graph: Topology) -> int:
    """Messages that the busiest node sends in a step."""
    return max(max(sends(mixing)) for mixing in graph.matrices[:64])


def _ring(setting: GossipSetting) -> float:
    volume = busiest_rank_sends("all_reduce", "ring", setting.nodes, setting.bytes)
    assert volume is not None  # a ring has a formula for any number of ranks
    return float(volume.bytes)


def _messages(count: int, size: float) -> str:
    return f"one message of {format_size(size)}" if count == 1 else f"{count} messages of {format_size(size)}"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


def _percent(part: float) -> str:
    """Near 1 to as many digits as say how far."""
    return f"{part:.1%}" if part < 0.99 else f"{part:.2%}"
