"""Accelerators and clusters, from their datasheets.

Memory is what the driver reports (nvidia-smi, rocm-smi), which is not the number that a GPU is sold by: 81,559 MiB for
"80 GB", which is 79.6 GiB or 85.5 GB. Part of it stays free (:data:`RESERVE`). Peaks are dense (no structured sparsity),
bandwidths bytes per second in one direction. Standard library only.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

from playbook._checks import check_fields, check_int, check_positive, unknown
from playbook.errors import ConfigError

GB = 10**9
MIB = 2**20
#: Bytes of each unit in which memory is printed. The book and its pages count in GB.
UNITS = {"GB": GB, "GiB": 2**30}
TERA = 1e12
#: Share of a GPU's memory that pages and commands leave free unless they are told otherwise, for what no plan counts: the
#: CUDA context with its kernels, NCCL's buffers, and what PyTorch's allocator cannot use because it is in pieces. On an
#: H100 that is 3.4 GB.
RESERVE = 0.04
_PCIE4, _PCIE5 = 31.5e9, 63e9  # sixteen lanes, in one direction


@dataclass(frozen=True)
class Accelerator:
    """One GPU: memory in bytes, peak FLOP/s by dtype, bandwidths in bytes/s.

    ``title`` is what it is sold as. ``memory_bandwidth`` is that of the device memory, ``link_bandwidth`` all that the
    GPU can send to others of its node at once (NVLink, Infinity Fabric, PCIe), ``host_bandwidth`` to CPU memory (PCIe 5).
    """

    name: str
    title: str
    memory_bytes: int
    peak_flops: dict[str, float] = field(hash=False)
    memory_bandwidth: float
    link_bandwidth: float
    source: str
    host_bandwidth: float = _PCIE5

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        for label in ("memory_bandwidth", "link_bandwidth", "host_bandwidth"):
            check_positive(label, getattr(self, label), ConfigError)
        for dtype, peak in self.peak_flops.items():
            check_positive(f"peak_flops[{dtype}]", peak, ConfigError)

    def peak(self, dtype: str = "bf16") -> float:
        """Peak dense FLOP/s in ``dtype``: bf16, fp16, tf32, fp32, fp8 or fp4, or torch's names of them.

        Raises :class:`ConfigError` where the accelerator has no such unit.
        """
        short = _DTYPES.get(dtype.removeprefix("torch."), dtype)
        if short not in self.peak_flops:
            raise ConfigError(
                f"dtype must be one of {', '.join(self.peak_flops)} on {self.name}, got {dtype!r}"
            )
        return self.peak_flops[short]


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs, each with a network adapter of its own.

    Bandwidths are per GPU, one direction, in bytes/s; latencies per hop, in seconds. Of a hop between nodes, the sender
    is busy for ``inter_overhead`` seconds only. ``gpus`` is how many there are in all; None leaves that open.
    """

    name: str
    accelerator: Accelerator
    gpus_per_node: int
    intra_bandwidth: float
    intra_latency: float
    inter_bandwidth: float
    inter_latency: float
    inter_overhead: float = 0.0
    gpus: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        for label in ("intra_bandwidth", "intra_latency", "inter_bandwidth", "inter_latency"):
            check_positive(label, getattr(self, label), ConfigError)

    def with_gpus(self, gpus: int) -> Cluster:
        """This cluster with ``gpus`` GPUs: part of one node, or whole nodes, else :class:`ConfigError`."""
        check_int("gpus", gpus, ConfigError)
        if gpus > self.gpus_per_node and gpus % self.gpus_per_node:
            raise ConfigError(
                f"gpus must be a multiple of the {self.gpus_per_node} of a node of {self.name}, got {gpus}"
            )
        return dataclasses.replace(self, gpus=gpus)


_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def _peaks(**teraflops: float) -> dict[str, float]:
    return {dtype: value * TERA for dtype, value in teraflops.items()}


