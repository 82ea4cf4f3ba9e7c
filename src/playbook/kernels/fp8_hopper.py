"""FP8 products with a scale for each 128 of k, for Hopper, in Gluon: a warp that copies, three groups that multiply.

Tensor cores add up 128 of k, and then plain cores multiply by scales and add to a total in fp32 (`fp8_matmul.py`). In one
program the tensor cores wait for that. Here three groups of four warps have 64 rows of a tile of 192 × 128 each, as two
have in DeepGEMM (DeepSeek-AI 2025): while one adds to its total, the others multiply. Scales are read a step ahead. The
copying warp gives its registers away (`flash_hopper.py`), so that a thread of the groups has 160: 64 for the total, and
64 for what is new.

On an H200, a layer's 8,192 × 14,336 × 4,096: 1,191 TFLOP/s, 0.90 of cuBLAS, where the kernel without groups has 934 and
bf16 808. Two groups of 128 × 128 reached 968 where three reached 1,141. Weight gradients, where both matrices have scales
of their own for each row, need 32 more registers: they spill, and stay with the kernel without.
"""

from __future__ import annotations

from torch import Tensor

from playbook.kernels.jit import cdiv, gl, gluon_kernel, hopper, lend_scratch

tma, mbarrier = hopper.tma, hopper.mbarrier
#: Rows of a group, groups, columns, and k of a tile; tiles under way at once; tiles of rows before the next columns.
M, GROUPS, N, K, STAGES, BAND = 64, 3, 128, 128, 4, 8
#: Registers of a thread: at first, of a group's, of the copying warp's.
REGISTERS = 128, 160, 24


@gluon_kernel
def tile_at(tile, m, n, BM: gl.constexpr, N: gl.constexpr, BAND: gl.constexpr):
    """Its first row and column: some tiles of rows take turns with one of columns, whose codes stay in the cache."""
    down, across = gl.cdiv(m, BM), gl.cdiv(n, N)
    before = tile // (BAND * across) * BAND
    rows = min(down - before, BAND)
    within = tile - before * across
    return (before + within % rows) * BM, within // rows * N


