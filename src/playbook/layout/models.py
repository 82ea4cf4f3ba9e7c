"""What tensor, sequence and expert parallelism ask of a model: whole heads, equal shares, as many experts each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playbook._checks import check_divides
from playbook.errors import LayoutError
from playbook.layout.fields import Fields

if TYPE_CHECKING:
    from playbook.shapes import ModelShape


def check_tensor(shape: ModelShape, layout: Fields) -> None:
    """Raise LayoutError unless each rank gets whole heads and an equal share of the MLP."""
    if layout.sp and layout.tp == 1:
        raise LayoutError(
            "sp splits the sequence over tensor-parallel ranks: it needs tp above 1, got tp = 1"
        )
    if shape.recurrent:
        shape.recurrent.check(layout)
    tp, kv_heads = layout.tp, shape.n_kv_heads
    check_divides("tp", tp, "heads", shape.heads, LayoutError)
    # Beyond one kv head per rank, ranks hold copies: whole copies only.
    if kv_heads % tp and tp % kv_heads:
        raise LayoutError(f"tp must divide kv_heads = {kv_heads} or be a multiple of it, got {tp}")
    if shape.moe is None or shape.moe.dense_layers or shape.moe.every > 1:
        check_divides("tp", tp, "ffn", shape.ffn_dim, LayoutError)
    if shape.moe is not None:
        check_divides("tp", 1 if layout.etp else tp, "moe.ffn", shape.moe.ffn, LayoutError)
    if layout.tensor_overlap == "chunked" and tp > 1 and not layout.sp:
        raise LayoutError("tensor_overlap is 'chunked', which takes gathers of tokens apart: it needs sp")
    if layout.tensor_overlap == "chunked" and tp > 1 and shape.train != "full":
        raise LayoutError(f"tensor_overlap is 'chunked', but train={shape.train} goes without: take async")


def check_experts(shape: ModelShape, layout: Fields, seq: int | None = None) -> None:
    """Raise LayoutError unless each rank gets as many experts as any other, and routers count no padding."""
    moe = shape.moe
    if moe is None:
        if layout.ep > 1:
            raise LayoutError(f"ep must be 1 for a model without experts, got {layout.ep}")
        if layout.etp:
            raise LayoutError(f"etp must be left out for a model without experts, got {layout.etp}")
        return
    if layout.etp and (layout.ep == 1 or layout.schedule == "dualpipe"):
        raise LayoutError(
            "etp = 1 spreads experts over tp: it needs ep above 1, and another schedule than dualpipe"
        )
    check_divides("ep", layout.ep, "moe.experts", moe.experts, LayoutError)
    if layout.ep > 1 and layout.dispatch == "two-step":
        if layout.node is None:
            raise LayoutError("dispatch is 'two-step', which needs node: the ranks of ep in a node")
        check_divides("node", layout.node, "ep", layout.ep, LayoutError)
    counting = [name for name in ("capacity", "balance_loss", "bias_rate") if getattr(moe, name)]
    if seq is not None and counting and layout.padded(seq) != seq:
        raise LayoutError(
            f"seq must be a multiple of {layout.padded(1)} for this layout, because the router counts tokens "
            f"(moe.{counting[0]}), and padding is none: got {seq}"
        )
