"""How long the messages of a layout take: where the ranks of each axis are, and what the links between them carry.

Ranks fill nodes in order, tensor parallelism first. Each rank has an adapter of its own, so that groups of one axis
share nothing; axes do: while one sends, gradients do not (`stage_times.Work.quiet`). Collectives take what NCCL's tuner
takes for them (`nccl`). Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from playbook.hardware import NETWORK_LATENCY, NVLINK_LATENCY, Cluster
from playbook.layout import Layout
from playbook.planning.calibration import Calibration
from playbook.planning.messages import Message
from playbook.planning.nccl import Fabric, chosen


@dataclass(frozen=True)
class Links:
    """The network under a layout."""

    cluster: Cluster
    layout: Layout
    calibration: Calibration

    def stride(self, axis: str) -> int:
        """How far apart neighbours on an axis are."""
        layout = self.layout
        of_experts = layout.tp // layout.apart
        strides = {
            "cp": layout.tp,
            "ep": of_experts,
            "edp": of_experts * layout.ep,
            "dp": layout.tp,
            "replicate": layout.tp * layout.shards,
            "pp": layout.tp * layout.cp * layout.dp,
        }
        return strides.get(axis, 1)

    def spread(self, axis: str, ranks: int, apart: int = 1) -> tuple[int, int]:
        """On how many nodes so many ranks of an axis are, and how many of them are in each at most."""
        within = max(1, self.cluster.gpus_per_node // (self.stride(axis) * apart))
        return -(-ranks // within), min(within, ranks)

    def fabric(self, nodes: int) -> Fabric:
        """What a group on so many nodes finds: the more there are, the slower the links between them, where a network
        is congested."""
        inter = self.calibration.inter * max(1.0, nodes / 2) ** -self.calibration.congestion
        return _fabric(self.cluster, self.calibration.intra, inter)

    def seconds(self, message: Message) -> float:
        """Seconds that one of a message's ``count`` takes."""
        return self.collective(
            message.collective, message.payload, message.ranks, message.axis, message.apart
        )

    def collective(self, collective: str, payload: float, ranks: int, axis: str, apart: int = 1) -> float:
        """Seconds of a collective of ``payload`` bytes, the whole vector, over ``ranks`` of an axis."""
        if ranks == 1 or not payload:
            return 0.0
        nodes, within = self.spread(axis, ranks, apart)
        if collective == "send":
            return self._send(payload, nodes)
        return self.calibration.collective + _seconds(
            collective, payload, ranks, nodes, within, self.fabric(nodes)
        )

    @property
    def inside(self) -> bool:
        """Whether a whole pipeline is in a node."""
        return self.stride("pp") * self.layout.pp <= self.cluster.gpus_per_node

    def hop(self, payload: float) -> float:
        """Seconds of a message to the next stage of a pipeline."""
        return self._send(payload, 1 if self.inside else 2)

    def _send(self, payload: float, nodes: int) -> float:
        cluster, fabric = self.cluster, self.fabric(nodes)
        alpha = cluster.intra_latency if nodes == 1 else cluster.inter_latency
        return self.calibration.collective + alpha + payload / (fabric.intra if nodes == 1 else fabric.inter)

    def of(self, messages: Iterable[Message]) -> float:
        """Seconds of messages one after another."""
        return sum(message.count * self.seconds(message) for message in messages)


@lru_cache(maxsize=4096)
def _fabric(cluster: Cluster, intra: float, inter: float) -> Fabric:
    """What goes to another node goes over the links inside, too: it is never faster than these."""
    found = Fabric.of(cluster)
    inside = found.intra * intra
    return replace(found, intra=inside, inter=min(found.inter * inter, inside))


@lru_cache(maxsize=1 << 15)
def _seconds(collective: str, payload: float, ranks: int, nodes: int, within: int, fabric: Fabric) -> float:
    if collective == "all_to_all":
        return _pairwise(payload, ranks, within, fabric)
    return chosen(collective, payload, ranks, nodes, fabric).seconds(payload, fabric.hops)


def _pairwise(payload: float, ranks: int, within: int, fabric: Fabric) -> float:
    """Each sends its part to each of the others: inside a node at once, to other nodes through its own adapter."""
    across = ranks - within
    latency = NVLINK_LATENCY * (within > 1) + (fabric.hops * NETWORK_LATENCY + across * 0.5e-6) * (across > 0)
    return latency + payload / ranks * ((within - 1) / fabric.intra + across / fabric.inter)
