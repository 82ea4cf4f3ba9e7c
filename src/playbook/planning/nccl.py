"""Which algorithm and protocol NCCL takes for a collective: its own tuner, for clusters whose GPUs have NVLink.

For every algorithm and protocol the tuner knows a latency and a bandwidth, and takes the least latency + bytes/bandwidth.
Constants and formulas are those of NCCL 2.28 (src/graph/tuning.cc: ncclTunerConstantsDefaults, ncclTopoTuneModel,
ncclTopoGetAlgoTime; bandwidths of links: src/graph/topo.h). Up to 2.22 a tree's Simple hop in a node was 28 µs, NVLS
5/6 of its links, and the LL of Hopper as slow as that of Ampere; PAT is of 2.23. What a channel may carry at most is left
out: with the 16 channels of NVSwitch machines it does not bind. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2, sqrt

from playbook._checks import check_int, unknown
from playbook.errors import ConfigError
from playbook.hardware import NETWORK_LATENCY, Cluster

MICRO = 1e-6
GIGA = 1e9

#: Latencies in µs by algorithm and protocol: of a call, and of a hop over NVLink, over PCIe, and over the network.
LATENCIES = {
    ("tree", "LL"): (6.8, 0.6, 1.0, 5.0),
    ("tree", "LL128"): (14.0, 1.25, 1.9, 8.5),
    ("tree", "Simple"): (8.4, 4.0, 4.0, 14.0),
    ("ring", "LL"): (6.6, 0.6, 1.0, 2.7),
    ("ring", "LL128"): (14.0, 1.9, 2.5, 4.0),
    ("ring", "Simple"): (8.4, 3.4, 5.7, 14.0),
    ("NVLS", "Simple"): (0.0, 25.0, 25.0, 18.0),
    ("NVLS tree", "Simple"): (0.0, 25.0, 25.0, 20.9),
    ("CollNet", "Simple"): (0.0, 3.7, 3.7, 31.0),
    ("PAT", "Simple"): (8.0, 4.0, 4.0, 14.0),
}
#: What a tree reaches at sizes of 64 bytes, 128, 256 … by protocol; of what is longer, all.
OF_A_TREE = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "Simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Generation:
    """What the tuner knows of GPUs: the bandwidth of LL in a node, bytes/s; what NVLS reaches of the links; and bytes/s
    that its channels may have, of which there is one for each GPU of a node."""

    name: str
    ll: float
    nvls: float = 0.0
    speeds: tuple[float, ...] = ()


VOLTA, AMPERE = Generation("Volta", 39.0 * GIGA), Generation("Ampere", 87.7 * GIGA)
HOPPER = Generation("Hopper", 141.0 * GIGA, 0.85, (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0))
BLACKWELL = Generation(
    "Blackwell", 282.0 * GIGA, 0.74, (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 10.0)
)
#: Accelerators by the start of their names; others are taken for Hopper's, AMD's for Ampere's.
GENERATIONS = {
    "v100": VOLTA, "a100": AMPERE, "a800": AMPERE, "rtxa6000": AMPERE, "mi": AMPERE, "b200": BLACKWELL, "b300": BLACKWELL,
    "gb": BLACKWELL, "rtx5": BLACKWELL,
}  # fmt: skip


def generation_of(name: str) -> Generation:
    """What the tuner knows of the accelerator called ``name``."""
    return next((found for start, found in GENERATIONS.items() if name.startswith(start)), HOPPER)


#: LL between nodes, two and more of them, with Intel's processors; what it and its hops cost does not depend on the GPU.
LL_ACROSS = 39.0 * GIGA, 20.4 * GIGA
#: Microseconds in which a processor posts a message (getNetOverhead, Intel): three times that with Simple.
POST = 1.0
CHANNELS = 16
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Reached:
    """What collectives take in truth, where the tuner has guessed: fitted to published runs of nccl-tests
    (``benchmarks/fit_collectives.py``). Of each protocol, how many times its latencies; of each kind of bandwidth, the
    share that is reached; and ``filling``, what a pipeline of chunks adds, as a multiple of √(latency · transfer)."""

    ll_latency: float = 1.49
    ll128_latency: float = 1.3
    simple_latency: float = 1.11
    switch_latency: float = 1.32
    ll: float = 1.36
    ll128: float = 0.9
    ring: float = 1.03
    tree: float = 0.98
    switch: float = 0.96
    network: float = 0.98
    filling: float = 0.57

    def latency(self, way: Way) -> float:
        """How many times the tuner's latency a way has."""
        times = {"LL": self.ll_latency, "LL128": self.ll128_latency, "Simple": self.simple_latency}
        return self.switch_latency if way.algorithm.startswith("NVLS") else times[way.protocol]


