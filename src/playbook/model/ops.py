"""What a model computes between its matrix products: norms, activations, rotary positions, attention, the loss.

A model takes these operations as one object. `Ops` has them as PyTorch computes them, operator by operator, attention
alone in one kernel; what the kernels' lab has in their place does each in one pass, and keeps less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import device as Device  # a method here is called torch
from torch._subclasses.fake_tensor import FakeTensor

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.model.attend import BlockAttention, best
from playbook.registry import lab, places

IGNORE = -100  # a target with this value counts neither in the loss nor in the number of tokens


class Ops:
    """The operations as PyTorch computes them."""

    #: Whether the output head gives losses at once, so that no logits are kept (`linear_losses`).
    fuses_head = False

    @staticmethod
    def torch() -> Ops:
        """PyTorch's."""
        return TORCH_OPS

    @staticmethod
    def fused() -> Ops:
        """The book's kernels. Raises ConfigError where Triton is not installed."""
        return Ops.named("fused")

    @staticmethod
    def named(name: str) -> Ops:
        """torch or fused; raises ConfigError for another name, and as `fused` does."""
        if name == "torch":
            return TORCH_OPS
        if name not in places("kernels"):
            raise ConfigError(unknown("kernels", name, ("torch", *places("kernels"))))
        return lab("kernels", name)()

    def check(self, device: Device | str | None) -> None:
        """Raise ConfigError for a device that these operations do not run on."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """(x − mean) / sqrt(var + eps) · weight + bias over the last dim: (…, h) -> (…, h)."""
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) · weight over the last dim: (…, h) -> (…, h), in the dtype of x."""
        if x.is_cuda and x.dtype == weight.dtype:
            return F.rms_norm(x, weight.shape, weight, eps)
        return RMSNormFunction.apply(x, weight, eps)

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """x + y, and its norm: (b, s, h) each."""
        x = x + y
        return x, norm(x)

    def gated(self, pair: Iterator[Tensor], activation: str) -> Tensor:
        """activation(gate) · up, for what ``pair`` computes one after the other: gate and up (…, f) -> (…, f)."""
        # The gate's activation comes before up: so backward is done with up's gradient before it needs the gate's.
        return activate(next(pair), activation) * next(pair)

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Each head of x (b, s, heads, d) turned by the angles of its position; cos and sin are (s, d)."""
        return apply_rotary(x, cos, sin)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: Any = True
    ) -> Tensor:
        """softmax(q·kᵀ/√d + mask)·v that keeps no (s, s) matrix, with sizes as `reference_attention` has them."""
        if not isinstance(causal, bool):
            return lab("documents", "attention")(q, k, v, causal, self)
        return sdpa_attention(q, k, v, p, training, causal)

    def block_attention(self, q: Tensor) -> BlockAttention:
        """What attends to a block of keys, whose results are merged with those of others, for queries like ``q``."""
        return best(q)

    def linear_losses(self, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Sum of the token losses of x·Wᵀ in fp32: (b, s, h), (vocab, h), (b, s) -> ()."""
        return token_losses(F.linear(x, weight).flatten(0, 1), targets.flatten())

    #: The loss of a rank's columns of the logits (n, columns), which are of ``words``, over the ranks of a
    #: group: logits, targets (n,), words, group -> (). None is the one of `parallel.tensor`.
    vocab_losses: Callable[[Tensor, Tensor, range, Any], Tensor] | None = None
    adamw: Callable[..., None] | None = None  #: What updates masters on a GPU in one pass; None is PyTorch.


TORCH_OPS = Ops()


def activate(x: Tensor, kind: str) -> Tensor:
    """GELU (the tanh form of GPT-2), ReLU or SiLU."""
    if kind == "gelu":
        return F.gelu(x, approximate="tanh")
    return F.relu(x) if kind == "relu" else F.silu(x)


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout that saves a one-byte mask on every device (plain CPU dropout saves a mask in the dtype of ``x``)."""
    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


class RMSNormFunction(torch.autograd.Function):
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


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head of ``x`` (b, s, heads, d) by the angles of its position; cos and sin are (s, d).

    Computed in fp32 whatever the dtype of ``x``: at position 4 096 a bf16 angle is already off by whole turns.
    Saves nothing for backward but cos and sin, because a rotation is linear in ``x``.
    """
    cos, sin = cos[:, None], sin[:, None]  # (s, 1, d)
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * cos + turned * sin).to(x.dtype)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: Any = True
) -> Tensor:
    """softmax(q·kᵀ/√d + causal mask)·v as the formula says, with every (s, s) matrix in memory.

    q is (b, heads, s, d); k is (b, kv_heads, s, d) and v (b, kv_heads, s, e), each serving heads/kv_heads neighbouring
    query heads; returns (b, heads, s, e). ``causal`` may be `documents.pieces.Documents`, which keep to themselves.
    """
    b, heads, s, d = q.shape
    kv_heads = k.shape[1]
    # Query heads that share a key are rows of one product: the keys and values need not be repeated.
    q = (q * d**-0.5).reshape(b, kv_heads, -1, d)  # (b, kv, heads/kv · s, d)
    scores = (q @ k.transpose(-2, -1)).view(b, heads, s, s)
    if causal:
        scores = scores + torch.full((s, s), float("-inf"), dtype=scores.dtype, device=scores.device).triu(1)
    if not isinstance(causal, bool):
        scores = scores.masked_fill(lab("documents", "hidden")(causal, q.device), float("-inf"))
    weights = dropout(torch.softmax(scores, dim=-1), p, training)  # (b, heads, s, s)
    return (weights.view(b, kv_heads, -1, s) @ v).view(b, heads, s, -1)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
) -> Tensor:
    """The same attention through ``scaled_dot_product_attention``: flash kernels keep no (s, s) matrix.

    The CPU has no such kernel with dropout: torch would fall back to the formula with a mask of floats, ours keeps bytes.
    """
    if p and training and not q.is_cuda:
        return reference_attention(q, k, v, p, training, causal)
    if q.is_cuda and q.dtype == torch.float32 and q.shape[1] != k.shape[1]:
        # Flash kernels are for 16 bits, and the one that takes fp32 (memory-efficient) knows no groups: torch would fall
        # back to the formula.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    width = v.shape[-1]
    if width < q.shape[-1]:  # flash kernels take values as wide as keys alone
        v = F.pad(v, (0, q.shape[-1] - width))
    y = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, dropout_p=p if training else 0.0, enable_gqa=q.shape[1] != k.shape[1]
    )
    return y if y.shape[-1] == width else y[..., :width]


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the losses of all tokens that count, in fp32: (n, vocab) and (n,) -> ()."""
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")


def check_words(tokens: Tensor, vocab: int, ignored: int | None = None) -> None:
    """Raise IndexError for a token that is none of the vocabulary's. Not on a GPU: to look there is to wait for it."""
    if tokens.device.type != "cpu" or isinstance(tokens, FakeTensor) or not tokens.numel():
        return
    low, high = (int(t) for t in tokens.aminmax())
    if high >= vocab or (low < 0 and low != ignored):
        raise IndexError(f"word {high if high >= vocab else low} is out of range: the vocabulary has {vocab}")
