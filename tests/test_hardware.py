"""Accelerators and clusters: numbers of datasheets and drivers that must not drift, and clear refusals."""

import pytest

from playbook.errors import ConfigError
from playbook.hardware import (
    ACCELERATORS,
    CLUSTERS,
    NVLINK_REACHED,
    RESERVE,
    Accelerator,
    cluster_of,
    default_reserve,
    load,
    load_accelerator,
    read_bytes,
    usable_memory,
    verdict_of,
)


@pytest.mark.parametrize(
    ("name", "mib", "teraflops", "bandwidth", "link"),
    [
        ("a100-40", 40_960, 312, 1.555e12, 300e9),
        ("a100-80", 81_920, 312, 2.039e12, 300e9),
        ("h100", 81_559, 989, 3.35e12, 450e9),
        ("h200", 143_771, 989, 4.8e12, 450e9),
        ("b200", 183_359, 2250, 7.7e12, 900e9),
        ("mi300x", 196_592, 1307.4, 5.3e12, 448e9),
        ("rtx4090", 24_564, 165.2, 1.008e12, 31.5e9),
        ("rtx5090", 32_607, 209.5, 1.792e12, 63e9),
        ("rtxa6000", 49_140, 154.8, 768e9, 56.25e9),
        ("l4", 23_034, 121, 300e9, 31.5e9),
        ("l40s", 46_068, 362, 864e9, 31.5e9),
        ("a800", 81_920, 312, 2.039e12, 200e9),
        ("h800", 81_559, 989, 3.35e12, 200e9),
        ("h20", 97_871, 148, 4e12, 450e9),
        ("h100-pcie", 81_559, 756, 2e12, 300e9),
        ("h100-nvl", 95_830, 835.5, 3.9e12, 300e9),
    ],
)
def test_numbers_of_drivers_and_datasheets(name, mib, teraflops, bandwidth, link):
    gpu = load_accelerator(name)
    assert gpu.memory_bytes == mib * 2**20
    sold = float(gpu.title.split()[-2])
    assert (
        0.97 < gpu.memory_bytes / (sold * 10**9) < 1.08
    )  # some count in powers of two, some keep a part back
    assert gpu.peak("bf16") == pytest.approx(teraflops * 1e12)
    assert (gpu.memory_bandwidth, gpu.link_bandwidth) == (bandwidth, link)


@pytest.mark.parametrize("gpu", ACCELERATORS.values(), ids=lambda gpu: gpu.name)
def test_narrower_numbers_are_never_slower(gpu):
    order = [
        gpu.peak_flops[dtype] for dtype in ("fp32", "tf32", "bf16", "fp8", "fp4") if dtype in gpu.peak_flops
    ]
    assert order == sorted(order)
    assert gpu.source


def test_peak_takes_torch_names_and_refuses_what_is_missing():
    h100 = load_accelerator("h100")
    assert h100.peak("torch.bfloat16") == h100.peak("bfloat16") == h100.peak()
    assert h100.peak("float8_e4m3fn") == h100.peak("fp8") == 1979e12
    assert load_accelerator(h100) is h100
    with pytest.raises(
        ConfigError, match="dtype must be one of bf16, fp16, tf32, fp32 on a100-80, got 'fp8'"
    ):
        load_accelerator("a100-80").peak("fp8")
    v100 = load_accelerator("V100")
    assert (v100.peak("fp16"), v100.memory_bytes) == (125e12, 32 * 2**30)
    with pytest.raises(ConfigError, match="dtype must be one of fp16, fp32 on v100, got 'bf16'"):
        v100.peak()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("96GB", 96 * 10**9), ("89GiB", 89 * 2**30), (" 85.5 gb ", 85_500_000_000), ("81559 MiB", 81_559 * 2**20),
        ("1.44TB", 1_440_000_000_000),
    ],
)  # fmt: skip
def test_bytes_are_read_with_their_unit(text, size):
    assert read_bytes("memory", text) == size


