"""Context parallelism: each rank has some of the tokens of every sample, in attention too.

Only attention mixes tokens. There, keys and values travel: around a ring, while each rank computes with those that it has
(Liu et al. 2023, arXiv 2310.01889); all at once to everybody (Llama 3, arXiv 2407.21783, section 3.3.2); or the other
way round, tokens for heads (Ulysses, Jacobs et al. 2023, arXiv 2309.14509).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.layout.tokens import MaskBlock, TokenRanges, placement_of
from playbook.model.attend import OnlineSoftmax
from playbook.model.linear import linear_layers
from playbook.model.ops import TORCH_OPS, Ops
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Ring, all_gather, reduce_scatter
from playbook.parallel.sequence import Crossing
from playbook.parallel.stages import own_blocks


class RankTokens(TokenRanges):
    """Which tokens of a sample a rank has, and which blocks of the mask it computes, as ``layout/tokens.py`` says."""

    def positions(self, rank: int, device: torch.device | None = None) -> Tensor:
        """The positions of a rank's tokens, (seq / ranks,), in order; made on ``device``: no copy is waited for."""
        return torch.cat([torch.arange(part.start, part.stop, device=device) for part in self.ranges(rank)])


def ring_forward(
    q: Tensor, k: Tensor, v: Tensor, ring: Ring, placement: RankTokens, ops: Ops = TORCH_OPS
) -> tuple[Tensor, Tensor]:
    """Attention of this rank's queries to all keys: output (b, heads, s/c, d), log-sum-exp (b, heads, s/c). No graph.

    While a rank computes with the keys and values that it has, it sends them on and receives the next ones.
    """
    found = OnlineSoftmax(ops.block_attention(q).forward)
    kv = torch.stack([k, v])
    for step in range(ring.ranks):
        coming = ring.pass_on(kv) if step + 1 < ring.ranks else kv
        for block in placement.blocks(ring.rank, ring.source(step)):
            found.add(block, q, kv[0], kv[1])
        ring.arrive()
        kv = coming
    return found.result(q.dtype)


def ring_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    ring: Ring,
    placement: RankTokens,
    ops: Ops = TORCH_OPS,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv. Keys and values go around once more, and their gradients follow them, a step behind.

    A rank adds what it owes to its own keys when everything else has come home: so both make ranks − 1 steps.
    """
    backward = ops.block_attention(q).backward
    dq = torch.zeros_like(q, dtype=torch.float32)
    kv, own = torch.stack([k, v]), torch.zeros(2, *k.shape, device=k.device)
    coming, part = kv, own
    travelling: Tensor | None = None
    for step in range(ring.ranks):
        coming = ring.pass_on(kv) if step + 1 < ring.ranks else kv
        part = own if step == 0 else torch.zeros_like(own)
        for block in placement.blocks(ring.rank, ring.source(step)):
            add(block, backward(block, gradient, q, kv[0], kv[1], out, lse), dq, part[0], part[1])
        ring.arrive()
        if step:  # what the ranks before this one owe to these keys has arrived by now
            total = part if travelling is None else travelling.add_(part)
            travelling = ring.pass_on(total)
        kv = coming
    ring.arrive()
    if travelling is not None:
        own += travelling
    return dq.to(q.dtype), own[0].to(k.dtype), own[1].to(v.dtype)


def add(block: MaskBlock, parts: tuple[Tensor, Tensor, Tensor], dq: Tensor, dk: Tensor, dv: Tensor) -> None:
    """Add a block's gradients where they belong."""
    block.queries(dq).add_(parts[0])
    block.keys(dk).add_(parts[1])
    block.keys(dv).add_(parts[2])


def gather_forward(
    q: Tensor, k: Tensor, v: Tensor, ring: Ring, placement: RankTokens, ops: Ops = TORCH_OPS
) -> tuple[Tensor, Tensor]:
    """The naive twin of `ring_forward`: all keys and values at once."""
    found = OnlineSoftmax(ops.block_attention(q).forward)
    kv = _gathered(torch.stack([k, v]), ring.group)
    for source in map(ring.source, range(ring.ranks)):  # one's own first: all queries see some of them
        for block in placement.blocks(ring.rank, source):
            found.add(block, q, *kv[source])
    return found.result(q.dtype)


def gather_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, ring: Ring, placement: RankTokens,
    ops: Ops = TORCH_OPS,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """That of `ring_backward`: what is saved is this rank's own, and is gathered again."""
    backward, kv = ops.block_attention(q).backward, _gathered(torch.stack([k, v]), ring.group)
    dq, dkv = torch.zeros_like(q, dtype=torch.float32), torch.zeros_like(kv, dtype=torch.float32)
    for source in range(ring.ranks):
        for block in placement.blocks(ring.rank, source):
            k, v = kv[source]
            add(block, backward(block, gradient, q, k, v, out, lse), dq, dkv[source, 0], dkv[source, 1])
    own = torch.empty_like(dkv[0])
    reduce_scatter(own.view(-1), dkv.view(-1), ring.group)
    return dq.to(q.dtype), own[0].to(k.dtype), own[1].to(v.dtype)


