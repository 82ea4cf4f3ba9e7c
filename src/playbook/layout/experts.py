"""What expert parallelism asks of a model. Its groups of ranks are in ``Layout.groups``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playbook._checks import check_divides
from playbook.errors import LayoutError

if TYPE_CHECKING:
    from playbook.layout.layout import Layout
    from playbook.shapes import ModelShape


def check(shape: ModelShape, layout: Layout) -> None:
    """Raise LayoutError unless each rank gets as many experts as any other."""
    if layout.ep == 1:
        return
    if shape.moe is None:
        raise LayoutError(f"ep must be 1 for a model without experts, got {layout.ep}")
    check_divides("ep", layout.ep, "moe.experts", shape.moe.experts, LayoutError)
