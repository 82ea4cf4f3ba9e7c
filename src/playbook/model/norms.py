"""The two normalisations of a transformer, each saving for backward no more than it must."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """y = (x − mean) / sqrt(var + eps) · weight + bias over the last dim (Ba et al. 2016).

    Saves its input and two statistics per token.
    """

    def __init__(self, size: int, eps: float = 1e-5, bias: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, h)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · weight over the last dim (Zhang & Sennrich 2019).

    Saves its input and one statistic per token, on every device, and returns the dtype of its input: torch's fused kernel
    does so on CUDA, but its CPU version also keeps the normalised copy, which would double the norm's share of activation
    memory; and autocast would have it return, and keep, 16-bit queries and keys as fp32.
    """

    def __init__(self, size: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, h)
        if x.is_cuda and x.dtype == self.weight.dtype:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return _RMSNorm.apply(x, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """With n = x·r and r = 1/sqrt(mean(x²) + eps):  dx = r·(g − n·mean(g·n)) where g = dy·weight, dweight = Σ dy·n."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)  # (…, 1), fp32
        ctx.save_for_backward(x, weight, rstd)
        return ((x.float() * rstd) * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, dy: Tensor):
        x, weight, rstd = ctx.saved_tensors
        n, dy = x.float() * rstd, dy.float()
        g = dy * weight
        dx = rstd * (g - n * (g * n).mean(-1, keepdim=True))
        dweight = (dy * n).flatten(0, -2).sum(0)
        return dx.to(x.dtype), dweight.to(weight.dtype), None


def make_norm(kind: str, size: int, eps: float, bias: bool) -> nn.Module:
    """The norm named by ``ModelShape.norm``."""
    return LayerNorm(size, eps, bias) if kind == "layernorm" else RMSNorm(size, eps)
