"""The MLP of a block: GPT-2's two matrices, or the three of a gated one."""

from __future__ import annotations

from torch import Tensor, nn

from playbook.model.linear import Linear, linears
from playbook.model.ops import TORCH_OPS, Ops, activate, dropout
from playbook.shapes import ModelShape


class MLP(nn.Module):
    """down(act(up(x))), or gated (Shazeer 2020): down(act(gate(x)) · up(x))."""

    def __init__(
        self, shape: ModelShape, width: int | None = None, p: float | None = None, ops: Ops = TORCH_OPS
    ):
        """``width`` and ``p``, of dropout, are the shape's unless they are given."""
        super().__init__()
        width, self.ops = shape.ffn_dim if width is None else width, ops
        self.activation, self.p = shape.activation, shape.dropout if p is None else p
        self.up = Linear(shape.hidden, width, bias=shape.bias)
        self.gate = Linear(shape.hidden, width, bias=shape.bias) if shape.gated else None
        self.down = Linear(width, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, h) -> (b, s, h)
        if self.gate is None:
            y = activate(self.up(x), self.activation)  # (b, s, ffn)
        else:
            y = self.ops.gated(linears(x, (self.gate, self.up)), self.activation)  # (b, s, ffn)
        return dropout(self.down(y), self.p, self.training)
