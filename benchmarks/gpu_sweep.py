"""Which tiles are fastest on this GPU: those of `TUNED` beside others, in turns, and the best of the libraries.

``sweep`` compiles all of them first, on as many processes as there are cores, into the cache that all share; then one
process times them. A case is a kernel in one size; a row of its ``rows`` is what `Tiles` or `Blocks` are made of.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpu_attention import Result, forget
from torch import Tensor
from torch.nn.attention import SDPBackend

from playbook.kernels.flash_attention import blocks_for, flash_forward
from playbook.kernels.flash_backward import Blocks, flash_backward
from playbook.kernels.fp8_matmul import fp8_matmul
from playbook.kernels.matmul import Tiles, matmul
from playbook.precision.recipes import load_fp8
from playbook.precision.scaling import Quantized
from playbook_book.bench.contenders import normal
from playbook_book.bench.fp8_cases import product_case
from playbook_book.bench.product_cases import LAYOUTS, _sdpa, matmul_case
from playbook_book.bench.replays import Times, times_in_turns

#: Tiles of products: rows, columns, k, warps, stages, group.
PRODUCTS = (
    (128, 256, 64, 8, 3, 8), (128, 256, 64, 8, 4, 8), (128, 256, 64, 8, 3, 16), (128, 256, 64, 8, 3, 4),
    (256, 128, 64, 8, 3, 8), (256, 128, 64, 8, 4, 8), (128, 128, 64, 8, 4, 8), (128, 128, 64, 4, 4, 8),
    (128, 256, 128, 8, 2, 8), (64, 256, 64, 4, 4, 8),
)  # fmt: skip
FEW_ROWS = (
    (16, 256, 64, 8, 3, 8), (16, 256, 128, 8, 3, 8), (16, 128, 128, 4, 4, 8), (16, 64, 128, 4, 5, 8),
    (16, 64, 256, 4, 4, 8), (16, 32, 256, 4, 4, 8), (16, 128, 64, 4, 6, 8),
)  # fmt: skip
FP8 = (
    (128, 128, 128, 8, 4, 8), (128, 128, 128, 8, 3, 8), (128, 128, 128, 4, 4, 8), (64, 128, 128, 4, 3, 8),
    (64, 128, 128, 4, 4, 8), (128, 64, 128, 4, 4, 8), (64, 256, 128, 8, 3, 8), (128, 256, 128, 8, 3, 8),
)  # fmt: skip
#: Blocks of attention: queries, keys, warps, stages.
FORWARD = (
    (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 2), (64, 64, 4, 2),
    (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 4, 3),
)  # fmt: skip
KEYS = (
    (32, 128, 8, 2), (64, 128, 8, 2), (64, 128, 8, 1), (64, 64, 4, 2), (32, 64, 4, 2), (64, 64, 8, 2), (32, 64, 4, 3),
    (128, 64, 8, 2), (128, 128, 8, 1),
)  # fmt: skip
QUERIES = (
    (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2), (64, 32, 4, 3), (128, 32, 8, 3),
    (128, 128, 8, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """``run(row, *tensors)`` computes with the tiles of a row; ``peers`` with what the libraries have."""

    name: str
    flops: int
    make: Callable[[torch.Generator], list[Tensor]]
    run: Callable[..., object]
    rows: tuple[tuple[int, ...], ...]
    peers: dict[str, Callable[..., object]]


def sweeps(large: bool) -> list[Sweep]:
    n = 8192 if large else 256
    products = [_product(n, n, n, layout, "tma") for layout in LAYOUTS]
    products += [_product(n // 2, n // 2, n // 2, "x·Wᵀ", "tma"), _product(n, n, n, "x·Wᵀ", "tiles")]
    few = [_product(16, 4096, 14_336, "x·Wᵀ", variant, FEW_ROWS) for variant in ("tma", "tiles")] * large
    fp8 = [_fp8(recipe, n) for recipe in ("blockwise", "tensorwise")]
    s = 8192 if large else 128
    attention = [_attention(kind, s, d) for d in (128, 64) for kind in ("forward", "keys", "queries")]
    return [*products, *attention, *fp8, *few]


def _product(
    m: int, k: int, n: int, layout: str, variant: str, rows: tuple[tuple[int, ...], ...] = PRODUCTS
) -> Sweep:
    def run(row: tuple[int, ...], x: Tensor, w: Tensor) -> Tensor:
        return matmul(x, w, tiles=Tiles(*row), variant=variant)  # type: ignore[arg-type]

    name, make = f"matmul {variant} {m} × {k} × {n}, {layout}", matmul_case(m, k, n, layout, cuda=False).make
    return Sweep(name, 2 * m * n * k, make, run, rows, {"cuBLAS": torch.matmul})


def _fp8(recipe: str, n: int) -> Sweep:
    case = product_case(recipe, "x·Wᵀ", n, n, n, torch.cuda.is_available())
    asked = load_fp8(recipe)
    sizes = asked.groups.size((n, n)), asked.weights.size((n, n))

    def run(row: tuple[int, ...], a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, *_: Tensor) -> Tensor:
        return fp8_matmul(Quantized(a, of_a, sizes[0]), Quantized(b, of_b, sizes[1]), tiles=Tiles(*row))

    peers = {one.name: one.run for one in case.contenders if not one.ours and not one.missing}
    return Sweep(f"fp8 {recipe} {n}³", 2 * n**3, case.make, run, FP8, peers)


def _attention(kind: str, s: int, d: int) -> Sweep:
    heads, b, scale = 2048 // d, max(16_384 // s, 1) if s > 1024 else 1, d**-0.5

    def make(g: torch.Generator) -> list[Tensor]:
        tensors = [normal(g, b, s, heads, d, dtype=torch.bfloat16) for _ in range(4)]
        q, k, v, _ = tensors
        o, lse = flash_forward(q, k, v, causal=True, scale=scale, offset=0, blocks=blocks_for(90, d).forward)
        return [*tensors, o, lse]

    def run(
        row: tuple[int, ...], q: Tensor, k: Tensor, v: Tensor, do: Tensor, o: Tensor, lse: Tensor
    ) -> object:
        given: dict[str, Any] = {"causal": True, "scale": scale, "offset": 0}
        if kind == "forward":
            return flash_forward(q, k, v, blocks=Blocks(*row), **given)
        tuned = {"keys": blocks_for(90, d).keys, "queries": blocks_for(90, d).queries} | {kind: Blocks(*row)}
        return flash_backward(do, q, k, v, o, lse, **tuned, **given)

    peers = {
        name: partial(_peer, backend, kind == "forward")
        for name, backend in (
            ("SDPA flash", SDPBackend.FLASH_ATTENTION), ("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION)
        )
    }  # fmt: skip
    product = 2 * b * heads * s * s * d // 2
    rows = {"forward": FORWARD, "keys": KEYS, "queries": QUERIES}[kind]
    return Sweep(
        f"attention {kind} {b} × {s}, {heads} heads of {d}", (2 if kind == "forward" else 5) * product, make, run, rows,
        peers if torch.cuda.is_available() else {},
    )  # fmt: skip


def _peer(
    backend: SDPBackend, forward: bool, q: Tensor, k: Tensor, v: Tensor, do: Tensor, *_: Tensor
) -> object:
    """Forward, or both ways."""
    if forward:
        return _sdpa(backend, False, q, k, v)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(_sdpa(backend, False, *leaves), leaves, do)


def sweep(device: str) -> Iterator[Result]:
    """``cases``: by the name of each, TFLOP/s of every row, the fastest first, and of the peers; what failed and why."""
    large, found = device == "cuda", {}
    result: Result = {"cases": found}
    if large:
        _compile_all()
    for one in sweeps(large):
        tensors = one.make(torch.Generator(device).manual_seed(0))
        rows = one.rows if large else one.rows[:1]
        calls = {str(row): partial(one.run, row, *tensors) for row in rows}
        calls |= {name: partial(run, *tensors) for name, run in one.peers.items()}
        times = times_in_turns(calls, device, 30)
        reached = {
            name: one.flops / t.seconds / 1e12
            if isinstance(t, Times)
            else f"{type(t).__name__}: {str(t)[:120]}"
            for name, t in times.items()
        }
        found[one.name] = dict(
            sorted(reached.items(), key=lambda item: -item[1] if isinstance(item[1], float) else 0)
        )
        print(
            one.name,
            {n: round(x) if isinstance(x, float) else x[:60] for n, x in found[one.name].items()},
            flush=True,
        )
        del tensors, calls
        forget(device)
        yield result


def _compile_all() -> None:
    """Every row once, in processes of their own: one that fails, or takes the GPU with it, loses no other."""
    work = [(i, j) for i, one in enumerate(sweeps(True)) for j in range(len(one.rows))]
    workers = max(1, min(14, (os.cpu_count() or 2) - 2))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job in as_completed([pool.submit(_once, *place) for place in work]):
            if job.exception():
                print("compiling:", str(job.exception())[:200], flush=True)


def _once(case: int, row: int) -> None:
    one = sweeps(True)[case]
    one.run(one.rows[row], *one.make(torch.Generator("cuda").manual_seed(0)))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
