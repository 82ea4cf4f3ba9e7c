"""The MLP of a block: GPT-2's two matrices, or the three of a gated one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from playbook.model.attention import dropout
from playbook.model.linear import Linear, linears
from playbook.shapes import ModelShape


def activate(x: Tensor, kind: str) -> Tensor:
    """GELU (the tanh form of GPT-2), ReLU or SiLU."""
    if kind == "gelu":
        return F.gelu(x, approximate="tanh")
    return F.relu(x) if kind == "relu" else F.silu(x)


class MLP(nn.Module):
    """down(act(up(x))), or gated (Shazeer 2020): down(act(gate(x)) · up(x))."""

    def __init__(self, shape: ModelShape, width: int | None = None, p: float | None = None):
        """``width`` and ``p``, of dropout, are the shape's unless they are given."""
        super().__init__()
        width = shape.ffn_dim if width is None else width
        self.activation, self.p = shape.activation, shape.dropout if p is None else p
        self.up = Linear(shape.hidden, width, bias=shape.bias)
        self.gate = Linear(shape.hidden, width, bias=shape.bias) if shape.gated else None
        self.down = Linear(width, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:  # (b, s, h) -> (b, s, h)
        if self.gate is None:
            y = activate(self.up(x), self.activation)  # (b, s, ffn)
        else:
            each = linears(x, (self.gate, self.up))
            # The gate's activation comes before up: so backward is done with up's gradient before it needs the gate's.
            y = activate(next(each), self.activation) * next(each)  # (b, s, ffn)
        return dropout(self.down(y), self.p, self.training)