REACHED = Reached()


@dataclass(frozen=True)
class Fabric:
    """What NCCL finds: what a ring carries inside a node for each GPU, ``intra``, and what an adapter does, ``inter``,
    both in bytes/s; whether GPUs are on ``nvlink``, and whether the switches between nodes add up (``sharp``). ``hops``
    is how many times NCCL's latency a message to another node takes: 1 on InfiniBand."""

    generation: Generation
    intra: float
    inter: float
    nvlink: bool = True
    sharp: bool = False
    hops: float = 1.0

    @classmethod
    def of(cls, cluster: Cluster) -> Fabric:
        """The fabric of a cluster, each of whose GPUs has an adapter."""
        return cls(
            generation_of(cluster.accelerator.name),
            cluster.intra_bandwidth,
            cluster.inter_bandwidth,
            nvlink=cluster.intra_bandwidth > 64e9,
            hops=cluster.inter_latency / NETWORK_LATENCY,
        )


@dataclass(frozen=True)
class Way:
    """One algorithm with one protocol, as the tuner knows it: seconds of hops ``inside`` nodes and of the call, and of
    those ``across``; ``bandwidth``, bytes of the whole vector per second, and what of that is ``carried`` in truth.
    From ``plateau`` bytes on, a ring across nodes has 1.4 times the latency that its hops add up to."""

    algorithm: str
    protocol: str
    inside: float
    across: float
    bandwidth: float
    carried: float
    plateau: float = float("inf")

    def __str__(self) -> str:
        return f"{self.algorithm} {self.protocol}" if self.algorithm in ("ring", "tree") else self.algorithm

    def of_medium(self, bytes: float) -> float:
        """What a tree reaches of its bandwidth with so many bytes."""
        shares, place = OF_A_TREE[self.protocol], int(log2(max(bytes / 64, 1)))
        return shares[place] if self.algorithm == "tree" and place < len(shares) else 1.0

    def guess(self, bytes: float, hops: float = 1.0) -> float:
        """Seconds that the tuner expects, by which it chooses. The network's plugin tells it how slow ``hops`` are."""
        latency = (self.inside + self.across * hops) * (1.4 if bytes >= self.plateau else 1.0)
        return latency + bytes / (self.bandwidth * self.of_medium(bytes))

    def seconds(self, bytes: float, hops: float = 1.0, reached: Reached = REACHED) -> float:
        """Seconds that it takes: latency, transfer, and what filling the pipeline of chunks adds to both.

        A chain of hops fed in chunks of the best size takes (√latency + √transfer)² (Sanders, Speck and Träff 2009,
        "Two-tree algorithms for full bandwidth broadcast, reduction and scan", section 2), which is those two terms and
        2√(latency · transfer); NCCL's chunks have a few fixed sizes, and ``Reached.filling`` says what that comes to.
        """
        latency = reached.latency(self) * (self.inside + self.across * hops)
        transfer = bytes / self.carried
        return latency + transfer + reached.filling * sqrt(latency * transfer)


