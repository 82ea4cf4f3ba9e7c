"""FlashAttention's forward for Hopper, in Gluon: warps that copy, and two groups of warps that multiply.

Gluon is the language in which Triton's compiler thinks: layouts, barriers and who does what are written down. What is
written here is FlashAttention-3's schedule (Shah et al. 2024, arXiv 2407.08608, section 3):

    one warp             copies blocks of keys and values by the tensor memory accelerator, as soon as one is free
    two groups of warps  of 64 queries each. Of block j the scores are multiplied while the tensor cores still multiply
                         block j − 1 by its values: the softmax of one group runs beside the products of the other

The copying warp gives its registers away (24 are enough for it), so that each thread of the groups has 240: 64 for the
sum of values, 64 for scores, 32 for probabilities. Compiled as one program of 8 warps (`flash_attention.py`) a block of
128 × 128 leaves none for that. Barriers by which the groups take turns, as the paper has them, changed nothing on an
H200, so there are none. Heads of 64 dims were slower: they stay with the plain kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.kernels.flash_backward import LOG2E, takes_tma
from playbook.kernels.jit import cdiv, gl, gluon_kernel, hopper, lend_scratch

tma, mbarrier = hopper.tma, hopper.mbarrier
#: Queries of a group, groups, keys of a block, blocks of keys and of values under way at once.
M, GROUPS, N, STAGES = 64, 2, 128, 2
#: Registers of a thread: at first, of a group's, of the copying warp's.
REGISTERS = 168, 240, 24
D = 128


def takes_groups(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `forward_in_groups` is for these: 16 bits and heads of 128 dims, on Hopper, as its copies want them."""
    if not q.is_cuda or q.shape[-1] != D or v.shape[-1] != D:
        return False
    return torch.cuda.get_device_capability(q.device)[0] == 9 and takes_tma(q, k, v)


@gluon_kernel
def copy(
    q, k, v, qs, ks, vs, bars, first, steps, N: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr
):
    """Queries, and block after block of keys and values, the last one first: only there scores are masked."""
    q_ready, k_ready, k_free, v_ready, v_free = bars
    rows: gl.constexpr = q.block_type.shape[0]
    mbarrier.expect(q_ready, GROUPS * q.block_type.nbytes)
    for group in gl.static_range(GROUPS):
        tma.async_copy_global_to_shared(q, [first + rows * group, 0], q_ready, qs.index(group))
    for j in range(steps):
        at, before = j % STAGES, (j // STAGES) & 1 ^ 1  # the first time all are free
        start = (steps - 1 - j) * N
        mbarrier.wait(k_free.index(at), before)
        mbarrier.expect(k_ready.index(at), k.block_type.nbytes)
        tma.async_copy_global_to_shared(k, [start, 0], k_ready.index(at), ks.index(at))
        mbarrier.wait(v_free.index(at), before)
        mbarrier.expect(v_ready.index(at), v.block_type.nbytes)
        tma.async_copy_global_to_shared(v, [start, 0], v_ready.index(at), vs.index(at))


@gluon_kernel
def softmax(scores, top, total, rows, start, offset, S, scale, MASKED: gl.constexpr, CAUSAL: gl.constexpr):
    """p = e^(score − largest), what sums so far shrink by, and the largest and the total with these keys."""
    across: gl.constexpr = gl.SliceLayout(0, scores.type.layout)
    if MASKED:
        keys = start + gl.arange(0, scores.shape[1], layout=across)
        seen = keys[None, :] < S
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None] + offset)
        scores = gl.where(seen, scores, float("-inf"))
    now = gl.maximum(top, gl.max(scores, 1) * scale)
    base = gl.where(now == float("-inf"), 0.0, now) if MASKED else now
    p, shrink = gl.exp2(scores * scale - base[:, None]), gl.exp2(top - base)
    return p, shrink, now, total * shrink + gl.sum(p, 1)


