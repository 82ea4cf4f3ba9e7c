"""What `recorded.py` shows in place of a run until there is one: the benchmarks' cases, predicted for an H200.

Kernels of tensor cores as `modelled.py` has them; those that go through memory once take what a copy of as many bytes
takes. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from playbook_book.kernels.modelled import COPIED, FITTED, GPUS, SELDOM, USUAL, predicted
from playbook_book.kernels.modelled_kernels import Shape, attention, product

GPU = GPUS["h200"]
#: The sentence that belongs to every table or figure of predicted rows.
HEADING = (
    "Predicted for one NVIDIA H200, not measured: no run on a GPU is recorded here. Of published times, half are at most "
    f"{USUAL:.0%} off such predictions, nine of ten at most {SELDOM:.0%}."
)


class Modelled(NamedTuple):
    """A row: what is measured under these names, and the seconds that it should take."""

    kernel: str
    size: str
    dtype: str
    direction: str
    contender: str
    seconds: float
    flops: int
    bytes: int


#: Sizes of products: rows of x, of Wᵀ, columns. Of attention: batch, tokens, heads, their dims.
PRODUCTS = (8192, 8192, 8192), (4096, 4096, 4096), (8192, 2048, 8192)
FP8 = (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 14336), (8192, 14336, 4096)
ATTENTION = tuple((b, 16_384 // b, 2048 // d, d) for d in (128, 64) for b in (8, 4, 2, 1))
#: What a record calls these kernels.
BY = {"ours": "ours", "SDPA flash": "fa2", "SDPA cuDNN": "cudnn"}
#: Kernels that go through memory once: sizes, dtype, numbers, bytes of each forward and backward.
STREAMS = (
    ("rms_norm", "16,384 × 4,096", "bfloat16", 16_384 * 4096, 4, 6),
    ("rms_norm", "8,192 × 8,192", "bfloat16", 8192 * 8192, 4, 6),
    ("add_rms_norm", "16,384 × 4,096", "bfloat16", 16_384 * 4096, 8, 8),
    ("layer_norm", "16,384 × 4,096", "bfloat16", 16_384 * 4096, 4, 6),
    ("swiglu", "8,192 × 14,336", "bfloat16", 8192 * 14_336, 6, 10),
    ("cross_entropy", "8,192 × 128,256", "bfloat16", 8192 * 128_256, 2, 4),
    ("elu", "67,108,864", "float32", 2**26, 8, 12),
    ("vector_add", "67,108,864", "float32", 2**26, 12, 0),
    ("adamw", "134,217,728", "float32", 2**27, 28, 0),
)


def kernels() -> Iterator[Modelled]:
    """Cases of ``playbook bench kernels``."""
    for m, k, n in PRODUCTS:
        for contender, name in (("tma", "ours tma"), ("cuBLAS", "cublas")):
            seconds = predicted(product(name, m, n, k, 2, GPU), GPU)
            moved = 2 * (m * k + k * n + m * n)
            size = f"{m:,} × {k:,} × {n:,}, x·Wᵀ"
            yield Modelled("matmul", size, "bfloat16", "forward", contender, seconds, 2 * m * n * k, moved)
    for batch, seq, heads, d in ATTENTION:
        yield from _attention(
            Shape(batch, heads, heads, seq, d, True), f"{batch} × {seq:,}, {heads} heads of {d}"
        )
    for kernel, size, dtype, numbers, forward, backward in STREAMS:
        for direction, each in (("forward", forward), ("both", forward + backward)):
            if direction == "forward" or backward:
                seconds = FITTED.launch + numbers * each / (COPIED * GPU.bandwidth)
                yield Modelled(kernel, size, dtype, direction, "ours", seconds, 0, numbers * each)


def _attention(shape: Shape, size: str) -> Iterator[Modelled]:
    for contender, name in BY.items():
        ways = [attention(name, direction, shape, GPU) for direction in ("forward", "backward")]
        for direction, parts in (("forward", ways[:1]), ("both", ways)):
            seconds = sum(predicted(part, GPU) for part in parts)
            flops, moved = (int(sum(getattr(part, field) for part in parts)) for field in ("flops", "bytes"))
            yield Modelled("attention", size, "bfloat16", direction, contender, seconds, flops, moved)


def fp8() -> Iterator[Modelled]:
    """Cases of ``playbook bench fp8``: products with a scale for each 128 of k."""
    for m, k, n in FP8:
        for contender, name, width in (
            ("groups", "ours groups", 1), ("tma", "ours scaled", 1), ("torch", "deepgemm", 1),
            ("bf16 cuBLAS", "cublas", 2),
        ):  # fmt: skip
            seconds = predicted(product(name, m, n, k, width, GPU), GPU)
            size, moved = f"{m:,} × {k:,} × {n:,}, x·Wᵀ", m * k + k * n + 2 * m * n
            yield Modelled(
                "blockwise", size, "float8_e4m3fn", "forward", contender, seconds, 2 * m * n * k, moved
            )
