"""Accesses of the CUDA kernels in ``cuda/``, one thread's at a time, for `warps.count`: the CUDA stands beside it.

From kernel to kernel of ``matmul.cu`` a product asks less of memory: naive, coalesced, tiled, coarsened, tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from playbook.errors import ConfigError
from playbook.kernels.jit import cdiv
from playbook_book.kernels.warps import Counted, Dim, Kernel, Step, Thread, branch, count, load, shared, store

TILE = 32
SIDE, DEPTH, EACH = 128, 8, 8
APART = SIDE // EACH
STEP, PAD = 32, 8

# vector_add.cu


def add(n: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        i = t.block.x * t.block_dim.x + t.x  # int i = blockIdx.x * blockDim.x + threadIdx.x;
        if i < n:
            yield load("x", i)
            yield load("y", i)
            yield store("z", i)  # if (i < n) z[i] = x[i] + y[i];

    return kernel


def add_pieces(n: int, each: int = 32) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        first = (t.block.x * t.block_dim.x + t.x) * each  # (blockIdx.x * blockDim.x + threadIdx.x) * each;
        for i in range(first, min(first + each, n)):  # for (int i = first; i < first + each && i < n; ++i)
            yield load("x", i)
            yield load("y", i)
            yield store("z", i)  # z[i] = x[i] + y[i];

    return kernel


def add_vectors(n: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        i = t.block.x * t.block_dim.x + t.x  # int i = blockIdx.x * blockDim.x + threadIdx.x;
        if 4 * i < n:  # if (4 * i < n) {
            yield load("x", i, size=16)
            yield load("y", i, size=16)  # float4 a = x[i], b = y[i];
            yield store("z", i, size=16)  # z[i] = make_float4(

    return kernel


# elu.cu


def elu(x: Sequence[float]) -> Kernel:
    """Which branch a thread takes depends on the numbers."""

    def kernel(t: Thread) -> Iterator[Step]:
        i = t.block.x * t.block_dim.x + t.x  # int i = blockIdx.x * blockDim.x + threadIdx.x;
        if i >= len(x):
            return  # if (i >= n) return;
        yield load("x", i)  # float value = x[i];
        if x[i] > 0:
            yield branch("above")  # if (value > 0.0f) {
            yield store("y", i, line="above")  # y[i] = value;
        else:
            yield branch("below")  # } else {
            yield store("y", i, line="below")  # y[i] = alpha * (expf(value) - 1.0f);

    return kernel


def elu_select(n: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        i = t.block.x * t.block_dim.x + t.x  # int i = blockIdx.x * blockDim.x + threadIdx.x;
        if i >= n:
            return  # if (i >= n) return;
        yield load("x", i)  # float value = x[i];
        yield store("y", i)  # y[i] = value > 0.0f ? value : below;

    return kernel


# matmul.cu


def naive(m: int, n: int, k: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        row = t.block.x * t.block_dim.x + t.x  # int row = blockIdx.x * blockDim.x + threadIdx.x;
        column = t.block.y * t.block_dim.y + t.y  # int column = blockIdx.y * blockDim.y + threadIdx.y;
        if row >= m or column >= n:
            return  # if (row >= m || column >= n) return;
        for p in range(k):
            yield load("A", row * k + p)
            yield load("B", p * n + column)  # sum += A[row * k + p] * B[p * n + column];
        yield store("C", row * n + column)  # C[row * n + column] = sum;

    return kernel


def coalesced(m: int, n: int, k: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        row = t.block.y * t.block_dim.y + t.y  # int row = blockIdx.y * blockDim.y + threadIdx.y;
        column = t.block.x * t.block_dim.x + t.x  # int column = blockIdx.x * blockDim.x + threadIdx.x;
        if row >= m or column >= n:
            return  # if (row >= m || column >= n) return;
        for p in range(k):
            yield load("A", row * k + p)
            yield load("B", p * n + column)  # sum += A[row * k + p] * B[p * n + column];
        yield store("C", row * n + column)  # C[row * n + column] = sum;

    return kernel


def tiled(m: int, n: int, k: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        x, y = t.x, t.y  # int x = threadIdx.x, y = threadIdx.y;
        row = t.block.y * TILE + y
        column = t.block.x * TILE + x  # int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
        for start in range(0, k, TILE):  # for (int start = 0; start < k; start += TILE) {
            if row < m and start + x < k:
                yield load("A", row * k + start + x)
            # As[y][x] = row < m && start + x < k ? A[row * k + start + x]
            yield shared("As", y * TILE + x, line="write")
            if start + y < k and column < n:
                yield load("B", (start + y) * n + column)
            # Bs[y][x] = start + y < k && column < n ? B[(start + y) * n
            yield shared("Bs", y * TILE + x, line="write")
            for p in range(TILE):
                yield shared("As", y * TILE + p, line="read")
                yield shared("Bs", p * TILE + x, line="read")  # sum += As[y][p] * Bs[p][x];
        if row < m and column < n:
            yield store("C", row * n + column)  # if (row < m && column < n) C[row * n + column] = sum;

    return kernel


def coarsened(m: int, n: int, k: int) -> Kernel:
    def kernel(t: Thread) -> Iterator[Step]:
        x, y = t.x % APART, t.x // APART  # x = thread % APART, y = thread / APART;
        row = t.block.y * SIDE
        column = t.block.x * SIDE  # int row = blockIdx.y * SIDE, column = blockIdx.x * SIDE;
        for start in range(0, k, DEPTH):  # for (int start = 0; start < k; start += DEPTH) {
            for at in range(t.x, SIDE * DEPTH, APART * APART):
                i, p = at // DEPTH, at % DEPTH  # int i = at / DEPTH, p = at % DEPTH;
                if row + i < m and start + p < k:
                    yield load("A", (row + i) * k + start + p)  # A[(row + i) * k + start + p]
                yield shared("As", i * DEPTH + p, line="write")  # As[i][p] =
            for at in range(t.x, DEPTH * SIDE, APART * APART):
                p, j = at // SIDE, at % SIDE  # int p = at / SIDE, j = at % SIDE;
                if start + p < k and column + j < n:
                    yield load("B", (start + p) * n + column + j)  # B[(start + p) * n + column + j]
                yield shared("Bs", p * SIDE + j, line="write")  # Bs[p][j] =
            for p in range(DEPTH):
                for i in range(EACH):
                    # a[i] = As[y + APART * i][p];
                    yield shared("As", (y + APART * i) * DEPTH + p, line="read")
                for j in range(EACH):
                    yield shared("Bs", p * SIDE + x + APART * j, line="read")  # b[j] = Bs[p][x + APART * j];
        for i in range(EACH):
            for j in range(EACH):
                # int r = row + y + APART * i, c = column + x + APART * j;
                r, c = row + y + APART * i, column + x + APART * j
                if r < m and c < n:
                    yield store("C", r * n + c)  # if (r < m && c < n) C[r * n + c] = sum[i][j];

    return kernel


def tensor_cores(m: int, n: int, k: int) -> Kernel:
    """Its copies. Which thread holds which number of a fragment is the compiler's affair."""

    def kernel(t: Thread) -> Iterator[Step]:
        row = t.block.y * SIDE
        column = t.block.x * SIDE  # int row = blockIdx.y * SIDE, column = blockIdx.x * SIDE;
        for start in range(0, k, STEP):  # for (int start = 0; start < k; start += STEP) {
            # for (int at = 8 * thread; at < SIDE * STEP; at += 8 * 256) {
            for at in range(8 * t.x, SIDE * STEP, 8 * 256):
                i, p = at // STEP, at % STEP  # int i = at / STEP, p = at % STEP;
                # *(const uint4 *)&A[(row + i) * k + start + p];
                yield load("A", ((row + i) * k + start + p) // 8, size=16)
                yield shared("As", (i * (STEP + PAD) + p) // 8, size=16)  # *(uint4 *)&As[i][p] =
            # for (int at = 8 * thread; at < STEP * SIDE; at += 8 * 256) {
            for at in range(8 * t.x, STEP * SIDE, 8 * 256):
                p, j = at // SIDE, at % SIDE  # int p = at / SIDE, j = at % SIDE;
                # *(const uint4 *)&B[(start + p) * n + column + j];
                yield load("B", ((start + p) * n + column + j) // 8, size=16)
                yield shared("Bs", (p * (SIDE + PAD) + j) // 8, size=16)  # *(uint4 *)&Bs[p][j] =

    return kernel


def _launches(name: str, m: int, n: int) -> tuple[Dim, Dim]:
    if name == "naive":
        # naive<<<dim3(pieces(m, 32), pieces(n, 8)), dim3(32, 8), 0
        return Dim(cdiv(m, 32), cdiv(n, 8)), Dim(32, 8)
    if name == "coalesced":
        # coalesced<<<dim3(pieces(n, 32), pieces(m, 8)), dim3(32, 8), 0
        return Dim(cdiv(n, 32), cdiv(m, 8)), Dim(32, 8)
    if name == "tiled":
        # tiled<<<dim3(pieces(n, TILE), pieces(m, TILE)), dim3(TILE, TILE), 0
        return Dim(cdiv(n, TILE), cdiv(m, TILE)), Dim(TILE, TILE)
    if name == "coarsened":
        # coarsened<<<dim3(pieces(n, SIDE), pieces(m, SIDE)), APART * APART, 0
        return Dim(cdiv(n, SIDE), cdiv(m, SIDE)), Dim(APART * APART)
    # tensor_cores<<<dim3(n / SIDE, m / SIDE), 256, 0
    return Dim(n // SIDE, m // SIDE), Dim(256)


#: The steps of the ladder, in order.
LADDER: dict[str, Callable[[int, int, int], Kernel]] = {
    "naive": naive,
    "coalesced": coalesced,
    "tiled": tiled,
    "coarsened": coarsened,
    "tensor_cores": tensor_cores,
}


def count_product(step: str, m: int, n: int, k: int) -> Counted:
    """What a step of the ladder asks of memory for A (m, k) times B (k, n), small ones. Raises ConfigError for others."""
    if step not in LADDER:
        raise ConfigError(f"step is {step!r}, but must be one of {', '.join(LADDER)}")
    if step == "tensor_cores" and (m % SIDE or n % SIDE or k % STEP):
        raise ConfigError(
            f"m, n and k are {m}, {n} and {k}, but must be multiples of {SIDE}, {SIDE} and {STEP}"
        )
    return count(LADDER[step](m, n, k), *_launches(step, m, n))
