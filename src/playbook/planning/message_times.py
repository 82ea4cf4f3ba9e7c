"""How long the messages of a layout take: where the ranks of each axis are, and what the links between them carry.

Ranks fill nodes in order, tensor parallelism first. Groups that talk at the same time share nothing: each rank has an
adapter of its own. Collectives take the ring or the tree, whichever is faster, as NCCL's tuner decides. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from playbook.hardware import Cluster
from playbook.layout import Layout
from playbook.planning.calibration import Calibration
from playbook.planning.communication import closed_form
from playbook.planning.links import AlphaBeta, Network
from playbook.planning.messages import Message


@dataclass(frozen=True)
class Links:
    """The network under a layout."""

    cluster: Cluster
    layout: Layout
    calibration: Calibration

    def stride(self, axis: str) -> int:
        """How far apart neighbours on an axis are."""
        layout = self.layout
        strides = {
            "cp": layout.tp,
            "ep": layout.tp,
            "edp": layout.tp * layout.ep,
            "dp": layout.tp,
            "pp": layout.tp * layout.cp * layout.dp,
        }
        return strides.get(axis, 1)

    def network(self, axis: str, ranks: int, apart: int = 1) -> Network:
        """As a group of so many ranks on an axis sees it: some of them are in one node, others in the next ones.

        The more nodes a group is on, the slower the links between them, where a network is congested.
        """
        within = max(1, self.cluster.gpus_per_node // (self.stride(axis) * apart))
        nodes = -(-ranks // min(within, self.cluster.gpus_per_node))
        inter = self.calibration.inter * max(1.0, nodes / 2) ** -self.calibration.congestion
        return _network(self.cluster, self.calibration.intra, inter, within)

    def seconds(self, message: Message) -> float:
        """Seconds that one of a message's ``count`` takes."""
        return self.collective(
            message.collective, message.payload, message.ranks, message.axis, message.apart
        )

    def collective(self, collective: str, payload: float, ranks: int, axis: str, apart: int = 1) -> float:
        """Seconds of a collective of ``payload`` bytes, the whole vector, over ``ranks`` of an axis."""
        if ranks == 1 or not payload:
            return 0.0
        network = self.network(axis, ranks, apart)
        if collective == "send":
            return self.calibration.collective + network.hop(ranks).time(payload)
        return self.calibration.collective + _collective(collective, ranks, network, payload)

    def hop(self, payload: float) -> float:
        """Seconds of a message to the next stage of a pipeline."""
        inside = self.stride("pp") * self.layout.pp <= self.cluster.gpus_per_node
        network = self.network("pp", 2)
        link = network.intra if inside else network.inter
        return self.calibration.collective + link.time(payload)

    def of(self, messages: Iterable[Message]) -> float:
        """Seconds of messages one after another."""
        return sum(message.count * self.seconds(message) for message in messages)


@lru_cache(maxsize=4096)
def _network(cluster: Cluster, intra: float, inter: float, within: int) -> Network:
    """What goes to another node goes over the links inside, too: it is never faster than these."""
    network = Network.of(cluster, min(within, cluster.gpus_per_node))
    inside, outside = _scaled(network.intra, intra), _scaled(network.inter, inter)
    outside = replace(outside, alpha=max(outside.alpha, inside.alpha), beta=max(outside.beta, inside.beta))
    return replace(network, intra=inside, inter=outside)


def _scaled(link: AlphaBeta, share: float) -> AlphaBeta:
    return replace(link, beta=link.beta / share)


@lru_cache(maxsize=1 << 14)
def _forms(collective: str, ranks: int, network: Network) -> tuple[tuple[float, float], ...]:
    """Seconds, and seconds per byte, of each way to carry it out."""
    names = ("ring", "nccl_tree") if collective == "all_reduce" else (None,)
    if collective == "all_to_all":
        return (_pairwise(ranks, network),)
    found = [closed_form(collective, name, ranks, network) for name in names]
    return tuple((cost.latency(network), cost.per_byte(network)) for cost in found if cost)


def _pairwise(ranks: int, network: Network) -> tuple[float, float]:
    """Each sends its part to each of the others: inside a node at once, to other nodes through its own adapter."""
    within = min(ranks, network.ranks_per_node)
    across = ranks - within
    inside = (within - 1) / ranks * network.intra.beta
    outside = across / ranks * max(network.inter.beta, network.intra.beta)
    latency = network.intra.alpha * (within > 1) + (network.inter.alpha + across * 0.5e-6) * (across > 0)
    return latency, inside + outside


def _collective(collective: str, ranks: int, network: Network, payload: float) -> float:
    return min(latency + each * payload for latency, each in _forms(collective, ranks, network))
