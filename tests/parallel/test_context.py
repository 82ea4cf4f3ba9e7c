"""Attention over several ranks is attention: blocks that merge in any order, rings, gathers, swaps; and shared work."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers import BLOCKS
from torch import Tensor

from playbook import launch
from playbook.errors import ConfigError
from playbook.layout.tokens import MaskBlock
from playbook.model import attend as attend_file
from playbook.model.attend import OnlineSoftmax, attend, attend_backward, flash, flash_backward
from playbook.model.attention import Attention
from playbook.model.ops import TORCH_OPS
from playbook.model.transformer import Transformer
from playbook.parallel.context import GatherCore, RankTokens, RingCore, UlyssesCore, add, share_context


def tensors(seed: int, b: int, heads: int, kv_heads: int, s: int, d: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [(heads, s), (kv_heads, s), (kv_heads, s), (heads, s)]  # q, k, v, gradient
    return [torch.randn(b, n, t, d, generator=generator) for n, t in sizes]


def whole(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, causal: bool) -> list[Tensor]:
    """Output, dq, dk, dv of one device."""
    q, k, v = (t.clone().requires_grad_() for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), gradient)]


CORES = {
    "ring": lambda group, placement: RingCore(group, placement),
    "gather": lambda group, placement: GatherCore(group, placement),
    "ulysses": lambda group, _: UlyssesCore(group, TORCH_OPS.attention),
}
KINDS = [(core, kind) for core in ("ring", "gather") for kind in ("contiguous", "zigzag")]


def compare(seed: int) -> float:
    """In a rank: the largest difference of any core to one device, over random shapes, by kernels and by formulas."""
    draw, worst = random.Random(seed), 0.0
    with launch.process_group() as world:
        group, n = dist.group.WORLD, world.size
        for trial in range(4):
            kv = draw.choice([1, 2, n])
            b, heads, s, d = (
                draw.randint(1, 2),
                kv * draw.choice([1, 3]),
                2 * n * draw.randint(1, 3),
                draw.randint(1, 9),
            )
            q, k, v, gradient = tensors(seed + trial, b, heads, kv, s, d)
            ways = KINDS if kv != n else [*KINDS, ("ulysses", "contiguous")]
            for causal, (core, kind), kernels in [
                (c, w, f) for c in (True, False) for w in ways for f in (True, False)
            ]:
                attend_file.has_kernel = lambda _, kernels=kernels: kernels
                where = RankTokens(kind, s, n).positions(world.rank)
                own = [t[:, :, where].clone().requires_grad_() for t in (q, k, v)]
                out = CORES[core](group, kind)(*own, causal=causal)
                found = [out.detach(), *torch.autograd.grad(out, own, gradient[:, :, where])]
                expected = [t[:, :, where] for t in whole(q, k, v, gradient, causal)]
                worst = max(
                    worst, *(float((a - e).abs().max()) for a, e in zip(found, expected, strict=True))
                )
    return worst


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_core_is_attention_forward_and_backward(ranks, size):
    assert max(ranks(compare, size, ranks=size).values) < 1e-5


@pytest.mark.parametrize(("forward", "backward"), [(attend, attend_backward), (flash, flash_backward)])
def test_blocks_merge_in_any_order(forward, backward):
    """Rectangles of keys, after the first that all queries see; and what they owe adds up."""
    q, k, v, gradient = tensors(0, 2, 4, 2, 12, 5)
    placement = RankTokens("zigzag", 12, 1, causal=False)
    for order in ([0, 1, 2], [2, 0, 1]):
        blocks = [MaskBlock(0, 12, 4 * i, 4 * i + 4) for i in order]
        found = OnlineSoftmax(forward)
        for block in blocks:
            found.add(block, q, k, v)
        out, lse = found.result(torch.float32)
        expected = whole(q, k, v, gradient, causal=False)
        torch.testing.assert_close(out, expected[0])
        sums = [torch.zeros_like(t) for t in (q, k, v)]
        for block in blocks:
            add(block, backward(block, gradient, q, k, v, out, lse), *sums)
        for total, whole_one in zip(sums, expected[1:], strict=True):
            torch.testing.assert_close(total, whole_one, atol=1e-5, rtol=1e-5)
    assert list(placement.blocks(0, 0)) == [MaskBlock(0, 12, 0, 12)]


@pytest.mark.parametrize("ranks_", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("kind", ["contiguous", "zigzag"])
def test_ranks_compute_each_pair_once_and_a_zigzag_as_many_each(kind, ranks_):
    seq = 48 * ranks_
    placement = RankTokens(kind, seq, ranks_)
    seen = torch.zeros(seq, seq, dtype=torch.int)
    for rank in range(ranks_):
        for source in range(ranks_):
            mine, theirs = placement.positions(rank), placement.positions(source)
            for block in placement.blocks(rank, source):
                rows, columns = mine[block.q_start : block.q_stop], theirs[block.k_start : block.k_stop]
                pairs = torch.ones(len(rows), len(columns), dtype=torch.int)
                seen[rows[:, None], columns] += pairs.tril() if block.causal else pairs
    assert torch.equal(seen, torch.ones(seq, seq, dtype=torch.int).tril())
    work = [placement.work(rank) for rank in range(ranks_)]
    assert sum(work) == seq * (seq + 1) // 2
    ratio = max(work) / (sum(work) / ranks_)
    if kind == "zigzag":
        assert ratio == 1.0
    else:  # the last rank sees all before it: (2c − 1)/c blocks of the mean
        assert ratio == pytest.approx((2 * ranks_ - 1) / ranks_, rel=0.01)


def test_what_cannot_be_shared_is_named():
    model = Transformer(BLOCKS["gpt"])
    with pytest.raises(ConfigError, match="unknown context 'rings'; did you mean ring"):
        share_context(model, None, "rings")
    with pytest.raises(ConfigError, match="make it contiguous"):
        share_context(model, None, "ulysses", "zigzag")


def test_formulas_are_in_fp32_whatever_autocast_says():
    """Blocks, merged as a ring merges them, while a trainer's autocast is on: output and log-sum-exp of one device."""
    q, k, v, gradient = tensors(0, 2, 4, 2, 12, 8)
    expected = whole(q, k, v, gradient, causal=False)
    blocks = [MaskBlock(0, 12, start, start + 4) for start in (0, 4, 8)]
    with torch.autocast("cpu", torch.bfloat16):
        found = OnlineSoftmax(attend)
        for block in blocks:
            found.add(block, q, k, v)
        out, lse = found.result(torch.float32)
        dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
        for block in blocks:
            add(block, attend_backward(block, gradient, q, k, v, out, lse), dq, dk, dv)
    for a, b in zip((out, dq, dk, dv), expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-2, -1) * 8**-0.5
    torch.testing.assert_close(lse, scores.logsumexp(-1).float(), atol=1e-6, rtol=1e-6)


def normed(causal: bool) -> tuple[set[torch.dtype], float]:
    """In a rank: the dtype of a ring's output, and its error to one device, for a model with normed queries in bf16."""
    shape = BLOCKS["llama"].replace(qk_norm=True, heads=4, kv_heads=2, hidden=32)
    x = torch.randn(2, 16, shape.hidden, generator=torch.Generator().manual_seed(1))
    with launch.process_group() as world, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        attention = Attention(shape, causal=causal)
        expected = attention(x)
        own = slice(world.rank * 8, world.rank * 8 + 8)
        worst, dtypes = 0.0, set()
        for kernels in (True, False):
            attend_file.has_kernel = lambda _, kernels=kernels: kernels
            attention.core = RingCore(dist.group.WORLD, "contiguous")
            found = attention(x[:, own])
            dtypes.add(found.dtype)
            worst = max(worst, ((found - expected[:, own]).norm() / expected.norm()).item())
    return dtypes, worst


@pytest.mark.parametrize("causal", [True, False])
def test_a_ring_under_autocast_gives_what_one_device_does_with_normed_queries(ranks, causal):
    for dtypes, error in ranks(normed, causal, ranks=2).values:
        assert dtypes == {torch.bfloat16}
        assert error < 5e-3
