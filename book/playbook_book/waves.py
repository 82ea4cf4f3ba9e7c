"""In which order programs take the tiles of a product, and what those that run side by side bring into the L2 cache.

As many programs as there are multiprocessors run at once, a *wave*. All of a wave go through k at about the same pace, so
a block of x or of w that several of them need comes from memory once and from the L2 cache otherwise. From wave to wave
nothing is taken to stay: a cache of 50 MB does not hold x and w of a large product.
"""

from __future__ import annotations

from functools import cache

import torch

from playbook.kernels.jit import cdiv, kernel, tl
from playbook.kernels.matmul import PROGRAMS, Tiles, tile_of

#: Programs whose tiles one program of `order_kernel` works out: to interpret one for each would take seconds.
AT_ONCE = 1024


@kernel
def order_kernel(
    rows, columns, count, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, MANY: tl.constexpr
):  # fmt: skip
    program = tl.minimum(tl.program_id(0) * MANY + tl.arange(0, MANY), count - 1)  # the last more than once
    row, column = tile_of(program, m, n, BLOCK_M, BLOCK_N, GROUP)
    tl.store(rows + program, row // BLOCK_M)
    tl.store(columns + program, column // BLOCK_N)


@cache
def order(m: int, n: int, tiles: Tiles) -> tuple[tuple[int, int], ...]:
    """Row and column of each program's tile in y (m, n), counted in tiles, as `matmul.tile_of` says."""
    count = cdiv(m, tiles.m) * cdiv(n, tiles.n)
    rows, columns = torch.empty(2, count, dtype=torch.int32)
    sizes = {"BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "GROUP": tiles.group, "MANY": AT_ONCE}
    order_kernel[(cdiv(count, AT_ONCE),)](rows, columns, count, m, n, **sizes)
    return tuple(zip(rows.tolist(), columns.tolist(), strict=True))


def by_wave(m: int, n: int, tiles: Tiles, programs: int = PROGRAMS) -> list[tuple[tuple[int, int], ...]]:
    """`order`, cut into waves of so many programs."""
    found = order(m, n, tiles)
    return [found[i : i + programs] for i in range(0, len(found), programs)]


def read_by_waves(m: int, n: int, k: int, tiles: Tiles, itemsize: int = 2, programs: int = PROGRAMS) -> int:
    """Bytes of x (m, k) and w (k, n) that come from memory, if each wave brings every row and column of blocks once."""
    numbers = 0
    for wave in by_wave(m, n, tiles, programs):
        rows, columns = {row for row, _ in wave}, {column for _, column in wave}
        numbers += sum(min(tiles.m, m - row * tiles.m) for row in rows)
        numbers += sum(min(tiles.n, n - column * tiles.n) for column in columns)
    return numbers * k * itemsize
