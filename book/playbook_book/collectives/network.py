"""A network of nodes as links that cost α and β: inside a node, and between nodes. Standard library only."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from playbook._checks import check_fields, check_int
from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError
from playbook.hardware import Cluster


@dataclass(frozen=True)
class Network:
    """Ranks in nodes of ``ranks_per_node``, one after the other: ``intra`` links inside a node, ``inter`` links between.

    Every rank has an adapter of its own, and ``inter`` is the link of one. NCCL runs a ring (or tree) for each adapter of
    a node, side by side, each on its part of the vector and each leaving the node at another rank: what crosses to the
    next node has ``rails``, the bandwidth of all its adapters.
    """

    intra: AlphaBeta
    inter: AlphaBeta
    ranks_per_node: int

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)

    @classmethod
    def uniform(cls, link: AlphaBeta) -> Network:
        """Any number of ranks, the same link between any two."""
        return cls(link, link, ranks_per_node=1 << 30)

    @classmethod
    def of(cls, cluster: Cluster, ranks_per_node: int | None = None) -> Network:
        """A cluster's network, for a group with so many ranks in each node (default: a rank on every GPU)."""
        g = cluster.gpus_per_node
        if ranks_per_node is not None:
            g = check_int("ranks_per_node", ranks_per_node, ConfigError)
        if g > cluster.gpus_per_node:
            raise ConfigError(
                f"ranks_per_node must be at most {cluster.gpus_per_node} on {cluster.name}, got {g}"
            )
        flight = max(0.0, cluster.inter_latency - cluster.inter_overhead)
        return cls(
            AlphaBeta(cluster.intra_latency, 1 / cluster.intra_bandwidth),
            AlphaBeta(cluster.inter_latency, 1 / cluster.inter_bandwidth, flight),
            g,
        )

    @cached_property
    def rails(self) -> AlphaBeta:
        """The link to the next node over all adapters of a node, never faster than what reaches them inside it."""
        beta = max(self.inter.beta / self.ranks_per_node, self.intra.beta)
        return dataclasses.replace(self.inter, beta=beta)

    def link(self, source: int, target: int, *, striped: bool = False) -> AlphaBeta:
        """The link between two ranks; ``striped`` over the adapters of a whole node if it goes to another one."""
        if source // self.ranks_per_node == target // self.ranks_per_node:
            return self.intra
        return self.rails if striped else self.inter

    def hop(self, ranks: int) -> AlphaBeta:
        """The slowest link from one of ``ranks`` neighbouring ranks to the next."""
        return self.intra if ranks <= self.ranks_per_node else self.inter
