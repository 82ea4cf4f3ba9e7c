"""The collectives animator: one pure function from what a reader sets to every step that the page draws.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``, so that it fits into a link: ``{"collective": "all_gather", "bytes": "64 MB"}``. The
messages are those of ``collectives.plans``, what ranks hold is their replay, and the times are those of
``planning.communication``. Standard library only.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from playbook._checks import check_int, typed_int, unknown
from playbook.collectives import CollectiveError
from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError
from playbook.hardware import CLUSTERS, load
from playbook.planning.communication import bus_bandwidth
from playbook_book.collective_costs import Flight, MessageTimeline, simulate
from playbook_book.collectives.closed_forms import closed_form
from playbook_book.collectives.network import Network
from playbook_book.collectives.plans import ALGORITHMS, DEFAULT, Message, Plan, plan
from playbook_book.collectives.plans.catalogue import ROOTED
from playbook_book.replay import Held, end, replay
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.volumes import busiest_rank_sends

#: What a control shows when nothing is set. ``step`` is the page's place in the plan and changes no output.
DEFAULTS: dict[str, Any] = {
    "collective": "all_reduce",
    "algorithm": None,  # that of ``plans.DEFAULT``
    "ranks": 5,
    "bytes": 10_000_000,
    "cluster": "h100-8",
    "ranks_per_node": None,  # all GPUs of a node
    "root": 0,
    "step": 0,
}
RANKS = (2, 16)
BYTES = (1000, 2**30)

#: Processes of one CPU machine that talk through its loopback. Nominal, near what two gloo ranks take there: measure
#: your own with ``playbook bench collectives``.
LOOPBACK = AlphaBeta(50e-6, 1 / 2e9)
#: The networks to choose from: the clusters of ``playbook.hardware``, and one machine without a GPU.
NETWORKS = (*CLUSTERS, "loopback")


@dataclass(frozen=True)
class CollectiveSetting:
    """What a flat mapping of controls comes to."""

    collective: str
    algorithm: str
    ranks: int
    bytes: int
    cluster: str
    network: Network
    root: int

    @property
    def per_node(self) -> int:
        return min(self.ranks, self.network.ranks_per_node)

    def plan(self, algorithm: str | None = None) -> Plan:
        """The messages of this setting's algorithm, or of another one of its collective."""
        name = algorithm or self.algorithm
        per_node = self.per_node if name == "two_level" else None
        sizes = {"ranks": self.ranks, "elements": self.bytes, "ranks_per_node": per_node}
        return plan(self.collective, name, root=self.root, **sizes)


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


# --- What a reader has set


def read(inputs: Mapping[str, Any]) -> CollectiveSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the collectives animator")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    collective = str(values["collective"])
    if collective not in ALGORITHMS:
        raise ConfigError(unknown("collective", collective, ALGORITHMS))
    algorithm = str(values["algorithm"] or DEFAULT[collective])
    if algorithm not in ALGORITHMS[collective]:
        raise ConfigError(unknown(f"algorithm of {collective}", algorithm, ALGORITHMS[collective]))
    ranks = typed_int("ranks", values["ranks"], ConfigError, least=RANKS[0], most=RANKS[1])
    size, cluster = read_bytes(values["bytes"]), str(values["cluster"])
    network = _network(cluster, values["ranks_per_node"])
    root = (
        typed_int("root", values["root"], ConfigError, least=0, most=RANKS[1]) if collective in ROOTED else 0
    )
    if root >= ranks:
        raise ConfigError(f"root must be one of the ranks, 0 to {ranks - 1}, got {root}")
    return CollectiveSetting(collective, algorithm, ranks, size, cluster, network, root)


def read_bytes(value: Any) -> int:
    """A number of bytes, or a size as people write it: 64 MB, 1.5 KiB, 2e6."""
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
    found = re.fullmatch(
        r"(\d{1,12}(?:\.\d{1,9})?(?:e\d)?)\s*(|[kmg]i?)b?(?:ytes)?", str(value).strip().lower()
    )
    if not found or isinstance(value, bool):
        raise ConfigError(f"bytes must be a size such as 64 MB or 1 KiB, got {value!r}")
    size = Fraction(found[1]) * units[found[2]]
    return check_int("bytes", round(size), ConfigError, least=BYTES[0], most=BYTES[1])


