"""What kernels of tensor cores are made of: tiles, workers, instructions. Standard library only.

Tiles are those of each kernel's source at the version that was measured, or what our own compile to. Of cuBLAS and cuDNN,
whose source is closed, they are assumed: the best of CUTLASS's usual tiles, and FlashAttention-3's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from playbook.errors import ConfigError
from playbook_book.kernels.modelled import SYNCHRONOUS, Gpu, Kernel, Turn, predicted

#: Columns of the rows of a warp group's product, with wgmma; of a warp's, with mma.sync.
GROUP = 64


class Tile(NamedTuple):
    """Of a product: rows, columns, workers, resident blocks, shares of k; ``sync``: mma.sync; ``cast``: to two."""

    m: int
    n: int
    workers: int = 2
    resident: int = 1
    split: int = 1
    sync: bool = False
    cast: bool = False


class Shape(NamedTuple):
    """Of attention."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    d: int
    causal: bool = False


class Heads(NamedTuple):
    """Of attention: rows of a worker, keys of a turn, workers, resident blocks, turns ahead, instructions of a score."""

    m: int
    n: int
    workers: int
    resident: int = 1
    ahead: int = 1
    instructions: float = 4.5
    sync: bool = False


#: Rows, columns, workers and resident blocks of CUTLASS's tiles for Hopper: two groups of a tile, or one each
#: (ping-pong), of whose rows every second block gets its neighbour's copy; and of those on Ampere.
_HOPPER = (
    (128, 256, 2, 1),
    (256, 128, 2, 1),
    (64, 256, 1, 2),
    (128, 128, 2, 1),
    (64, 128, 1, 2),
    (64, 64, 1, 3),
)
_AMPERE = (
    (128, 256, 2, 1), (256, 128, 2, 1), (128, 128, 1, 2), (64, 256, 1, 2), (128, 64, 1, 3), (64, 128, 1, 3),
    (64, 64, 1, 4),
)  # fmt: skip
CUTLASS = tuple(Tile(*tile, split, cast=True) for tile in _HOPPER for split in (1, 2, 4, 8))
AMPERE = tuple(Tile(*tile, split, sync=True) for tile in _AMPERE for split in (1, 2, 4))
#: The tutorial's own list (python/tutorials/03-matrix-multiplication.py) knows no split.
TUTORIAL = tuple(tile for tile in AMPERE if tile.split == 1 and tile[:2] != (256, 128))
#: DeepGEMM at its first release: 64 or 128 rows, columns in steps of 8 (deep_gemm/jit_kernels/gemm.py).
DEEPGEMM = tuple(Tile(m, n, m // 64, cast=m == 128) for m in (64, 128) for n in range(16, 136, 8))
PRODUCTS = {
    "cublas": CUTLASS,
    "deepgemm": DEEPGEMM,
    "triton": TUTORIAL,
    "clusters": (Tile(128, 256, cast=True),),  # kernels 7 and 11 of pranjalssh/fast.cu
    "hilbert": (Tile(128, 256, cast=True),),
    "ours tma": (Tile(128, 256),),
    "ours groups": (Tile(192, 128, 3),),
    "ours scaled": (Tile(64, 128, 1, 2),),
}


def one_product(tile: Tile, m: int, n: int, k: int, size: int, gpu: Gpu) -> Kernel:
    """y (m, n) in 16 bits from x (m, k) and w (n, k) of ``size`` bytes a number; FP8 with a scale for each 128 of k."""
    deep, rows = 128 // size, tile.m / tile.workers  # of k in a turn; 128 bytes
    speed = 2.0 / size * (SYNCHRONOUS if tile.sync and gpu.generation == "hopper" else 1.0)
    if tile.sync:  # warps of 64 × 64 read both operands
        shared = size * deep * (rows * tile.n / GROUP + rows * tile.n / GROUP)
    else:  # groups of 64 rows read their rows, and all columns
        shared = size * deep * rows / GROUP * (GROUP + tile.n)
    read = (tile.m / (2 if tile.cast else 1) + tile.n) * size * deep / tile.workers
    promoted = 2.0 * rows * tile.n if size == 1 else 0.0
    turn = Turn(2 * rows * tile.n * deep, 0.0, promoted, shared, read, speed, tile.sync)
    turns = -(-k // (deep * tile.split))
    blocks = ((turns, -(-m // tile.m) * -(-n // tile.n) * tile.split),)
    sums = 8 * m * n * tile.split if tile.split > 1 else 0  # written and read again, in fp32
    moved = size * (m + n) * k + 2 * m * n + sums
    ends = tile.m * tile.n * (4 if tile.split > 1 else 2)
    return Kernel(
        turn, blocks, tile.workers, tile.resident, ends, moved, 2 * m * n * k, launches=1 + (tile.split > 1)
    )


def product(name: str, m: int, n: int, k: int, size: int, gpu: Gpu) -> Kernel:
    """The fastest, as predicted, of the tiles that a library has. Raises ConfigError for names not in `PRODUCTS`."""
    if name not in PRODUCTS:
        raise ConfigError(f"kernel is {name!r}, but must be one of {', '.join(PRODUCTS)}")
    tiles = AMPERE if name == "cublas" and gpu.generation == "ampere" else PRODUCTS[name]
    found: Iterable[Kernel] = (one_product(tile, m, n, k, size, gpu) for tile in tiles)
    return min(found, key=lambda kernel: predicted(kernel, gpu))


def heads(name: str, direction: str, d: int, causal: bool, gpu: Gpu) -> Heads:
    """FlashAttention-2: flash_fwd_launch_template.h; -3: hopper/tile_size.h; ours: as they compile."""
    wide = d > 128
    if name == "fa2" or (name == "cudnn" and gpu.generation == "ampere"):
        if direction == "backward":
            # Barriers keep its eight warps together.
            return Heads(128, 64 if d > 64 else 128, 1, 1, 1, 5.5, True)
        return Heads(64 if wide else 128, 64 if d > 64 else 128, 1, 2, 1, 4.5, True)
    if name in ("fa3", "fa4", "cudnn"):
        if direction == "backward":
            return Heads(64, 128 if d == 64 else 64 if causal else 80, 2, 1, 1, 5.5)
        keys = 80 if wide else 128 if d == 64 or causal else 176
        return Heads(64, keys, 3 if d == 64 else 2, 1, 2)
    if name == "triton":
        return Heads(128, 64, 1, 1, 1, 7.5)  # one program of eight warps, which barriers keep together
    if name == "ours":
        if d == 128 and direction == "forward":  # in groups
            return Heads(64, 128, 2, 1, 2, 7.5)
        return Heads(64, 64, 1, 2 if d > 64 else 3, 1, 7.5)
    raise ConfigError(f"kernel is {name!r}, but must be fa2, fa3, fa4, cudnn, triton or ours")


def attention(name: str, direction: str, shape: Shape, gpu: Gpu) -> Kernel:
    """softmax(q·kᵀ)·v, or its gradients, for q (batch, seq, heads, d) and k, v of ``kv_heads``, 16 bits.

    Raises ConfigError for kernels that are none of `heads`.
    """
    batch, seq, d, causal = shape.batch, shape.seq, shape.d, shape.causal
    by = heads(name, direction, d, causal, gpu)
    forward, rows, keys = direction == "forward", by.m, by.n
    scores, products = rows * keys, 4 if forward else 10  # FLOPs that count: of backward five products
    passes = (
        2 if name == "ours" and not forward else 1
    )  # ours are seven, in two passes, and no sums in memory
    speed = SYNCHRONOUS if by.sync and gpu.generation == "hopper" else 1.0
    executed = 14 if passes == 2 else products
    sums = 0 if forward or passes == 2 else 8  # bytes of dq, which blocks add to in fp32
    turn = Turn(
        executed * scores * d, passes * scores, passes * scores * by.instructions + rows * d,
        executed / products * _shared(by, d, forward), (4 * passes + sums) * keys * d / by.workers, speed, by.sync,
    )  # fmt: skip
    high = rows * by.workers
    each = batch * shape.heads
    if causal:
        ends_at = [-(-min((i + 1) * high, seq) // keys) for i in range(-(-seq // high))]
        blocks = tuple((turns, each) for turns in sorted(ends_at, reverse=True))
    else:
        blocks = ((-(-seq // keys), each * -(-seq // high)),)
    tensors = batch * seq * d * shape.heads, batch * seq * d * shape.kv_heads
    # Backward is three kernels: o·do, the products, and dq, whose sums are in fp32, in 16 bits.
    moved = 4 * sum(tensors) if forward else 2 * (4 * tensors[0] + 4 * tensors[1]) + (4 + 8 + 6) * tensors[0]
    flops = products * batch * shape.heads * seq * seq * d / (2 if causal else 1)
    return Kernel(
        turn, blocks, by.workers, by.resident, 2 * 2 * high * d, moved, flops, by.ahead, 1 if forward else 3
    )


def _shared(by: Heads, d: int, forward: bool) -> float:
    """Bytes of shared memory that a worker's products read in a turn: rows of 64 (or of a warp's 32) and all columns."""
    high = 32 if by.sync else GROUP
    times = by.m / high
    if forward:  # q with k; p, in registers, with v
        return 2 * times * (high * d + 2 * by.n * d)
    operands = 2 * (high * d + by.n * d) + 2 * by.n * d + by.n * high + by.n * d
    return 2 * times * operands