_HOPPER = _peaks(bf16=989, fp16=989, tf32=494, fp32=67, fp8=1979)
_AMPERE = _peaks(bf16=312, fp16=312, tf32=156, fp32=19.5)

#: By name. Where a datasheet prints the peak of tensor cores with sparsity, half of it stands here; where their sums are
#: in fp16 or in fp32, that of fp32.
ACCELERATORS: dict[str, Accelerator] = {
    gpu.name: gpu
    for gpu in (
        Accelerator("v100", "V100, 32 GB", 32_768 * MIB, _peaks(fp16=125, fp32=15.7), 900e9, 150e9,
                    "NVIDIA V100 datasheet, SXM2 32 GB; NVLink 2; no bf16", 15.75e9),
        Accelerator("a100-40", "A100, 40 GB", 40_960 * MIB, _AMPERE, 1.555e12, 300e9,
                    "NVIDIA A100 datasheet, SXM4 40 GB; NVLink 3", _PCIE4),
        Accelerator("a100-80", "A100, 80 GB", 81_920 * MIB, _AMPERE, 2.039e12, 300e9,
                    "NVIDIA A100 datasheet, SXM4 80 GB; NVLink 3", _PCIE4),
        Accelerator("a800", "A800, 80 GB", 81_920 * MIB, _AMPERE, 2.039e12, 200e9,
                    "NVIDIA A800 datasheet, SXM4 80 GB: an A100 with 400 GB/s of NVLink 3", _PCIE4),
        Accelerator("h100", "H100, 80 GB", 81_559 * MIB, _HOPPER, 3.35e12, 450e9,
                    "NVIDIA H100 datasheet, SXM5; NVLink 4"),
        Accelerator("h100-pcie", "H100 PCIe, 80 GB", 81_559 * MIB,
                    _peaks(bf16=756, fp16=756, tf32=378, fp32=51, fp8=1513), 2e12, 300e9,
                    "NVIDIA H100 datasheet, PCIe; NVLink bridge to one other card"),
        Accelerator("h100-nvl", "H100 NVL, 94 GB", 95_830 * MIB,
                    _peaks(bf16=835.5, fp16=835.5, tf32=417.5, fp32=60, fp8=1670.5), 3.9e12, 300e9,
                    "NVIDIA H100 datasheet, NVL; NVLink bridge to one other card"),
        Accelerator("h800", "H800, 80 GB", 81_559 * MIB, _HOPPER, 3.35e12, 200e9,
                    "NVIDIA H800 datasheet, SXM5: an H100 with 400 GB/s of NVLink 4"),
        Accelerator("h20", "H20, 96 GB", 97_871 * MIB, _peaks(bf16=148, fp16=148, tf32=74, fp32=44, fp8=296),
                    4e12, 450e9, "NVIDIA H20 datasheet, SXM5; NVLink 4"),
        Accelerator("h200", "H200, 141 GB", 143_771 * MIB, _HOPPER, 4.8e12, 450e9,
                    "NVIDIA H200 datasheet, SXM; NVLink 4"),
        Accelerator("b200", "B200, 180 GB", 183_359 * MIB,
                    _peaks(bf16=2250, fp16=2250, tf32=1100, fp32=75, fp8=4500, fp4=9000), 7.7e12, 900e9,
                    "NVIDIA HGX B200 datasheet, an eighth of the board's 1.44 TB, 62 TB/s and peaks; NVLink 5"),
        Accelerator("gb200", "GB200, 186 GB", 189_471 * MIB,
                    _peaks(bf16=2500, fp16=2500, tf32=1250, fp32=80, fp8=5000, fp4=10000), 8e12, 900e9,
                    "NVIDIA GB200 NVL72 datasheet, a 72nd of the rack; NVLink 5", 450e9),
        Accelerator("mi300x", "MI300X, 192 GB", 196_592 * MIB,
                    _peaks(bf16=1307.4, fp16=1307.4, tf32=653.7, fp32=163.4, fp8=2614.9), 5.3e12, 448e9,
                    "AMD Instinct MI300X datasheet; seven Infinity Fabric links of 64 GB/s each way"),
        Accelerator("l40s", "L40S, 48 GB", 46_068 * MIB,
                    _peaks(bf16=362, fp16=362, tf32=183, fp32=91.6, fp8=733), 864e9, _PCIE4,
                    "NVIDIA L40S datasheet; PCIe 4.0 x16, no NVLink", _PCIE4),
        Accelerator("l4", "L4, 24 GB", 23_034 * MIB,
                    _peaks(bf16=121, fp16=121, tf32=60, fp32=30.3, fp8=242.5), 300e9, _PCIE4,
                    "NVIDIA L4 datasheet; PCIe 4.0 x16, no NVLink", _PCIE4),
        Accelerator("rtxa6000", "RTX A6000, 48 GB", 49_140 * MIB,
                    _peaks(bf16=154.8, fp16=154.8, tf32=77.4, fp32=38.7), 768e9, 56.25e9,
                    "NVIDIA RTX A6000 datasheet; NVLink bridge to one other card; with ECC on, 46,068 MiB", _PCIE4),
        Accelerator("rtx4090", "RTX 4090, 24 GB", 24_564 * MIB,
                    _peaks(bf16=165.2, fp16=165.2, tf32=82.6, fp32=82.6, fp8=330.3), 1.008e12, _PCIE4,
                    "NVIDIA Ada whitepaper; PCIe 4.0 x16, no NVLink", _PCIE4),
        Accelerator("rtx5090", "RTX 5090, 32 GB", 32_607 * MIB,
                    _peaks(bf16=209.5, fp16=209.5, tf32=104.8, fp32=104.8, fp8=419, fp4=1676), 1.792e12, _PCIE5,
                    "NVIDIA RTX Blackwell whitepaper; PCIe 5.0 x16, no NVLink"),
        Accelerator("cpu", "CPU, 16 GB", 16 * GB, _peaks(fp32=0.16), 20e9, 10e9,
                    "nominal, no datasheet: 2 cores at 2.5 GHz with two 8-wide fp32 FMA units; measure your own", 20e9),
    )
}  # fmt: skip

