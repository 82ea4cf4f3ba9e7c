"""What one device does in how much time: matrix products, attention, passes over memory, the optimizer, single calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.instruments.measure import count_traffic, synchronize
from playbook.model.norms import LayerNorm, RMSNorm
from playbook.model.ops import TORCH_OPS, activate
from playbook.training.optimizer import adamw

Row = dict[str, Any]
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Grid:
    """The sizes that are measured, and ``budget``: seconds that one measurement may take, warm-up left out."""

    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    seqs: tuple[int, ...]
    heads: tuple[int, ...]  # head sizes
    elements: tuple[int, ...]
    hidden: int
    copies: tuple[int, ...]  # bytes
    dtypes: tuple[str, ...]
    budget: float = 0.08
    #: FLOPs of the largest product that is worth its time.
    most: float = 5e9


CPU = Grid(
    tokens=(16, 64, 256, 1024, 4096),
    widths=(32, 128, 512, 1536),
    seqs=(64, 256, 1024),
    heads=(16, 32, 64, 128),
    elements=tuple(1 << i for i in range(10, 21, 2)),
    hidden=256,
    copies=tuple(1 << i for i in range(12, 28, 3)),
    dtypes=("float32", "bfloat16"),
)
GPU = Grid(
    tokens=(128, 1024, 4096, 16384),
    widths=(256, 1024, 4096, 8192),
    seqs=(512, 2048, 8192),
    heads=(64, 128),
    elements=tuple(1 << i for i in range(14, 28, 3)),
    hidden=4096,
    copies=tuple(1 << i for i in range(16, 31, 3)),
    dtypes=("bfloat16", "float16", "float32"),
    most=5e12,
)
QUICK = Grid(
    (16, 64), (16, 48), (16, 32, 64), (8, 16), (256, 1024, 4096), 64, (1024, 8192), ("float32",), 0.004
)


def seconds_of(function: Callable[[], Any], device: str, budget: float) -> float:
    """Median seconds of a call, each sample being as many calls as take about 2 ms; at least three samples."""
    function()
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    calls = max(1, min(1000, int(2e-3 / max(time.perf_counter() - start, 1e-7))))
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 100):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        synchronize(device)
        samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples)


def products(grid: Grid, device: str) -> Iterator[Row]:
    """Linear layers: (m, k) tokens times weights (n, k); then what backward takes in proportion, at some sizes."""
    for dtype in grid.dtypes:
        for m in grid.tokens:
            for k in grid.widths:
                for n in grid.widths:
                    if 2 * m * n * k <= grid.most:
                        yield _product(grid, device, dtype, m, n, k)


def _product(grid: Grid, device: str, dtype: str, m: int, n: int, k: int) -> Row:
    of: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
    x, w = torch.randn(m, k, **of), torch.randn(n, k, **of)
    row: Row = {"dtype": SHORT[dtype], "m": m, "n": n, "k": k}
    row["seconds"] = seconds_of(lambda: F.linear(x, w), device, grid.budget)
    if k == n and m != grid.tokens[0]:
        x, w = x.requires_grad_(), w.requires_grad_()
        y, g = F.linear(x, w), torch.randn(m, n, **of)
        row["backward_s"] = seconds_of(
            lambda: torch.autograd.grad(y, (x, w), g, retain_graph=True), device, grid.budget
        )
    return row


def attention(grid: Grid, device: str) -> Iterator[Row]:
    """The model's attention core, causal, forward and backward: (b, heads, s, d)."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    for s in grid.seqs:
        for d in grid.heads:
            for batch in sorted({1, max(1, 2 * grid.seqs[-1] // s)}):
                yield _attention(grid, device, dtype, batch, s, d)


def _attention(grid: Grid, device: str, dtype: str, batch: int, s: int, d: int) -> Row:
    of: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype), "requires_grad": True}
    q, k, v = (torch.randn(batch, 4, s, d, **of) for _ in range(3))
    y = TORCH_OPS.attention(q, k, v)
    g = torch.randn_like(y)
    row: Row = {"dtype": SHORT[dtype], "batch": batch, "heads": 4, "seq": s, "head": d}
    with torch.no_grad():
        row["forward_s"] = seconds_of(lambda: TORCH_OPS.attention(q, k, v), device, grid.budget)
    row["backward_s"] = seconds_of(
        lambda: torch.autograd.grad(y, (q, k, v), g, retain_graph=True), device, grid.budget
    )
    return row


def passes(grid: Grid, device: str) -> Iterator[Row]:
    """What is computed between products, forward and backward, by the number of elements of its input."""
    for name in PASSES:
        for elements in grid.elements:
            x, inputs, forward = PASSES[name](max(1, elements // grid.hidden), grid.hidden, device)
            row: Row = {"name": name, "elements": x.numel()}
            with torch.no_grad():
                row["bytes"] = count_traffic(forward)
                row["forward_s"] = seconds_of(forward, device, grid.budget / 2)
            if inputs:
                y = forward()
                g = torch.ones_like(y)

                def backward(y: Tensor = y, inputs: list[Tensor] = inputs, g: Tensor = g) -> Any:
                    return torch.autograd.grad(y, inputs, g, retain_graph=True)

                row["backward_bytes"] = count_traffic(backward)
                row["backward_s"] = seconds_of(backward, device, grid.budget / 2)
            yield row


#: An input (rows, h), what backward differentiates by (nothing: there is no backward), and the pass itself.
Pass = tuple[Tensor, list[Tensor], Callable[[], Tensor]]


def _add(rows: int, h: int, device: str) -> Pass:
    x, y = torch.randn(2, rows, h, device=device)
    return x, [], lambda: x + y


def _activation(kind: str) -> Callable[[int, int, str], Pass]:
    def make(rows: int, h: int, device: str) -> Pass:
        x = torch.randn(rows, h, device=device, requires_grad=True)
        return x, [x], lambda: activate(x, kind)

    return make


def _norm(kind: type[LayerNorm] | type[RMSNorm]) -> Callable[[int, int, str], Pass]:
    def make(rows: int, h: int, device: str) -> Pass:
        x, norm = torch.randn(rows, h, device=device, requires_grad=True), kind(h).to(device)
        return x, [x, *norm.parameters()], lambda: norm(x)

    return make


def _rotary(rows: int, h: int, device: str) -> Pass:
    d = min(64, h)
    x = torch.randn(1, rows, h // d, d, device=device, requires_grad=True)
    cos, sin = torch.randn(2, rows, d, device=device)
    return x, [x], lambda: TORCH_OPS.rotary(x, cos, sin)


def _loss(rows: int, h: int, device: str) -> Pass:
    x = torch.randn(rows, h, device=device, requires_grad=True)
    targets = torch.randint(h, (rows,), device=device)
    return x, [x], lambda: F.cross_entropy(x, targets, reduction="sum")


def _square_sum(rows: int, h: int, device: str) -> Pass:
    x = torch.randn(rows, h, device=device)
    return x, [], lambda: x.square().sum()


PASSES: dict[str, Callable[[int, int, str], Pass]] = {
    "add": _add,
    "gelu": _activation("gelu"),
    "silu": _activation("silu"),
    "layer_norm": _norm(LayerNorm),
    "rms_norm": _norm(RMSNorm),
    "rotary": _rotary,
    "cross_entropy": _loss,
    "square_sum": _square_sum,
}


def copies(grid: Grid, device: str) -> Iterator[Row]:
    """Copies of so many bytes: twice as many are moved."""
    for size in grid.copies:
        x, y = torch.zeros(2, size // 4, device=device)
        seconds = seconds_of(lambda x=x, y=y: y.copy_(x), device, grid.budget)  # type: ignore[misc]
        yield {"bytes": size, "seconds": seconds, "bytes_per_s": 2 * size / seconds}


def optimizer(grid: Grid, device: str) -> Iterator[Row]:
    """Steps of AdamW over so many tensors of so many parameters each."""
    large = grid.elements[-1]
    for tensors, each in ((1, 256), (16, 256), (64, 256), (4, large // 8), (16, large // 8), (4, large)):
        weights = [torch.zeros(each, device=device, requires_grad=True) for _ in range(tensors)]
        for w in weights:
            w.grad = torch.ones_like(w)
        step = adamw([(w, True) for w in weights], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1).step
        seconds = seconds_of(step, device, grid.budget)
        yield {"tensors": tensors, "parameters": tensors * each, "seconds": seconds}


def call(grid: Grid, device: str) -> float:
    """Seconds of an elementwise operation on one number."""
    x = torch.zeros(1, device=device)
    with torch.no_grad():
        return seconds_of(lambda: x + x, device, grid.budget)
