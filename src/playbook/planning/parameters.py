"""How many parameters one rank holds: the breakdown of ``shapes`` cut by tensor, expert and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from playbook.layout import Layout
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class StateCounts:
    """Parameters of one rank: ``local`` all that it computes with, ``shard`` the share that ZeRO leaves it.

    ``largest_block`` is the largest single block on this rank, which ZeRO-3 gathers whole.
    """

    local: int
    shard: int
    largest_block: int
    parts: dict[str, int]


def stage_parameters(
    shape: ModelShape, layout: Layout, stage: int, blocks: Mapping[bool, int]
) -> StateCounts:
    """Parameters of a rank in pipeline stage ``stage`` with so many ``blocks`` without (False) and with experts (True).

    The first stage has the embedding (and positions), the last the final norm and the head; a tied head on another
    stage than the embedding needs a copy of the table there. Experts are replicated dp·cp/ep times, all else dp·cp times.
    """
    parts: dict[str, int] = {}
    experts = largest = 0
    for sparse, held in blocks.items():
        block, routed = _block(shape, layout.tp, layout.ep, sparse)
        for name, count in block.items():
            parts[name] = parts.get(name, 0) + count * held
        experts += routed * held
        largest = max(largest, sum(block.values()))
    table = -(-shape.vocab // layout.tp) * shape.hidden
    if stage == 0:
        parts["embedding"] = table
        if shape.positions == "learned":
            parts["positions"] = shape.max_seq * shape.hidden
    if stage == layout.pp - 1:
        parts["final norm"] = _final_norm(shape)
        if not shape.tied or layout.pp > 1:
            parts["head"] = table
    local, replicas = sum(parts.values()), layout.dp * layout.cp
    shard = -(-(local - experts) // replicas) + -(-experts // (replicas // layout.ep))
    return StateCounts(local, shard, largest, parts)


@cache
def _block(shape: ModelShape, t: int, ep: int, sparse: bool) -> tuple[dict[str, int], int]:
    """Parameters of one block on one rank by part, and how many of them belong to routed experts.

    Column-parallel matrices (query, key, value, up, gate) are cut with their biases; row-parallel ones (output, down)
    keep a whole bias on every rank. Key/value heads are copied where there are more ranks than heads.
    """
    h = shape.hidden
    whole = shape.layer_parameters(shape.layers - 1 if sparse else 0)
    if t == 1 and ep == 1:
        return whole, whole["mlp"] * shape.moe.experts // _experts(shape) if shape.moe and sparse else 0
    parts = {"attention": _attention(shape, t), "norms": whole["norms"]}
    bias = h if shape.bias else 0
    if shape.moe and sparse:
        one = _mlp(shape, shape.moe.ffn, t) + bias
        routed = one * (shape.moe.experts // ep)
        parts["mlp"] = routed + one * shape.moe.shared_experts
        parts["router"] = whole["router"]
        return parts, routed
    parts["mlp"] = _mlp(shape, shape.ffn_dim, t) + bias
    return parts, 0


@cache
def _final_norm(shape: ModelShape) -> int:
    return shape.parameters()["final norm"]


def _experts(shape: ModelShape) -> int:
    assert shape.moe
    return shape.moe.experts + shape.moe.shared_experts


def _attention(shape: ModelShape, t: int) -> int:
    h, heads = shape.hidden, shape.heads // t
    out = heads * shape.v_dim * h + (h if shape.bias else 0)
    if (
        shape.mla
    ):  # the down-projections to the latents are on every rank, the up-projections are cut by heads
        m = shape.mla
        queries = heads * shape.qk_dim
        query = m.q_rank * (h + queries) if m.q_rank else h * queries
        return query + h * (m.kv_rank + m.rope_dim) + m.kv_rank * heads * (m.nope_dim + m.value_dim) + out
    width = heads * shape.qk_dim + 2 * max(1, shape.n_kv_heads // t) * shape.qk_dim
    return h * width + (width if shape.qkv_bias else 0) + out


def _mlp(shape: ModelShape, ffn: int, t: int) -> int:
    """The matrices, and the biases of the column-parallel ones."""
    columns = 2 if shape.gated else 1
    return (columns + 1) * shape.hidden * (ffn // t) + (columns * (ffn // t) if shape.bias else 0)