@gluon_kernel
def follow(
    j, q, ks, vs, bars, p, acc, top, total, rows, steps, offset, S, scale, MASKED: gl.constexpr, CAUSAL: gl.constexpr,
    N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Block j's scores and softmax, while p, of the block before, is multiplied by its values."""
    _, k_ready, k_free, v_ready, v_free = bars
    at, last = j % STAGES, (j - 1) % STAGES
    scores_layout: gl.constexpr = top.type.layout.parent
    M: gl.constexpr = q.shape[0]
    mbarrier.wait(k_ready.index(at), (j // STAGES) & 1)
    scores = gl.zeros((M, N), gl.float32, scores_layout)
    scores = hopper.warpgroup_mma(q, ks.index(at).permute((1, 0)), scores, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(last), ((j - 1) // STAGES) & 1)
    acc = hopper.warpgroup_mma(p, vs.index(last), acc, is_async=True)
    scores = hopper.warpgroup_mma_wait(1, deps=(scores,))  # one may be under way: that of the values
    mbarrier.arrive(k_free.index(at), count=1)
    now, shrink, top, total = softmax(
        scores, top, total, rows, (steps - 1 - j) * N, offset, S, scale, MASKED, CAUSAL
    )
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(v_free.index(last), count=1)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    return gl.convert_layout(now.to(p.dtype), p.type.layout), acc, top, total


@gluon_kernel
def multiply(
    o, lse, qs, ks, vs, bars, first, steps, masked, offset, s, S, o_row, scale, GROUP: gl.constexpr,
    CAUSAL: gl.constexpr, D: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """o and lse of one group's queries."""
    q_ready, k_ready, k_free, v_ready, _ = bars
    kind: gl.constexpr = qs.dtype
    M: gl.constexpr = qs.shape[1]
    q = qs.index(GROUP)
    tall: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16]
    )
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=sums, k_width=2)
    down: gl.constexpr = gl.SliceLayout(1, tall)
    rows = first + M * GROUP + gl.arange(0, M, layout=down)
    top, total = gl.full((M,), float("-inf"), gl.float32, down), gl.zeros((M,), gl.float32, down)
    acc = gl.zeros((M, D), gl.float32, sums)
    mbarrier.wait(q_ready, 0)
    mbarrier.wait(k_ready.index(0), 0)
    scores = gl.zeros((M, N), gl.float32, tall)
    scores = hopper.warpgroup_mma(q, ks.index(0).permute((1, 0)), scores, use_acc=False, is_async=True)
    scores = hopper.warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(k_free.index(0), count=1)
    p, _, top, total = softmax(scores, top, total, rows, (steps - 1) * N, offset, S, scale, True, CAUSAL)
    p = gl.convert_layout(p.to(kind), left)
    for j in range(1, masked):
        p, acc, top, total = follow(
            j, q, ks, vs, bars, p, acc, top, total, rows, steps, offset, S, scale, True, CAUSAL, N, STAGES
        )
    for j in range(masked, steps):
        p, acc, top, total = follow(
            j, q, ks, vs, bars, p, acc, top, total, rows, steps, offset, S, scale, False, CAUSAL, N, STAGES
        )
    last = steps - 1
    mbarrier.wait(v_ready.index(last % STAGES), (last // STAGES) & 1)
    acc = hopper.warpgroup_mma(p, vs.index(last % STAGES), acc, is_async=True)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    none = total == 0.0
    total = gl.where(none, 1.0, total)
    gl.store(lse + rows, gl.where(none, float("-inf"), (top + gl.log2(total)) / LOG2E), mask=rows < s)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, sums))[:, None]
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])  # 16 bytes a thread
    at = first + M * GROUP + gl.arange(0, M, layout=gl.SliceLayout(1, wide))
    places = o + at.to(gl.int64)[:, None] * o_row + gl.arange(0, D, layout=gl.SliceLayout(0, wide))[None, :]
    gl.store(places, gl.convert_layout(acc.to(kind), wide), mask=(at < s)[:, None])


@gluon_kernel
def groups_kernel(
    q, k, v, o, lse, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, s, S, offset, scale, SHARE: gl.constexpr,
    CAUSAL: gl.constexpr, D: gl.constexpr, M: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
    OWN: gl.constexpr, FEW: gl.constexpr,
):  # fmt: skip
    """o and lse of 2·M queries of a head, whose keys ``SHARE`` heads have in common."""
    kind: gl.constexpr = q.dtype.element_ty
    tile, head, batch, heads = gl.program_id(0), gl.program_id(1), gl.program_id(2), gl.num_programs(1)
    if CAUSAL:  # the last queries see the most keys: begun first, none of them is left for the end
        tile = gl.num_programs(0) - 1 - tile
    first, kv, far = 2 * M * tile, (head // SHARE).to(gl.int64), batch.to(gl.int64)
    few: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, D], kind)
    many: gl.constexpr = gl.NVMMASharedLayout.get_default_for([N, D], kind)
    q += far * q_b + head.to(gl.int64) * q_h
    qd = tma.make_tensor_descriptor(q, [s, D], [q_s, 1], [M, D], few)
    kd = tma.make_tensor_descriptor(k + far * k_b + kv * k_h, [S, D], [k_s, 1], [N, D], many)
    vd = tma.make_tensor_descriptor(v + far * v_b + kv * v_h, [S, D], [v_s, 1], [N, D], many)
    qs = gl.allocate_shared_memory(kind, [2, M, D], few)
    ks = gl.allocate_shared_memory(kind, [STAGES, N, D], many)
    vs = gl.allocate_shared_memory(kind, [STAGES, N, D], many)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(k_free.index(i), count=2)  # both groups are done with it
        mbarrier.init(v_free.index(i), count=2)
    end, whole = S, S  # keys that any of these queries sees, and that all of them see
    if CAUSAL:
        end, whole = min(max(first + 2 * M + offset, 0), S), min(max(first + 1 + offset, 0), S)
    steps = max((end + N - 1) // N, 1)
    masked = max(steps - whole // N, 1)
    bars = q_ready, k_ready, k_free, v_ready, v_free
    o += (far * s * heads + head) * D
    lse += (far * heads + head) * s
    gl.warp_specialize(
        [
            (multiply, (o, lse, qs, ks, vs, bars, first, steps, masked, offset, s, S, heads * D, scale, 0, CAUSAL, D, N,
                        STAGES)),
            (multiply, (o, lse, qs, ks, vs, bars, first, steps, masked, offset, s, S, heads * D, scale, 1, CAUSAL, D, N,
                        STAGES)),
            (copy, (qd, kd, vd, qs, ks, vs, bars, first, steps, N, STAGES, 2)),
        ],
        [4, 1], [OWN, FEW],
    )  # fmt: skip


def forward_in_groups(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, offset: int
) -> tuple[Tensor, Tensor]:
    """o (b, s, heads, d) in the dtype of q, and lse (b, heads, s) in fp32, as `flash_attention.flash_forward`."""
    (b, s, heads, d), (_, S, kv_heads, _) = q.shape, v.shape
    o = torch.empty(b, s, heads, d, dtype=q.dtype, device=q.device)
    lse = torch.empty(b, heads, s, dtype=torch.float32, device=q.device)
    most, own, few = REGISTERS
    lend_scratch()
    groups_kernel[(cdiv(s, GROUPS * M), heads, b)](
        q, k, v, o, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], s, S, offset, scale * LOG2E.value,
        SHARE=heads // kv_heads, CAUSAL=causal, D=d, M=M, N=N, STAGES=STAGES, OWN=own, FEW=few,
        num_warps=4, maxnreg=most,
    )  # fmt: skip
    return o, lse
