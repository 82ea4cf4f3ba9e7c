"""What expert parallelism asks of a model. Its groups of ranks are in ``Layout.groups``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playbook._checks import check_divides
from playbook.errors import LayoutError

if TYPE_CHECKING:
    from playbook.layout.layout import Layout
    from playbook.layout.options import ParallelOptions
    from playbook.shapes import ModelShape


def check(shape: ModelShape, layout: Layout, options: ParallelOptions, seq: int | None = None) -> None:
    """Raise LayoutError unless each rank gets as many experts as any other, and routers count no padding."""
    moe = shape.moe
    if moe is None:
        if layout.ep > 1:
            raise LayoutError(f"ep must be 1 for a model without experts, got {layout.ep}")
        return
    check_divides("ep", layout.ep, "moe.experts", moe.experts, LayoutError)
    if layout.ep > 1 and options.dispatch == "two-step":
        if options.node is None:
            raise LayoutError(
                "dispatch is 'two-step', which needs node: the ranks of ep that are in one node"
            )
        check_divides("node", options.node, "ep", layout.ep, LayoutError)
    counting = [name for name in ("capacity", "balance_loss", "bias_rate") if getattr(moe, name)]
    if seq is not None and counting and layout.padded(seq) != seq:
        raise LayoutError(
            f"seq must be a multiple of {layout.padded(1)} for this layout, because the router counts tokens "
            f"(moe.{counting[0]}), and padding is none: got {seq}"
        )