# Seconds per hop that NCCL's own tuner assumes for a ring with the Simple protocol (src/graph/tuning.cc, hwLatencies),
# and how long posting a message keeps the sender busy (getNetOverhead, three times for Simple).
NVLINK_LATENCY = 3.4e-6
NETWORK_LATENCY = 14e-6
NETWORK_OVERHEAD = 3e-6
#: Of the datasheet's NVLink, what a ring carries: 240, 360 and 720 GB/s on A100, H100 and B200, as NCCL prints in its
#: own tables; published runs of nccl-tests come to 0.97 to 1.02 of that (benchmarks/published_collectives.csv).
NVLINK_REACHED = 0.8


def _cluster(
    name: str, gpu: str, gpus_per_node: int, inter_bandwidth: float, reached: float = NVLINK_REACHED
) -> Cluster:
    accelerator = ACCELERATORS[gpu]
    return Cluster(
        name,
        accelerator,
        gpus_per_node,
        intra_bandwidth=reached * accelerator.link_bandwidth,
        intra_latency=NVLINK_LATENCY,
        inter_bandwidth=inter_bandwidth,
        inter_latency=NETWORK_LATENCY,
        inter_overhead=NETWORK_OVERHEAD,
    )


# One network adapter per GPU: 200 Gb/s beside an A100 (DGX A100), 400 Gb/s beside the later ones.
CLUSTERS: dict[str, Cluster] = {
    cluster.name: cluster
    for cluster in (
        _cluster("a100-8", "a100-80", 8, 25e9),
        _cluster("a100-40-8", "a100-40", 8, 25e9),
        _cluster("a800-8", "a800", 8, 25e9),
        _cluster("h100-8", "h100", 8, 50e9),
        _cluster("h800-8", "h800", 8, 50e9),
        _cluster("h20-8", "h20", 8, 50e9),
        _cluster("h200-8", "h200", 8, 50e9),
        _cluster("b200-8", "b200", 8, 50e9),
        _cluster("gb200-72", "gb200", 72, 50e9),
        _cluster("mi300x-8", "mi300x", 8, 50e9, reached=0.71),  # 316 GB/s: amd-aac-rccl in the same file
    )
}


