"""Matrix products: y = x·w, for x (m, k) and w (k, n) in any strides, so that x·Wᵀ reads W as it lies in memory.

A program computes a tile of y, BLOCK_M × BLOCK_N, and for that goes through k in steps of BLOCK_K; it adds up in fp32.
Every row of x is read by n/BLOCK_N programs and every column of w by m/BLOCK_M, so that what programs ask for is

    m·n·k·c·(1/BLOCK_M + 1/BLOCK_N) bytes read, of numbers of c bytes, and m·n·c written.

Larger tiles ask for less, until registers do not hold them. Most of what is asked for again is still in the L2 cache.

Three variants: "tiles", a program for each tile; "persistent", one for each multiprocessor, which goes from tile to tile;
"tma", persistent, with blocks copied by the tensor memory accelerator (compute capability 9.0 and later).
"""

from __future__ import annotations

import playbook.kernels.jit  # noqa: F401 - first: it says so where there is no Triton

# isort: split
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from playbook.errors import ConfigError, ShapeError
from playbook.kernels.jit import cdiv, kernel, lend_scratch, next_power, tl
from playbook.precision.scaling import capability

Variant = Literal["tiles", "persistent", "tma"]

#: Programs of persistent kernels where no GPU says how many multiprocessors it has: as many as an H100.
PROGRAMS = 132
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Tiles:
    """Sizes of a program's blocks, ``group`` rows of tiles that are computed together, what the compiler is asked, and
    how many persistent programs a multiprocessor has at once."""

    m: int
    n: int
    k: int
    warps: int = 8
    stages: int = 3
    group: int = 8
    resident: int = 1

    def fitted(self, m: int, n: int) -> Tiles:
        """The same, no larger than a product (m, n) needs. 16 is the least that tensor cores take."""
        return replace(self, m=min(self.m, max(16, next_power(m))), n=min(self.n, max(16, next_power(n))))

    def named(self) -> dict[str, int | str]:
        """What kernels are given by name, the precision of fp32 among it."""
        return {
            "PRECISION": precision(), "BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k, "GROUP": self.group,
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


#: By compute capability and bytes of a number, each also for what comes after it: tiles whose sums stay in registers, as
#: the compiler counts them, and whose blocks fit into shared memory. Those of 9.0 were the fastest of ten on an H200
#: (``benchmarks/gpu_sweep.py``); of the others no GPU has said which sizes below these are faster. fp32 is multiplied
#: without tensor cores, by threads that hold their part of both blocks in registers as well.
TUNED = {
    (80, 2): Tiles(128, 256, 32),
    (89, 2): Tiles(128, 128, 32),
    (90, 2): Tiles(128, 256, 64),
    (100, 2): Tiles(128, 256, 64),
    (120, 2): Tiles(128, 128, 32),
    (80, 4): Tiles(64, 64, 16, warps=4),
}


#: Up to how many rows of x a product on 9.0 is limited by the bytes of w: many small tiles ask for them at once.
FEW = 64
FEW_ROWS = Tiles(FEW, 128, 128, warps=4, stages=4)


def tuned(dtype: torch.dtype, capability: int, variant: Variant = "tiles", turned: bool = False) -> Tiles:
    """The entry of `TUNED` for the newest generation that is no newer than ``capability`` (90: H100).

    A persistent program also keeps addresses in registers from tile to tile, so its tiles are half as wide; on 9.0 those
    of "tiles", too, where W lies transposed (``turned``): Triton 3.6 lets each wgmma of a wide tile wait for the last.
    Raises ConfigError for dtypes that are none of `TYPES`, and for GPUs before the A100.
    """
    known = [entry for entry, size in TUNED if size == dtype.itemsize and entry <= capability]
    if dtype not in TYPES or not known:
        raise ConfigError(
            f"products of {dtype} for capability {capability} have no tiles: "
            "dtype must be float32, float16 or bfloat16, and capability at least 80"
        )
    tiles = TUNED[max(known), dtype.itemsize]
    hopper = (max(known), dtype.itemsize) == (90, 2)
    if variant == "persistent" or (variant == "tiles" and turned and hopper):
        return replace(tiles, n=tiles.n // 2, stages=tiles.stages + hopper)
    return tiles


def matmul_torch(x: Tensor, w: Tensor, onto: Tensor | None = None) -> Tensor:
    """The twin in PyTorch."""
    return x @ w if onto is None else onto.add_(x @ w)


# Which tile of y a program computes. GROUP rows of tiles are gone through column by column, here 2 of them:
#
#      0  2  4  6        and not        0  1  2  3
#      1  3  5  7                       4  5  6  7
#      8 10 12 14                       8  9 10 11
#      9 11 13 15                      12 13 14 15
#
# Programs 0 to 3 run side by side. They read two rows of blocks of x and two columns of blocks of w, and not one and
# four: less to bring into the L2 cache, from which all that need a block take it.
@kernel
def tile_of(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    columns = tl.cdiv(n, BLOCK_N)
    first = program // (GROUP * columns) * GROUP
    height = tl.minimum(tl.cdiv(m, BLOCK_M) - first, GROUP)
    place = program % (GROUP * columns)
    return (first + place % height) * BLOCK_M, place // height * BLOCK_N


@kernel
def block_product(
    total, x, w, row, column, m, n, k, x_m, x_k, w_k, w_n,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows, columns, at = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # Where a block begins is counted in 64 bits, for x may have more than 2³¹ numbers; places inside it need 32.
    xs = x + row.to(tl.int64) * x_m + (rows[:, None] * x_m + at[None, :] * x_k)
    ws = w + column.to(tl.int64) * w_n + (at[:, None] * w_k + columns[None, :] * w_n)
    for start in range(0, k, BLOCK_K):
        inside = at < k - start
        a = tl.load(xs, mask=(rows[:, None] < m - row) & inside[None, :], other=0.0)
        b = tl.load(ws, mask=inside[:, None] & (columns[None, :] < n - column), other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        xs += BLOCK_K * x_k
        ws += BLOCK_K * w_k
    return total


@kernel
def places(y, row, column, m, n, y_m, y_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    ys = y + row.to(tl.int64) * y_m + column.to(tl.int64) * y_n
    ys += rows[:, None] * y_m + columns[None, :] * y_n
    return ys, (rows[:, None] < m - row) & (columns[None, :] < n - column)


@kernel
def compute_tile(
    x, w, y, row, column, m, n, k, x_m, x_k, w_k, w_n, y_m, y_n, ADD: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if ADD:  # first, while registers are free
        ys, inside = places(y, row, column, m, n, y_m, y_n, BLOCK_M, BLOCK_N)
        total = tl.load(ys, mask=inside, other=0.0).to(tl.float32)
    total = block_product(
        total, x, w, row, column, m, n, k, x_m, x_k, w_k, w_n, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
    )
    ys, inside = places(y, row, column, m, n, y_m, y_n, BLOCK_M, BLOCK_N)
    tl.store(ys, total.to(y.dtype.element_ty), mask=inside)


@kernel
def matmul_kernel(
    x, w, y, m, n, k, x_m, x_k, w_k, w_n, y_m, y_n, ADD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    compute_tile(
        x, w, y, row, column, m, n, k, x_m, x_k, w_k, w_n, y_m, y_n, ADD, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
    )


@kernel
def persistent_kernel(
    x, w, y, m, n, k, x_m, x_k, w_k, w_n, y_m, y_n, ADD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        compute_tile(
            x, w, y, row, column, m, n, k, x_m, x_k, w_k, w_n, y_m, y_n, ADD, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
        )  # fmt: skip


@kernel
def tma_kernel(
    x, w, y, m, n, k, x_row, w_row, y_row, X_TURNED: tl.constexpr, W_TURNED: tl.constexpr, ADD: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    # A descriptor knows a matrix and its edges: a block is asked for by its place, and one thread asks for all of it.
    if X_TURNED:
        xs = tl.make_tensor_descriptor(x, [k, m], [x_row, 1], [BLOCK_K, BLOCK_M])
    else:
        xs = tl.make_tensor_descriptor(x, [m, k], [x_row, 1], [BLOCK_M, BLOCK_K])
    if W_TURNED:
        ws = tl.make_tensor_descriptor(w, [n, k], [w_row, 1], [BLOCK_N, BLOCK_K])
    else:
        ws = tl.make_tensor_descriptor(w, [k, n], [w_row, 1], [BLOCK_K, BLOCK_N])
    ys = tl.make_tensor_descriptor(y, [m, n], [y_row, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, k, BLOCK_K):
            a = xs.load([start, row]).T if X_TURNED else xs.load([row, start])
            b = ws.load([column, start]).T if W_TURNED else ws.load([start, column])
            total = tl.dot(a, b, total, input_precision=PRECISION)
        if ADD:
            total += ys.load([row, column]).to(tl.float32)
        ys.store([row, column], total.to(y.dtype.element_ty))


def matmul(
    x: Tensor,
    w: Tensor,
    onto: Tensor | None = None,
    tiles: Tiles | None = None,
    variant: Variant | None = None,
) -> Tensor:
    """x (m, k), w (k, n) -> (m, n) in their dtype; added to ``onto`` (m, n), which is returned, if that is given.

    ``tiles`` is `tuned` for the GPU at hand; ``variant`` "tma" where it can be and rows are not few, else
    "tiles". Raises ShapeError for sizes
    that do not match, ConfigError for dtypes that differ or are none of `TYPES`, and for "tma" where that cannot be.
    """
    m, k, n = _sizes(x, w, onto)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device) if onto is None else onto
    if not m * n:
        return y
    hopper = x.is_cuda and capability_of(x) >= 90
    few = hopper and m <= FEW and x.element_size() == 2
    if variant is None:
        variant = "tma" if hopper and not few and takes_tma(x, w, y) else "tiles"
    if tiles is None:
        tiles = FEW_ROWS if few else tuned(x.dtype, capability_of(x), variant, turned=w.stride(1) != 1)
    tiles = tiles.fitted(m, n)
    count = cdiv(m, tiles.m) * cdiv(n, tiles.n)
    options = {"ADD": onto is not None} | tiles.named()
    if variant == "tiles":
        matmul_kernel[(count,)](x, w, y, m, n, k, *x.stride(), *w.stride(), *y.stride(), **options)
        return y
    grid = (min(count, programs(x) * tiles.resident),)
    if variant == "persistent":
        persistent_kernel[grid](x, w, y, m, n, k, *x.stride(), *w.stride(), *y.stride(), **options)
        return y
    allocate_descriptors(x, w, y)
    turned = {"X_TURNED": x.stride(1) != 1, "W_TURNED": w.stride(1) != 1}
    tma_kernel[grid](x, w, y, m, n, k, *(max(t.stride()) for t in (x, w, y)), **turned, **options)
    return y


def takes_tma(*matrices: Tensor) -> bool:
    """Whether each lies as the tensor memory accelerator wants: rows or columns of whole 16 bytes, from a multiple of 16.

    The last one, which is written, must lie row by row.
    """

    def fits(x: Tensor) -> bool:
        size, aligned = x.element_size(), x.is_meta or x.data_ptr() % 16 == 0
        return aligned and min(x.stride()) == 1 and x.numel() > 0 and max(x.stride()) * size % 16 == 0

    return all(map(fits, matrices)) and matrices[-1].stride(1) == 1


def allocate_descriptors(x: Tensor, w: Tensor, y: Tensor) -> None:
    """Memory for descriptors of these matrices; raises ConfigError unless `takes_tma` does."""
    if not takes_tma(x, w, y):
        raise ConfigError(
            'variant is "tma", but that needs matrices whose rows or columns are contiguous and begin at '
            'multiples of 16 bytes; "tiles" and "persistent" take any'
        )
    if x.is_cuda:
        lend_scratch()


def precision() -> str:
    """How kernels multiply fp32: as PyTorch is set to (``torch.set_float32_matmul_precision``)."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def capability_of(x: Tensor) -> int:
    """Compute capability of the GPU that ``x`` is on, and of an A100 if it is on none."""
    if not x.is_cuda:
        return 80
    major, minor = capability(x.device)
    return 10 * major + minor


def programs(x: Tensor) -> int:
    """How many persistent programs to start: a multiprocessor has one."""
    if not x.is_cuda:
        return PROGRAMS
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count)


def _sizes(x: Tensor, w: Tensor, onto: Tensor | None) -> tuple[int, int, int]:
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[0]:
        raise ShapeError(f"x {tuple(x.shape)} and w {tuple(w.shape)} must be (m, k) and (k, n)")
    (m, k), n = x.shape, w.shape[1]
    if onto is not None and onto.shape != (m, n):
        raise ShapeError(f"onto {tuple(onto.shape)} must be ({m}, {n}), as x·w is")
    if {w.dtype, x.dtype if onto is None else onto.dtype} != {x.dtype}:
        raise ConfigError(f"w and onto must have the dtype of x, {x.dtype}")
    return m, k, n