def chosen(
    collective: str, bytes: float, ranks: int, nodes: int, fabric: Fabric, reached: Reached = REACHED
) -> Way:
    """What NCCL takes for a vector of ``bytes``: as nccl-tests count them, what every rank holds in the end or had at
    the beginning. The ranks are on ``nodes``, as many on each."""
    return min(ways(collective, ranks, nodes, fabric, reached), key=lambda way: way.guess(bytes, fabric.hops))


def on(cluster: Cluster, collective: str, bytes: float, ranks: int, per_node: int | None = None) -> Way:
    """What NCCL takes on a cluster for ``ranks``, of which ``per_node`` are in a node (None: as many as it has GPUs).

    Raises :class:`ConfigError` for an unknown collective and for more ranks in a node than it has GPUs.
    """
    within = check_int("per_node", per_node or cluster.gpus_per_node, ConfigError, most=cluster.gpus_per_node)
    nodes = -(-check_int("ranks", ranks, ConfigError, least=2) // within)
    return chosen(collective, bytes, ranks, nodes, Fabric.of(cluster))


def seconds(
    collective: str, bytes: float, ranks: int, cluster: Cluster, per_node: int | None = None
) -> float:
    """Seconds of a collective on a cluster, by what NCCL takes for it; see `on`."""
    way = on(cluster, collective, bytes, ranks, per_node)
    return way.seconds(bytes, cluster.inter_latency / NETWORK_LATENCY)


@lru_cache(maxsize=1 << 12)
def ways(
    collective: str, ranks: int, nodes: int, fabric: Fabric, reached: Reached = REACHED
) -> tuple[Way, ...]:
    """All that NCCL has for a collective: all_reduce, all_gather or reduce_scatter. Raises ConfigError for others."""
    if collective not in COLLECTIVES:
        raise ConfigError(unknown("collective of NCCL's tuner", collective, COLLECTIVES))
    group = _Group(collective == "all_reduce", ranks, nodes, fabric, reached)
    return tuple(group.ways())


@dataclass(frozen=True)
class _Group:
    """Ranks on nodes, about to add up, or (``both`` False) to gather or scatter what was added up."""

    both: bool
    ranks: int
    nodes: int
    fabric: Fabric
    reached: Reached

    @property
    def each(self) -> float:
        """Ranks of a node."""
        return self.ranks / self.nodes

    @property
    def rails(self) -> float:
        """Bytes/s from a node to the next one over the adapters of all its ranks."""
        return self.fabric.inter * self.each if self.nodes > 1 else float("inf")

    @property
    def steps(self) -> int:
        return (self.ranks - 1) * (1 + self.both)

    @property
    def ll(self) -> float:
        return self.fabric.generation.ll if self.nodes == 1 else LL_ACROSS[self.nodes > 2]

    def ways(self) -> Iterator[Way]:
        for protocol in ("LL", "LL128", "Simple"):
            yield self.ring(protocol)
        if self.both:
            for protocol in ("LL", "LL128", "Simple"):
                yield self.tree(protocol)
        if self.fabric.generation.nvls and self.fabric.nvlink and self.each > 1:
            if self.nodes == 1:
                yield self.nvls()
            elif self.both:
                yield self.nvls_tree()
        if self.nodes > 1 and self.both and self.fabric.sharp:
            yield self.collnet()
        if self.nodes > 1 and not self.both and self.each == 1:
            yield self.pat()

    def way(self, name: tuple[str, str], hops: tuple[float, float], guess: float, real: float) -> Way:
        """Of so many hops inside nodes and across, and bandwidths as the tuner guesses them and in truth."""
        base, nvlink, pcie, network = LATENCIES[name]
        inside = base + hops[0] * (nvlink if self.fabric.nvlink else pcie)
        return Way(*name, inside * MICRO, hops[1] * network * MICRO, guess, real)

    def ring(self, protocol: str) -> Way:
        r, across = self.reached, (self.nodes - 1) * (1 + self.both)
        bus = min(self.fabric.intra, self.rails)
        real = min(self.fabric.intra * r.ring, self.rails * r.network)
        guess = {"LL": min(self.ll, bus * 0.5), "LL128": bus * 0.92, "Simple": bus}[protocol]
        real = {"LL": min(self.ll * r.ll, real * 0.5), "LL128": real * r.ll128, "Simple": real}[protocol]
        share = self.ranks / self.steps
        way = self.way(("ring", protocol), (self.steps - across, across), guess * share, real * share)
        if self.nodes == 1:
            return way
        # Every hop is at least a message posted; where a rank is alone in its node, latencies are those of a tree.
        post = POST * (3 if protocol == "Simple" else 1) * MICRO
        least = LATENCIES["ring", protocol][0] * MICRO + (self.steps - across) * post
        alone = LATENCIES["tree", protocol][3] * MICRO * across
        long = 64.0 * CHANNELS * self.ranks if self.both and protocol == "Simple" else float("inf")
        return replace(
            way, inside=max(way.inside, least), across=alone if self.each == 1 else way.across, plateau=long
        )

    def tree(self, protocol: str) -> Way:
        """Of two nodes, one sends a tree's half of the vector up while it sends the other tree's half down."""
        bus = min(self.fabric.intra, self.rails * (2 if self.nodes == 2 else 1))
        whole, r = bus * 0.92, self.reached
        guess = {"LL": min(self.ll, whole / 3.8), "LL128": whole * (7 / 9 if self.nodes == 1 else 15 / 16)}
        real = {"LL": min(self.ll * r.ll, whole / 3.8), "LL128": whole * r.ll128, "Simple": bus * r.tree}
        hops = 2 * (self.each - 1), 2 * int(log2(self.nodes))
        return self.way(("tree", protocol), hops, guess.get(protocol, whole) / 2, real[protocol] / 2)

    def nvls(self) -> Way:
        """The switch adds up: in truth a link carries the vector once, and the rank's share of the sum."""
        guess = self.speed * (self.each - 1) * self.fabric.generation.nvls
        share = self.each / (self.each + 1) if self.both else (self.each - 1) / self.each
        other = 2 * self.ranks / self.steps if self.both else (self.each - 1) / self.each
        return self.way(("NVLS", "Simple"), (1, 0), guess * other, self.switched * share)

    def nvls_tree(self) -> Way:
        twice = 2 if self.nodes == 2 else 1
        rails = min(self.rails, self.speed * self.each) * twice
        guess = min(2 * self.speed * (self.each - 1) * self.fabric.generation.nvls, rails)
        real = min(self.switched * self.each / (self.each + 1), self.rails * self.reached.network * twice / 2)
        hops = 1, 2 * int(log2(self.nodes))
        return self.way(("NVLS tree", "Simple"), hops, guess * self.ranks / self.steps, real)

    @property
    def speed(self) -> float:
        """Bytes/s of an NVLS channel, of which every GPU of a node has one: the most that its links, and between nodes
        its adapter, can carry of those that the tuner tries."""
        most = min(self.fabric.intra / self.each, self.fabric.inter if self.nodes > 1 else float("inf"))
        return next((x * GIGA for x in self.fabric.generation.speeds if x * GIGA <= most), most)

    @property
    def switched(self) -> float:
        return self.fabric.intra * self.fabric.generation.nvls * self.reached.switch

    def collnet(self) -> Way:
        """Switches between nodes add up, too (CollNetDirect)."""
        guess = min(self.fabric.intra, self.rails) * 0.85 / 2
        hops = 2 * min(1, self.each - 1), 1
        way = self.way(("CollNet", "Simple"), hops, guess, guess)
        return replace(way, inside=way.inside + 2 * (self.each - 1) * 0.4 * MICRO)

    def pat(self) -> Way:
        guess = min(self.fabric.intra, self.rails) * 0.75
        way = self.way(("PAT", "Simple"), (0, log2(self.nodes) / 3.5), guess, guess * self.reached.network)
        return replace(way, inside=way.inside + self.ranks * 2.8 * MICRO)