def _network(cluster: str, ranks_per_node: Any) -> Network:
    if cluster == "loopback":
        return Network.uniform(LOOPBACK)
    if cluster not in CLUSTERS:
        raise ConfigError(unknown("cluster", cluster, NETWORKS))
    per_node = (
        ranks_per_node
        if ranks_per_node is None
        else typed_int("ranks_per_node", ranks_per_node, ConfigError, most=2**20)
    )
    return Network.of(load(cluster), per_node)


# --- What the page draws


def describe(setting: CollectiveSetting) -> dict[str, Any]:
    """All that the page shows of a setting.

    ``start`` and ``wanted`` are what each rank holds before the first step, and of what it has to hold in the end: for
    each of its chunks the ranks whose contributions are in it, as a number of which bit r stands for rank r; 0 is
    nothing. Every step lists the chunks that it ``changes`` as (rank, chunk, ranks in it).
    """
    whole = setting.plan()
    times = simulate(whole, setting.network)
    states = replay(whole)
    return {
        "values": _values(setting),
        "steps": _steps(whole, times, states),
        "start": [[_bits(ranks) for ranks in chunks] for chunks in states[0]],
        "wanted": [[_bits(ranks) for ranks in chunks] for chunks in end(whole)],
        "nodes": _nodes(setting),
        "links": [[source, target, size] for (source, target), size in sorted(times.bytes_per_link.items())],
        "sent": _per_rank(times, 0),
        "received": _per_rank(times, 1),
        "busy": [times.busy(rank) for rank in range(setting.ranks)],
        "seconds": times.seconds,
        "code": _code(setting),
        "formula": _formula(setting),
        "closed_form": _closed_form(setting),
        "network": _links(setting),
        **_bandwidths(setting, times.seconds),
        "algorithms": [_rival(setting, name) for name in ALGORITHMS[setting.collective]],
    }


def _code(setting: CollectiveSetting) -> str:
    """The Python that makes the same messages."""
    options = f"ranks={setting.ranks}, elements={setting.bytes}"
    if setting.collective in ROOTED and setting.root:
        options += f", root={setting.root}"
    if setting.algorithm == "two_level":
        options += f", ranks_per_node={setting.per_node}"
    return f'plan("{setting.collective}", "{setting.algorithm}", {options}).messages'


def _per_rank(times: MessageTimeline, side: int) -> list[int]:
    """Bytes that each rank sends (``side`` 0) or receives (1)."""
    total = [0] * times.plan.ranks
    for link, size in times.bytes_per_link.items():
        total[link[side]] += size
    return total


def _values(setting: CollectiveSetting) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    settings = {
        name: getattr(setting, name)
        for name in ("collective", "algorithm", "ranks", "bytes", "cluster", "root")
    }
    return {**settings, "ranks_per_node": min(setting.network.ranks_per_node, RANKS[1])}


def _steps(whole: Plan, times: MessageTimeline, states: list[Held]) -> list[dict[str, Any]]:
    cuts = whole.cuts
    spans: list[list[Flight]] = [[] for _ in range(whole.steps)]
    for span in times.spans:
        spans[span.message.step].append(span)
    return [
        {
            "messages": [_message(whole.collective, cuts, span) for span in at_once],
            "changes": _changes(states[index], states[index + 1]),
            "start": min(span.start for span in at_once),
            "end": max(span.end for span in at_once),
            "idle": _idle(whole, at_once),
        }
        for index, at_once in enumerate(spans)
    ]


def _message(collective: str, cuts: tuple[int, ...], span: Flight) -> dict[str, Any]:
    """One message: the chunks ``first`` up to (without) ``last`` of the sender, ``into`` the first it lands in."""
    message = span.message
    first, last, into = _chunks(collective, cuts, message)
    return {
        "from": message.source, "to": message.target, "first": first, "last": last, "into": into,
        "bytes": message.bytes, "adds": message.reduce, "start": span.start, "end": span.end,
    }  # fmt: skip