def _gathered(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(…) of each rank -> (ranks, …)."""
    whole = own.new_empty(group.size(), *own.shape)
    all_gather(whole.view(-1), own.contiguous().view(-1), group)
    return whole


class _Attention(torch.autograd.Function):
    """What a core computes forward, and what backward."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, core: _Core, tokens: RankTokens) -> Tensor:
        out, lse = core.forward(q, k, v, core.ring, tokens, core.ops)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.core, ctx.tokens = core, tokens
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        core = ctx.core
        found = core.backward(gradient, *ctx.saved_tensors, core.ring, ctx.tokens, core.ops)
        return *found, None, None


class _Core:
    """An attention core, as `model.ops.Ops.attention`, for this rank's tokens; keys are on all ranks of a group."""

    forward: Any
    backward: Any

    def __init__(self, group: dist.ProcessGroup, placement: str, ops: Ops = TORCH_OPS):
        self.group, self.placement, self.ring, self.ops = group, placement, Ring(group), ops

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: Any = True
    ) -> Tensor:
        n, width = self.ring.ranks, v.shape[-1]
        if width < q.shape[-1]:  # keys and values travel as one
            v = F.pad(v, (0, q.shape[-1] - width))
        joined = isinstance(causal, bool)
        tokens = RankTokens(self.placement, q.shape[2] * n, n, causal) if joined else causal
        y = _Attention.apply(q, k, v, self, tokens)
        return y if y.shape[-1] == width else y[..., :width]


class RingCore(_Core):
    """Keys and values come around a ring while this rank computes."""

    forward, backward = staticmethod(ring_forward), staticmethod(ring_backward)


class GatherCore(_Core):
    """All keys and values are here before this rank begins."""

    forward, backward = staticmethod(gather_forward), staticmethod(gather_backward)


def _swap(x: Tensor, group: dist.ProcessGroup, to_heads: bool) -> Tensor:
    """(b, heads, s/c, d) -> (b, heads/c, s, d) or, not ``to_heads``, the way back: one all-to-all.

    In memory results are (b, s, heads, d), as projections make and read them.
    """
    n, (b, heads, s, d) = group.size(), x.shape
    x = x.transpose(1, 2)  # (b, s, heads, d)
    if to_heads:
        sent = x.unflatten(2, (n, -1)).movedim(2, 0).contiguous()  # a part of the heads for each rank
    else:
        sent = x.unflatten(1, (n, -1)).movedim(1, 0).contiguous()  # a part of the tokens for each
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    got = got.movedim(0, 1) if to_heads else got.movedim(0, 2)  # (b, n, s, …) or (b, s, n, …): ranks in order
    tokens, heads = (n * s, heads // n) if to_heads else (s // n, n * heads)
    return got.reshape(b, tokens, heads, d).transpose(1, 2)


#: All heads of some tokens for some heads of all tokens, and back.
_HEADS, _TOKENS = (partial(_swap, to_heads=to_heads) for to_heads in (True, False))


class UlyssesCore:
    """Attention to all tokens by some of the heads: four all-to-alls forward, four backward, and any core inside.

    The core wants the tokens in order: ranks have contiguous parts.
    """

    def __init__(self, group: dist.ProcessGroup, core: Any):
        self.group, self.core = group, core

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: Any = True
    ) -> Tensor:
        q, k, v = (Crossing.apply(x, self.group, _HEADS, _TOKENS) for x in (q, k, v))
        y = self.core(q, k, v, p, training, causal if isinstance(causal, bool) else causal.whole)
        return Crossing.apply(y, self.group, _TOKENS, _HEADS)


def share_context(
    model: Transformer, group: dist.ProcessGroup, context: str = "ring", placement: str | None = None
) -> None:
    """Let attention of ``model`` reach the tokens of all ranks of ``group``, which lie as ``placement`` says.

    Raises ConfigError for unknown names. Blocks of attention drop nothing: `Layout.check` asks for a model without.
    """
    placement = placement_of(context, placement)
    for layer in linear_layers(model):
        layer.products.over(group, "x", "dy")
    for _, block in own_blocks(model):
        attention: Any = block.attention
        if context == "ulysses":
            attention.core = UlyssesCore(group, attention.core)
        else:
            attention.core = {"ring": RingCore, "gather": GatherCore}[context](group, placement, model.ops)