@gluon_kernel
def copy(
    a, b, a_tiles, b_tiles, ready, free, m, n, k, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, BAND: gl.constexpr,
):  # fmt: skip
    i = 0
    for tile in range(gl.program_id(0), gl.cdiv(m, GROUPS * M) * gl.cdiv(n, N), gl.num_programs(0)):
        row, column = tile_at(tile, m, n, GROUPS * M, N, BAND)
        for step in range(gl.cdiv(k, K)):
            at = i % STAGES
            mbarrier.wait(free.index(at), (i // STAGES) & 1 ^ 1)  # the first time all are free
            mbarrier.expect(ready.index(at), GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            for group in gl.static_range(GROUPS):
                own = a_tiles.index(at * GROUPS + group)
                tma.async_copy_global_to_shared(a, [row + group * M, step * K], ready.index(at), own)
            tma.async_copy_global_to_shared(b, [column, step * K], ready.index(at), b_tiles.index(at))
            i += 1


@gluon_kernel
def multiply(
    y, a_tiles, b_tiles, of_a, of_b, ready, free, m, n, k, y_m, of_a_m, of_a_k, of_b_n, of_b_k, GROUP: gl.constexpr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, BAND: gl.constexpr,
):  # fmt: skip
    """The rows of one group, of tile after tile."""
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32]
    )
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // N, N // 8], [4, 1], [1, 0])  # 16 bytes a thread
    steps, i = gl.cdiv(k, K), 0
    for tile in range(gl.program_id(0), gl.cdiv(m, GROUPS * M) * gl.cdiv(n, N), gl.num_programs(0)):
        row, column = tile_at(tile, m, n, GROUPS * M, N, BAND)
        rows = row + M * GROUP + gl.arange(0, M, layout=gl.SliceLayout(1, sums))
        left, right = of_a + rows * of_a_m, of_b + column // 128 * of_b_n
        scales = gl.load(left, mask=rows < m, other=0.0) * gl.load(right)
        total = gl.zeros((M, N), gl.float32, sums)
        for step in range(steps):
            at = i % STAGES
            mbarrier.wait(ready.index(at), (i // STAGES) & 1)
            new = gl.zeros((M, N), gl.float32, sums)
            own, theirs = a_tiles.index(at * GROUPS + GROUP), b_tiles.index(at).permute((1, 0))
            new = hopper.warpgroup_mma(own, theirs, new, use_acc=False, is_async=True)
            then = min(step + 1, steps - 1)
            next_left, next_right = (
                gl.load(left + then * of_a_k, mask=rows < m, other=0.0),
                gl.load(right + then * of_b_k),
            )
            new = hopper.warpgroup_mma_wait(0, deps=(new,))
            mbarrier.arrive(free.index(at), count=1)
            total += new * scales[:, None]
            scales = next_left * next_right
            i += 1
        at = row + M * GROUP + gl.arange(0, M, layout=gl.SliceLayout(1, wide))
        columns = column + gl.arange(0, N, layout=gl.SliceLayout(0, wide))
        places = y + at.to(gl.int64)[:, None] * y_m + columns[None, :]
        inside = (at < m)[:, None] & (columns < n)[None, :]
        gl.store(places, gl.convert_layout(total.to(y.dtype.element_ty), wide), mask=inside)


@gluon_kernel
def fp8_groups_kernel(
    a, b, y, of_a, of_b, m, n, k, a_m, b_n, y_m, of_a_m, of_a_k, of_b_n, of_b_k, M: gl.constexpr, N: gl.constexpr,
    K: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, BAND: gl.constexpr, OWN: gl.constexpr, FEW: gl.constexpr,
):  # fmt: skip
    """y = a·bᵀ, a (m, k) with scales of 1 × 128, b (n, k) of 128 × 128."""
    of_rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, K], a.dtype.element_ty)
    of_columns: gl.constexpr = gl.NVMMASharedLayout.get_default_for([N, K], b.dtype.element_ty)
    xs = tma.make_tensor_descriptor(a, [m, k], [a_m, 1], [M, K], of_rows)
    ws = tma.make_tensor_descriptor(b, [n, k], [b_n, 1], [N, K], of_columns)
    a_tiles = gl.allocate_shared_memory(a.dtype.element_ty, [STAGES * GROUPS, M, K], of_rows)
    b_tiles = gl.allocate_shared_memory(b.dtype.element_ty, [STAGES, N, K], of_columns)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(free.index(i), count=GROUPS)  # all groups are done with it
    gl.warp_specialize(
        [
            (multiply, (y, a_tiles, b_tiles, of_a, of_b, ready, free, m, n, k, y_m, of_a_m, of_a_k, of_b_n, of_b_k, 0,
                        M, N, K, STAGES, GROUPS, BAND)),
            (multiply, (y, a_tiles, b_tiles, of_a, of_b, ready, free, m, n, k, y_m, of_a_m, of_a_k, of_b_n, of_b_k, 1,
                        M, N, K, STAGES, GROUPS, BAND)),
            (multiply, (y, a_tiles, b_tiles, of_a, of_b, ready, free, m, n, k, y_m, of_a_m, of_a_k, of_b_n, of_b_k, 2,
                        M, N, K, STAGES, GROUPS, BAND)),
            (copy, (xs, ws, a_tiles, b_tiles, ready, free, m, n, k, M, N, K, STAGES, GROUPS, BAND)),
        ],
        [4, 4, 1], [OWN, OWN, FEW],
    )  # fmt: skip


def tiles(m: int, n: int) -> int:
    """How many a result (m, n) has."""
    return cdiv(m, GROUPS * M) * cdiv(n, N)


def multiply_in_groups(y: Tensor, a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, resident: int) -> None:
    """Codes a (m, k), b (n, k) and scales of 1 × 128 and 128 × 128 of k -> y (m, n), by ``resident`` programs at most."""
    (m, k), n = a.shape, len(b)
    most, own, few = REGISTERS
    lend_scratch()
    fp8_groups_kernel[(min(tiles(m, n), resident),)](
        a, b, y, of_a, of_b, m, n, k, a.stride(0), b.stride(0), y.stride(0), *of_a.stride(), *of_b.stride(),
        M=M, N=N, K=K, STAGES=STAGES, GROUPS=GROUPS, BAND=BAND, OWN=own, FEW=few, num_warps=4, maxnreg=most,
    )  # fmt: skip