def load(name: str | Cluster, gpus: int | None = None) -> Cluster:
    """The cluster called ``name``, with ``gpus`` GPUs if given; ``rtx4090-8`` is one of an accelerator sold by itself.

    Raises :class:`ConfigError` for an unknown name, and for an accelerator's (:func:`load_accelerator`).
    """
    if isinstance(name, str):
        if name in ACCELERATORS:
            of_it = cluster_of(ACCELERATORS[name]).name
            raise ConfigError(f"cluster {name!r} is a single accelerator; a cluster of it is {of_it}")
        alone = ACCELERATORS.get(name.removesuffix("-8"))  # sold in no nodes
        known = CLUSTERS.get(name) or (alone and cluster_of(alone))
        if not known:
            raise ConfigError(unknown("cluster", name, CLUSTERS))
        name = known
    return name if gpus is None else name.with_gpus(gpus)


def cluster_of(accelerator: Accelerator) -> Cluster:
    """Nodes of an accelerator: the cluster that it is sold in or, of others, eight of them with 400 Gb/s each."""
    sold = next((c for c in CLUSTERS.values() if c.accelerator.name == accelerator.name), None)
    nodes = sold or _cluster(f"{accelerator.name}-8", "h100", 8, 50e9)
    inside = nodes.intra_bandwidth if sold else NVLINK_REACHED * accelerator.link_bandwidth
    return dataclasses.replace(nodes, accelerator=accelerator, intra_bandwidth=inside)


def load_accelerator(name: str | Accelerator) -> Accelerator:
    """The accelerator called ``name``, in any case, or of the cluster called so; ConfigError for an unknown one."""
    if isinstance(name, Accelerator):
        return name
    known = ACCELERATORS | {key: cluster.accelerator for key, cluster in CLUSTERS.items()}
    if name.lower() not in known:
        raise ConfigError(unknown("accelerator", name, ACCELERATORS))
    return known[name.lower()]


def read_bytes(label: str, text: str, *, least: int = 1) -> int:
    """Bytes of a number with its unit, "96GB" or "89 GiB". Raises :class:`ConfigError` with ``label`` for other texts."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([KMGT]i?B)", text.strip(), re.IGNORECASE)
    if text.strip() == "0" and not least:  # nothing is nothing in any unit
        return 0
    if not found:
        raise ConfigError(f"{label} must be a number with its unit, such as 96GB or 89GiB, got {text!r}")
    base = 1024 if "i" in found[2].lower() else 1000
    size = round(float(found[1]) * base ** (1 + "KMGT".index(found[2][0].upper())))
    return check_int(label, size, ConfigError, least=least)


def default_reserve(memory: int) -> int:
    """Bytes of a GPU's ``memory`` that stay free where nobody says how many (:data:`RESERVE`)."""
    return round(RESERVE * memory)


def usable_memory(memory: int, reserve: int) -> int:
    """Bytes of a GPU's ``memory`` that a plan may fill if it leaves ``reserve`` bytes for what it does not count. Raises
    :class:`ConfigError` if that is nothing."""
    if reserve >= memory:
        raise ConfigError(f"reserve must be below memory = {memory / GB:.4g} GB, got {reserve / GB:.4g} GB")
    return memory - reserve


#: Whether a plan fits: beside what stays free, into all of the memory only, or not even that.
FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"


def verdict_of(needs: int, memory: int, reserve: int | None = None) -> str:
    """One of ``FITS``, ``TIGHT`` and ``TOO_LARGE`` for a plan of ``needs`` bytes; ``reserve`` None is the default one."""
    free = default_reserve(memory) if reserve is None else reserve
    return FITS if needs <= memory - free else TIGHT if needs <= memory else TOO_LARGE