def test_what_is_no_memory_is_refused():
    for text in ("96", "GB", "96 GHz", "-1GB", "1e3GB", "", "nanGB", "1" + 12 * "0" + "GB"):
        with pytest.raises(ConfigError, match="memory must be a number with its unit, such as 96GB or 89GiB"):
            read_bytes("memory", text)
    with pytest.raises(ConfigError, match="memory must be at least 1, got 0"):
        read_bytes("memory", "0GB")
    assert read_bytes("reserve", "0GB", least=0) == read_bytes("reserve", " 0 ", least=0) == 0
    with pytest.raises(ConfigError, match="memory must be a number with its unit"):
        read_bytes("memory", "0")
    assert usable_memory(96 * 10**9, 4 * 10**9) == 92 * 10**9
    with pytest.raises(ConfigError, match="reserve must be below memory = 24 GB, got 24 GB"):
        usable_memory(24 * 10**9, 24 * 10**9)


def test_a_plan_that_leaves_too_little_is_tight():
    h100 = load_accelerator("h100").memory_bytes
    free = default_reserve(h100)
    assert free / h100 == pytest.approx(RESERVE)
    assert 3.4e9 < free < 3.5e9
    for reserve, first in ((None, free), (10**9, 10**9), (0, 0)):
        limits = [h100 - first, h100 - first + 1, h100, h100 + 1]
        wanted = ["fits", "tight" if first else "does not fit", "tight" if first else "fits", "does not fit"]
        assert [verdict_of(needs, h100, reserve) for needs in limits] == wanted


def test_clusters_are_slower_between_nodes_than_within():
    assert {"a100-8", "h100-8", "h200-8", "b200-8", "mi300x-8"} <= set(CLUSTERS)
    for cluster in CLUSTERS.values():
        assert cluster.accelerator.link_bandwidth > cluster.intra_bandwidth > cluster.inter_bandwidth
        assert cluster.intra_latency < cluster.inter_latency
        assert 0 < cluster.inter_overhead <= cluster.intra_latency
        assert cluster.gpus is None


def test_a_cluster_takes_a_number_of_gpus():
    assert load("h100-8", 64).gpus == 64
    assert load(load("h100-8"), 4).gpus == 4
    assert load("h100-8") == CLUSTERS["h100-8"] != load("h100-8", 64)
    hash(load("h100-8"))
    with pytest.raises(ConfigError, match="gpus must be a multiple of the 8 of a node of h100-8, got 12"):
        load("h100-8", 12)
    for bad in (0, -8, 2.5, True):
        with pytest.raises(ConfigError, match="gpus must be"):
            load("h100-8", bad)


def test_unknown_names_are_refused_with_the_near_ones():
    with pytest.raises(ConfigError, match="unknown cluster 'h100-88'; did you mean h100-8"):
        load("h100-88")
    with pytest.raises(ConfigError, match="unknown accelerator 'x1'; known: a100-40"):
        load_accelerator("x1")
    assert load_accelerator("H200-8") == load_accelerator("h200")
    assert load("rtx4090-8", 16) == cluster_of(load_accelerator("rtx4090")).with_gpus(16)
    with pytest.raises(
        ConfigError, match="cluster 'h100' is a single accelerator; a cluster of it is h100-8"
    ):
        load("h100")
    with pytest.raises(ConfigError, match="cluster 'cpu' is a single accelerator; a cluster of it is cpu-8"):
        load("cpu")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"memory_bytes": 0}, "memory_bytes must be at least 1, got 0"),
        ({"memory_bytes": 8e9}, "memory_bytes must be an integer"),
        ({"link_bandwidth": -1.0}, "link_bandwidth must be a number above 0, got -1.0"),
        ({"peak_flops": {"bf16": 0}}, r"peak_flops\[bf16\] must be a number above 0, got 0"),
    ],
)
def test_impossible_accelerators_are_refused(changes, sentence):
    fields = {
        "name": "x",
        "title": "X, 1 GB",
        "memory_bytes": 1,
        "peak_flops": {},
        "memory_bandwidth": 1.0,
        "link_bandwidth": 1.0,
    }
    with pytest.raises(ConfigError, match=sentence):
        Accelerator(**{**fields, "source": "a test", **changes})


def test_every_gpu_is_in_some_cluster():
    assert cluster_of(load_accelerator("a100-80")) == CLUSTERS["a100-8"]
    lone = cluster_of(load_accelerator("rtx4090"))
    assert (lone.name, lone.gpus_per_node) == ("rtx4090-8", 8)
    assert lone.intra_bandwidth == NVLINK_REACHED * lone.accelerator.link_bandwidth