def _chunks(collective: str, cuts: tuple[int, ...], message: Message) -> tuple[int, int, int]:
    if collective == "barrier":  # a rank's only chunk: whom it has heard of
        return 0, 1, 0
    if collective == "all_to_all":
        return message.target, message.target + 1, message.source
    first, last = bisect_left(cuts, message.start), bisect_left(cuts, message.stop)
    return first, last, first


def _changes(before: Held, after: Held) -> list[list[int]]:
    return [
        [rank, chunk, _bits(now)]
        for rank, (old, new) in enumerate(zip(before, after, strict=True))
        for chunk, (was, now) in enumerate(zip(old, new, strict=True))
        if was != now
    ]


@lru_cache(maxsize=4096)
def _bits(ranks: frozenset[int]) -> int:
    return sum(1 << rank for rank in ranks)


def _idle(whole: Plan, spans: list[Flight]) -> list[int]:
    taking_part = {rank for span in spans for rank in (span.message.source, span.message.target)}
    return sorted(set(range(whole.ranks)) - taking_part)


def _nodes(setting: CollectiveSetting) -> list[list[int]]:
    ranks = range(setting.ranks)
    return [list(ranks[i : i + setting.per_node]) for i in ranks[:: setting.per_node]]


def _formula(setting: CollectiveSetting) -> dict[str, Any] | None:
    """What the busiest rank sends, as text and as bytes; None where there is no simple formula."""
    found = busiest_rank_sends(
        setting.collective, setting.algorithm, setting.ranks, setting.bytes, setting.per_node
    )
    return {"text": found.text, "bytes": float(found.bytes)} if found else None


def _closed_form(setting: CollectiveSetting) -> str | None:
    """The time as a formula of α, β and K, with α′ and β′ between nodes; None where there is no simple one.

    Of rings across nodes there is NCCL's count, which is not to the microsecond what the messages drawn here take.
    """
    one_node = setting.per_node == setting.ranks
    cost = closed_form(setting.collective, setting.algorithm, setting.ranks, setting.network)
    if cost is None or cost.rail_volume or not (one_node or setting.root == 0):
        return None
    waits = [
        (cost.messages, "α"),
        (cost.volume, "K·β"),
        (cost.inter_messages, "α′"),
        (cost.inter_volume, "K·β′"),
    ]
    return " + ".join(symbol if count == 1 else f"{count}·{symbol}" for count, symbol in waits if count)


def _links(setting: CollectiveSetting) -> dict[str, Any]:
    """α in seconds and bytes/s of a link inside a node, and between nodes where there are several."""
    intra, inter = setting.network.intra, setting.network.inter
    kinds = {"intra": intra, "inter": inter} if setting.per_node < setting.ranks else {"intra": intra}
    return {kind: {"alpha": link.alpha, "bandwidth": link.bandwidth} for kind, link in kinds.items()}


def _bandwidths(setting: CollectiveSetting, seconds: float) -> dict[str, float | None]:
    """K/t and bus bandwidth in bytes/s; a barrier has none."""
    if setting.collective == "barrier":
        return {"algorithm_bandwidth": None, "bus_bandwidth": None}
    bus = bus_bandwidth(setting.collective, setting.ranks, setting.bytes, seconds)
    return {"algorithm_bandwidth": setting.bytes / seconds, "bus_bandwidth": bus}


def _rival(setting: CollectiveSetting, algorithm: str) -> dict[str, Any]:
    """Steps, seconds and bytes of the busiest sender of an algorithm on the same input, or why it is not possible."""
    try:
        whole = setting.plan(algorithm)
    except CollectiveError as error:
        return {"algorithm": algorithm, "error": str(error)}
    times = simulate(whole, setting.network)
    sent = max(_per_rank(times, 0))
    return {"algorithm": algorithm, "steps": whole.steps, "seconds": times.seconds, "sent": sent}
