"""What tensor and sequence parallelism ask of a model: whole heads and equal shares. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playbook._checks import check_divides
from playbook.errors import LayoutError

if TYPE_CHECKING:
    from playbook.layout.layout import Layout
    from playbook.layout.options import ParallelOptions
    from playbook.shapes import ModelShape


def check(shape: ModelShape, layout: Layout, options: ParallelOptions) -> None:
    """Raise LayoutError unless each rank gets whole heads and an equal share of the MLP."""
    if layout.sp and layout.tp == 1:
        raise LayoutError(
            "sp splits the sequence over tensor-parallel ranks: it needs tp above 1, got tp = 1"
        )
    tp, kv_heads = layout.tp, shape.n_kv_heads
    check_divides("tp", tp, "heads", shape.heads, LayoutError)
    # Beyond one kv head per rank, ranks hold copies: whole copies only.
    if kv_heads % tp and tp % kv_heads:
        raise LayoutError(f"tp must divide kv_heads = {kv_heads} or be a multiple of it, got {tp}")
    if "dense" in shape.blocks():
        check_divides("tp", tp, "ffn", shape.ffn_dim, LayoutError)
    if shape.moe is not None:
        check_divides("tp", tp, "moe.ffn", shape.moe.ffn, LayoutError)
    if options.tensor_overlap == "chunked" and tp > 1 and not layout.sp:
        raise LayoutError(
            "tensor_overlap is 'chunked', which takes gathers of tokens apart: it needs sp in the layout"
        )
