"""The two normalisations of a transformer, each saving for backward no more than it must."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from playbook.model.ops import TORCH_OPS, Ops
from playbook.shapes import ModelShape


class LayerNorm(nn.Module):
    """y = (x − mean) / sqrt(var + eps) · weight + bias over the last dim (Ba et al. 2016).

    Saves its input and two statistics per token.
    """

    def __init__(self, size: int, eps: float = 1e-5, bias: bool = True, ops: Ops = TORCH_OPS):
        super().__init__()
        self.eps, self.ops = eps, ops
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, h)
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · weight over the last dim (Zhang & Sennrich 2019).

    Saves its input and one statistic per token, on every device, and returns the dtype of its input: torch's fused kernel
    does so on CUDA, but its CPU version also keeps the normalised copy, which would double the norm's share of activation
    memory; and autocast would have it return, and keep, 16-bit queries and keys as fp32.
    """

    def __init__(self, size: int, eps: float = 1e-5, ops: Ops = TORCH_OPS):
        super().__init__()
        self.eps, self.ops = eps, ops
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, h)
        return self.ops.rms_norm(x, self.weight, self.eps)


def make_norm(shape: ModelShape, ops: Ops = TORCH_OPS) -> nn.Module:
    """The norm named by ``shape.norm``, over a token of the residual stream."""
    if shape.norm == "layernorm":
        return LayerNorm(shape.hidden, shape.norm_eps, shape.bias, ops)
    return RMSNorm(shape.hidden, shape.norm_eps, ops)
