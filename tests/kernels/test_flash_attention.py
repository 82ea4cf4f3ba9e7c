"""FlashAttention's kernels beside their twin, in the interpreter; compiled for GPUs that are not here; bytes counted."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from kernel_checks import CAPABILITIES, beside_twin
from torch import Tensor

from playbook.errors import ConfigError
from playbook.kernels.flash_attention import (
    WIDE,
    Tuning,
    attention_torch,
    blocks_for,
    flash_attention,
    flash_attention_lse,
    requested_bytes,
    standard_bytes,
    tuned,
)
from playbook.kernels.flash_backward import Blocks, Packed, flash_backward, takes_tma
from playbook.kernels.jit import launches
from playbook.layout.tokens import TokenRanges
from playbook.model.ops import reference_attention
from playbook_book.kernels.compiled import SHARED, compiled
from playbook_book.kernels.sectors import Sectors


def qkv(b: int, s: int, S: int, heads: int, kv_heads: int, d: int, e: int, dtype: torch.dtype, seed: int = 0):
    torch.manual_seed(seed)
    shapes = ((b, s, heads, d), (b, S, kv_heads, d), (b, S, kv_heads, e))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def check(*given: Tensor, tolerance: float | None = None, **named: Any) -> None:
    def twin(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_torch(q, k, v, **named)[0]

    beside_twin(partial(flash_attention, **named), twin, *given, tolerance=tolerance)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("sixteen", [False, True])
@pytest.mark.parametrize(
    ("s", "S", "causal", "offset", "dtype"),
    [
        (1, 1, True, None, torch.float16),
        (1, 130, True, None, torch.bfloat16),  # a token that is generated
        (63, 63, False, None, torch.float16),
        (65, 65, True, None, torch.bfloat16),
        (130, 130, True, None, torch.bfloat16),
        (65, 130, True, None, torch.float16),  # the mask is aligned at the end
        (130, 65, False, None, torch.bfloat16),
        (65, 130, True, 31, torch.bfloat16),  # a ring's: some keys that no query sees
        (63, 129, True, 200, torch.float16),  # and all of them seen
        (130, 65, True, None, torch.float16),  # −65: the first queries see no key
    ],
)
def test_equals_its_twin(s, S, causal, offset, dtype, sixteen):
    check(*qkv(1, s, S, 2, 1, 16, 16, dtype if sixteen else torch.float32), causal=causal, offset=offset)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "e"), [(4, 4, 16, 16), (6, 2, 24, 40), (4, 1, 80, 64), (2, 2, 192, 128)]
)
def test_heads_in_groups_of_any_width(heads, kv_heads, d, e):
    check(*qkv(2, 33, 70, heads, kv_heads, d, e, torch.float32), causal=True, scale=0.07)


@pytest.mark.usefixtures("device")
def test_strides_are_any():
    torch.manual_seed(0)
    fused = torch.randn(2, 65, 4 + 2 + 2, 16)  # q, k, v as one product makes them
    q, k, v = fused.split([4, 2, 2], 2)
    parts = (
        (q, k, v),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, v[..., ::2]),
        (q, k[:, :, :1].expand(k.shape), v),
    )
    for given in parts:
        expected = attention_torch(*given, causal=True)[0]
        torch.testing.assert_close(flash_attention(*given, causal=True), expected, rtol=1e-5, atol=1e-5)
    x = fused.clone().requires_grad_()
    y = fused.double().requires_grad_()
    flash_attention(*x.split([4, 2, 2], 2), causal=True).transpose(1, 2).square().sum().backward()
    attention_torch(*y.split([4, 2, 2], 2), causal=True)[0].square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad.float(), rtol=1e-4, atol=1e-5)


def test_is_the_models_attention():
    q, k, v = qkv(2, 65, 65, 4, 2, 16, 16, torch.float32)
    expected = reference_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(flash_attention(q, k, v, causal=True), expected, rtol=1e-5, atol=1e-5)


def test_derivatives_of_output_and_lse():
    small = Tuning(*[Blocks(16, 16, 4, 1)] * 3)
    given = [x.requires_grad_() for x in qkv(1, 5, 19, 2, 1, 4, 3, torch.float64)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: flash_attention_lse(q, k, v, causal=True, offset=12, tuning=small),
        given,
        fast_mode=True,
    )


@pytest.mark.usefixtures("device")
def test_queries_that_see_no_key():
    q, k, v = (x.requires_grad_() for x in qkv(1, 40, 20, 1, 1, 16, 16, torch.float32))
    o, lse = flash_attention_lse(q, k, v, causal=True)
    assert torch.equal(o[:, :20], torch.zeros_like(o[:, :20]))
    assert torch.isneginf(lse[..., :20]).all()
    assert torch.isfinite(lse[..., 20:]).all()
    o.sum().backward()
    assert torch.equal(q.grad[:, :20], torch.zeros_like(q[:, :20]))
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


def test_scores_of_thousands_overflow_nothing():
    with np.errstate(over="ignore"):  # of what the mask takes away
        check(*qkv(1, 33, 65, 1, 1, 16, 16, torch.float64), tolerance=1e-9, causal=True, scale=1000.0)


def merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A ring's update: outputs of parts of the keys, by each part's share of the denominator."""
    lse = torch.stack([lse for _, lse in parts]).logsumexp(0)
    return sum(o * (part - lse).exp().transpose(1, 2)[..., None] for o, part in parts), lse


