"""Accelerators and clusters: numbers of datasheets and drivers that must not drift, and clear refusals."""

import pytest

from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS, CLUSTERS, Accelerator, load, load_accelerator


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
    with pytest.raises(ConfigError, match="unknown accelerator 'v1'; known: a100-40"):
        load_accelerator("v1")
    with pytest.raises(
        ConfigError, match="cluster 'h100' is a single accelerator; a cluster of it is h100-8"
    ):
        load("h100")
    with pytest.raises(ConfigError, match="cluster 'cpu' is a single accelerator; clusters are a100-8"):
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
