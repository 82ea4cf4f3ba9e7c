"""The card of thresholds: each from its formula, without the library's count of a block."""

from __future__ import annotations

import pytest

from playbook.hardware import CLUSTERS, Cluster
from playbook_book.decision_card import (
    HEADER,
    card,
    parameters_of_a_gpu,
    price_of_recomputation,
    tokens_of_context,
    tokens_of_zero3,
    width_of_experts,
    width_of_tensor,
    width_over_nodes,
)

NAMES = {"A100": "a100-8", "H100": "h100-8", "B200": "b200-8"}
PAGE = {gpu: CLUSTERS[name] for gpu, name in NAMES.items()}


def balance(cluster: Cluster, bandwidth: float) -> float:
    """FLOPs that half of a GPU's peak computes in the time of a byte."""
    return 0.5 * cluster.accelerator.peak("bf16") / bandwidth


@pytest.mark.parametrize("cluster", PAGE.values(), ids=PAGE)
def test_thresholds_are_those_of_the_formulas(cluster: Cluster) -> None:
    nvlink, adapter = cluster.intra_bandwidth, cluster.inter_bandwidth
    # Backward of 4Pt FLOPs; weights in two bytes and gradients in four, over one ring with eight adapters or NVLink:
    slowest = min(8 * adapter, nvlink)
    assert tokens_of_zero3(cluster) == pytest.approx(63 / 64 * 6 / 4 * balance(cluster, slowest), rel=1e-3)
    # A ring's messages have forward's two parts and, in four bytes, gradients; five products for two, causal:
    assert tokens_of_context(cluster) == pytest.approx(1.2 * 2 / 8 * balance(cluster, adapter), rel=1e-3)
    # P/(4h·7) with P/h² of Llama 3 8B:
    assert width_of_tensor(cluster) == pytest.approx(28 / 13 * balance(cluster, nvlink), rel=1e-3)
    assert width_of_experts(cluster) == pytest.approx(7 / 8 * 2 / 3 * balance(cluster, nvlink), rel=1e-3)
    assert width_over_nodes(cluster) == pytest.approx(56 / 64 * 2 / 3 * balance(cluster, adapter), rel=1e-3)


def test_states_take_half_of_a_gpu() -> None:
    one = CLUSTERS["h100-8"]
    assert 16 * parameters_of_a_gpu(one) == one.accelerator.memory_bytes / 2


def test_recomputation_costs_a_pass_of_four() -> None:
    assert 0.2 < price_of_recomputation(CLUSTERS["h100-8"]) < 0.3


def test_the_card_has_a_number_for_each_cluster() -> None:
    rows = card(PAGE)
    assert all(len(row) == len(HEADER) + len(PAGE) and all(row) for row in rows)
    assert [row[-2] for row in rows if row[1].startswith("ZeRO-3")] == ["2,028"]  # as Overlap prints