def test_halves_of_the_keys_make_the_whole():
    q, k, v = qkv(1, 65, 130, 2, 1, 16, 16, torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    whole, lse = flash_attention_lse(q, k, v, causal=True)
    halves = [
        flash_attention_lse(q, k[:, part], v[:, part], causal=True, offset=65 - part.start)
        for part in (slice(0, 66), slice(66, 130))
    ]
    o, total = merged(halves)
    torch.testing.assert_close(total, lse)
    torch.testing.assert_close(o, whole)
    do = torch.randn_like(o)
    for ours, expected in zip(  # through the lse of the parts: autograd's way
        torch.autograd.grad(o, leaves, do), torch.autograd.grad(whole, leaves, do), strict=True
    ):
        torch.testing.assert_close(ours, expected)


def test_a_rings_backward_needs_no_gradient_of_lse():
    """A part's gradients from o and lse of all keys, as `parallel/context.py` asks for them, zigzag's blocks."""
    seq, ranks, rank = 64, 2, 0
    q, k, v = qkv(1, seq, seq, 2, 1, 16, 16, torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    whole, lse = flash_attention_lse(q, k, v, causal=True)
    placement = TokenRanges("zigzag", seq, ranks)
    held = [torch.cat([torch.arange(r.start, r.stop) for r in placement.ranges(n)]) for n in range(ranks)]
    own = held[rank]
    do = torch.zeros_like(whole)
    do[:, own] = torch.randn(1, len(own), 2, 16, dtype=torch.float64)
    expected = torch.autograd.grad(whole, leaves, do)
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    tuning = tuned(q)
    for source in range(ranks):
        for block in placement.blocks(rank, source):
            rows, columns = own[block.q_start : block.q_stop], held[source][block.k_start : block.k_stop]
            parts = flash_backward(
                do[:, rows], q.detach()[:, rows], k.detach()[:, columns], v.detach()[:, columns],
                whole.detach()[:, rows], lse.detach()[..., rows],
                causal=block.causal, scale=0.25, offset=0, keys=tuning.keys, queries=tuning.queries,
            )  # fmt: skip
            for total, where, part in zip((dq, dk, dv), (rows, columns, columns), parts, strict=True):
                total[:, where] += part
    for ours, theirs in zip((dq, dk, dv), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


KERNELS = "delta_kernel", "forward_kernel", "keys_kernel", "queries_kernel"


@pytest.mark.parametrize(
    ("d", "e", "dtype", "capability"),
    [
        *(
            (d, e, torch.bfloat16, capability)
            for d, e in ((64, 64), (128, 128), (192, 128))
            for capability in CAPABILITIES
        ),
        (128, 128, torch.float16, 90),
        *((128, 128, torch.float32, capability) for capability in (80, 100)),  # in the same blocks
    ],
)
def test_compiles_without_spills(d, e, dtype, capability):
    q, k, v = (
        torch.empty(1, 4096, heads, dims, dtype=dtype, device="meta", requires_grad=True)
        for heads, dims in ((32, d), (8, d), (8, e))
    )
    tuning = blocks_for(capability, d) if dtype.itemsize == 2 else WIDE
    with launches() as found:
        o, _ = flash_attention_lse(q, k, v, causal=True, tuning=tuning)
        o.backward(torch.empty_like(o))
    made = {one.name: one for one in (compiled(launch, capability) for launch in found)}
    limit = SHARED[89 if capability == 80 else capability]  # rows from 8.0 on serve 8.9 and 12.0, too
    assert {name: one.spills for name, one in made.items()} == dict.fromkeys(KERNELS, 0)
    assert max(one.shared for one in made.values()) <= limit
    instruction = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}[capability]
    if dtype == torch.float32:
        instruction = "mma.sync"
    assert all(made[name].uses(instruction) for name in KERNELS[1:])


@pytest.mark.parametrize(
    ("s", "S", "kv_heads", "offset"), [(1, 257, 1, None), (65, 1, 2, None), (64, 64, 2, 1)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_compiles_where_arguments_are_one(s, S, kv_heads, offset, causal):
    """Such arguments are constants to the compiler, and go other ways than numbers do."""
    q, k, v = (
        torch.empty(1, n, heads, 16, dtype=torch.float16, device="meta", requires_grad=True)
        for n, heads in ((s, 2), (S, kv_heads), (S, kv_heads))
    )
    small = Tuning(*[Blocks(16, 16, 4, 1)] * 3)
    with launches() as found:
        o, lse = flash_attention_lse(q, k, v, causal=causal, offset=offset, tuning=small)
        (o.sum() + lse.sum()).backward()
    assert all(compiled(launch, 80).spills == 0 for launch in found)


def test_blocks_of_capabilities_between_the_rows():
    assert blocks_for(75, 64) == blocks_for(89, 33) == blocks_for(120, 64) == blocks_for(80, 64)
    assert blocks_for(103, 200) == blocks_for(100, 256) != blocks_for(100, 128)


def test_the_tensor_memory_accelerator_takes_what_lies_in_whole_sixteen_bytes():
    q = torch.empty(2, 64, 8, 64, dtype=torch.bfloat16, device="meta")
    fused = torch.empty(2, 64, 12, 72, dtype=torch.float16, device="meta")
    assert takes_tma(q, fused[:, :, 4:8], fused[..., :40], q.transpose(1, 2))
    others = (
        q.float(),
        fused[..., :9].contiguous(),
        q[:, :, :1].expand(q.shape),
        torch.empty(1, 2, 3, 8).half(),
    )
    assert not any(map(takes_tma, others))  # the last one lies where nothing copies it


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("d", "e"), [(64, 64), (80, 80), (128, 128), (192, 128)])
def test_equals_its_twin_on_a_gpu(d, e, dtype):
    check(*(x.cuda() for x in qkv(2, 257, 513, 4, 2, d, e, dtype)), causal=True)


def test_asks_for_what_its_formula_says():
    q, k, v = qkv(1, 256, 256, 2, 1, 64, 64, torch.float16)
    blocks = tuned(q).forward
    for causal in (False, True):
        with Sectors() as counted:
            flash_attention(q, k, v, causal=causal)
        asked = requested_bytes(q, k, v, causal=causal, blocks=blocks)
        assert counted.requested.total == pytest.approx(asked, 0.02)
        once = 2 * q.nbytes + k.nbytes + v.nbytes + 4 * 2 * 256  # q and o, k, v, lse
        assert counted.dram.total == once
    q, k, v = (x.repeat(1, 4, 1, 1) for x in (q, k, v))
    asked = [requested_bytes(q, k, v, causal=causal, blocks=blocks) for causal in (False, True)]
    ratios = [standard_bytes(q, k, v) / each for each in asked]
    assert [round(ratio, 1) for ratio in ratios] == [2.0, 3.5]  # with blocks of 64 queries


@pytest.mark.parametrize("offset", [None, 0, 20])
def test_asks_for_what_its_formula_says_where_the_mask_is_moved(offset):
    """Few queries and more keys: which of these any query sees, the offset says."""
    q, k, v = qkv(1, 32, 96, 2, 1, 64, 64, torch.float16)
    tuning = Tuning(*[Blocks(16, 16, 4, 1)] * 3)
    with Sectors() as counted:
        flash_attention_lse(q, k, v, causal=True, offset=offset, tuning=tuning)
    asked = requested_bytes(q, k, v, causal=True, offset=offset, blocks=tuning.forward)
    assert counted.requested.total == asked


def test_backward_reads_each_tensor_once_from_memory():
    q, k, v = (x.requires_grad_() for x in qkv(1, 256, 256, 2, 1, 64, 64, torch.float32))
    o = flash_attention(q, k, v, causal=True)
    do = torch.randn_like(o)
    with Sectors() as counted:
        o.backward(do)
    row = 4 * 2 * 256  # lse or delta
    delta = 2 * o.nbytes + row
    keys = q.nbytes + do.nbytes + 2 * (k.nbytes + v.nbytes) + 2 * row
    queries = 2 * q.nbytes + do.nbytes + k.nbytes + v.nbytes + 2 * row
    assert counted.dram.total == delta + keys + queries


@pytest.mark.parametrize(
    ("shapes", "named", "said"),
    [
        (((1, 4, 2, 16), (1, 4, 16), (1, 4, 2, 16)), {}, "k is .* but must be"),
        (((1, 4, 2, 16), (1, 4, 2, 8), (1, 4, 2, 16)), {}, "q, k, v are .* but must be"),
        (
            ((1, 4, 3, 16), (1, 4, 2, 16), (1, 4, 2, 16)),
            {},
            "q has 3 heads, but must have a multiple of the 2",
        ),
        (
            ((1, 4, 2, 300), (1, 4, 2, 300), (1, 4, 2, 16)),
            {},
            "heads have 300 dims, but may have at most 256",
        ),
        (
            ((1, 4, 2, 16), (1, 4, 2, 16), (1, 4, 2, 16)),
            {"scale": -1.0},
            "scale is -1.0, but must be positive",
        ),
    ],
)
def test_what_is_refused(shapes, named, said):
    with pytest.raises(ConfigError, match=said):
        flash_attention(*(torch.empty(shape) for shape in shapes), causal=True, **named)


def test_one_dtype():
    q, k, v = qkv(1, 4, 4, 1, 1, 16, 16, torch.float32)
    with pytest.raises(ConfigError, match="but must be of one dtype"):
        flash_attention(q, k.half(), v, causal=False)


def packed(*lengths: int, device: str = "cpu") -> Packed:
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    return Packed(ends, max(lengths))


@pytest.mark.parametrize("causal", [False, True])
def test_documents_in_one_launch_are_documents_alone(causal):
    """Of one token and of several blocks, with values narrower than keys and strides that are no contiguous tensor's."""
    lengths = (33, 1, 16, 20)
    q, k, v = (x[..., : x.shape[3] // 2] for x in qkv(1, 70, 70, 2, 1, 48, 32, torch.float32))
    do, dlse = torch.randn(1, 70, 2, 16), torch.randn(1, 2, 70)
    small = Tuning(*[Blocks(16, 16, 4, 1)] * 3)

    def found(*given: Tensor, part: slice = slice(None), **named: Any) -> list[Tensor]:
        given = tuple(x[:, part].detach().requires_grad_() for x in given)
        o, lse = flash_attention_lse(*given, causal=causal, tuning=small, **named)
        grads = torch.autograd.grad([o, lse], given, [do[:, part], dlse[..., part]])
        return [o, lse.transpose(1, 2), *grads]

    with launches() as together:
        ours = found(q, k, v, packed=packed(*lengths))
    assert len(together) == 4
    begins = itertools.accumulate(lengths, initial=0)
    alone = [found(q, k, v, part=slice(a, a + n)) for a, n in zip(begins, lengths, strict=False)]
    for one, parts in zip(ours, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(one, torch.cat(parts, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("d", "capability", "most"), [(128, 80, 16), (64, 90, 0), (128, 90, 0), (128, 100, 0)]
)
def test_packed_documents_compile_without_spills(d, capability, most):
    """But for four numbers of a thread, on an A100."""
    q, k, v = (
        torch.empty(1, 4096, heads, d, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for heads in (32, 8, 8)
    )
    with launches() as found:
        ends = Packed(torch.empty(5, dtype=torch.int32, device="meta"), 2048)
        o, _ = flash_attention_lse(q, k, v, causal=True, tuning=blocks_for(capability, d), packed=ends)
        o.backward(torch.empty_like(o))
    assert {one.grid[2] for one in found} == {4}
    assert max(compiled(one, capability).spills for one in found) <= most
