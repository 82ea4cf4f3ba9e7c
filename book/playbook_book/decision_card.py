"""Which technique to take when: questions in their order, and what each answer needs on clusters of one's choice.

The thresholds are those of the chapters: a GPU reaches half of its peak in bf16, links reach what the cluster's file
says, gradients travel in fp32, and nothing is known of the model but what a row names. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from playbook.hardware import Cluster
from playbook.layout import Layout
from playbook.planning.jobs import answer
from playbook.shapes import MoE, load
from playbook_book.overlap_ratios import Overlap, context, expert, group_bandwidth, tensor, zero3

#: Header of the card, up to the columns of the clusters.
HEADER = "ask, in this order", "if so, take", "which needs"
TOKENS = 8192  # of a micro-batch, in a ratio that does not depend on it or is proportional to it
STATES = 16  # bytes of a parameter, its gradient and Adam's states in mixed precision


def card(clusters: Mapping[str, Cluster]) -> list[list[str]]:
    """Rows of the card: question, technique, what it needs, and that number on each of ``clusters``, which has names."""
    rows: list[tuple[str, str, str, Callable[[Cluster], float | str]]] = [
        (
            "Do whole states, 16Ψ, fit in half of a GPU?",
            "DP (ZeRO-1: up to 4 times)",
            "parameters, at most",
            parameters_of_a_gpu,
        ),
        ("If not: spread over all GPUs?", "ZeRO-3 (FSDP)", "tokens per GPU and micro-batch", tokens_of_zero3),
        (
            "No memory for a sample's activations, or fewer samples than GPUs?",
            "TP + SP in a node: 2, 4, then 8; not 16",
            "width of the model, for tp = 8",
            width_of_tensor,
        ),
        (
            "Too few tokens or GPUs for ZeRO-3?",
            "PP across nodes, ZeRO-1",
            "micro-batches: waits 10 % of work",
            lambda _: "10 (p − 1)/v",
        ),
        ("Sample too long for tp = 8?", "CP, zigzag", "tokens of a rank, between nodes", tokens_of_context),
        ("Experts too many for a GPU?", "EP in a node", "width of experts", width_of_experts),
        ("… or for a node?", "EP over nodes", "width of experts, or DeepSeek-V3's steps", width_over_nodes),
        ("Still no memory?", "full recomputation", "share of the longer step", price_of_recomputation),
    ]
    return [[*words, *(_written(of(one)) for one in clusters.values())] for *words, of in rows]


def _written(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value / 1e9:.1f}B" if value >= 1e8 else f"{value:,.0f}" if value >= 1 else f"{value:.0%}"


def _ratio(cluster: Cluster, one: Overlap, layout: Layout, axis: str) -> float:
    """Time to send over time to compute meanwhile, on the links of the layout's ``axis``."""
    speed = 0.5 * cluster.accelerator.peak("bf16")
    return one.ratio(peak_flops=speed, bandwidth=group_bandwidth(cluster, layout, axis))


def parameters_of_a_gpu(cluster: Cluster) -> float:
    """Parameters whose states take half of a GPU's memory, and leave the other half to activations."""
    return cluster.accelerator.memory_bytes / 2 / STATES


def tokens_of_zero3(cluster: Cluster) -> float:
    """Tokens from which on ZeRO-3 hides in backward over eight whole nodes, whatever a block's weights.

    Beside tp ranks in each node it is a tenth fewer at most: a micro-batch needs tp times the tokens, which tp ranks
    share.
    """
    layout = Layout(dp=64, zero=3)
    return TOKENS * _ratio(cluster, zero3(load("llama3-70b"), layout, TOKENS, backward=True), layout, "dp")


def width_of_tensor(cluster: Cluster) -> float:
    """Width from which on a block's products take as long as its messages with tp = 8 in a node.

    FLOPs grow with the square of the width, bytes with the width; proportions are those of Llama 3 8B.
    """
    shape, layout = load("llama3-8b"), Layout(tp=8, sp=True)
    return shape.hidden * _ratio(cluster, tensor(shape, layout, TOKENS), layout, "tp")


def tokens_of_context(cluster: Cluster) -> float:
    """Tokens from which on a ring between nodes hides in backward, with eight query heads to a key head."""
    layout = Layout(cp=16)
    one = context(load("llama3-70b"), layout, 16 * TOKENS, backward=True)
    return TOKENS * _ratio(cluster, one, layout, "cp")


def width_of_experts(cluster: Cluster) -> float:
    """Width from which on gated experts take as long as the messages of their rows, in a node."""
    shape, layout = load("mixtral-8x7b"), Layout(dp=8, ep=8)
    return _experts(shape.moe) * _ratio(cluster, expert(shape, layout, TOKENS), layout, "ep")


def width_over_nodes(cluster: Cluster) -> float:
    """The same over eight nodes, where each row is sent alone."""
    shape, layout = load("deepseek-v3"), Layout(dp=64, ep=64)
    return _experts(shape.moe) * _ratio(cluster, expert(shape, layout, TOKENS, node=8), layout, "ep")


def _experts(moe: MoE | None) -> int:
    assert moe is not None
    return moe.ffn


def price_of_recomputation(cluster: Cluster) -> float:
    """The share of a step that it takes, by the simulator: Llama 3 70B on 64 GPUs, which have room without it."""
    job = {"model": "llama3-70b", "cluster": cluster.name, "gpus": 64, "global_batch": 256}
    full, none = (
        answer({**job, "layout": f"tp=8,sp,pp=2,zero=1,recompute={kind}"})["step_s"]
        for kind in ("full", "none")
    )
    return 1 - none / full
