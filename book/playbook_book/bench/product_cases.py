"""The cases of ``playbook bench kernels`` that multiply matrices: products, groups of them, attention, and the ladder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from playbook.kernels.flash_attention import attention_torch, flash_attention
from playbook.kernels.matmul import Variant, matmul, matmul_torch
from playbook.model.linear import Products
from playbook_book.bench.contenders import EAGER, Case, Contender, Outputs, in_cuda, normal
from playbook_book.kernels.grouped_matmul import (
    grouped_gradient,
    grouped_gradient_torch,
    grouped_matmul,
    grouped_matmul_torch,
)


def _library(cuda: bool) -> Contender:
    return Contender("cuBLAS" if cuda else "torch", torch.matmul)


# ---- products

#: The three products of a linear layer y = x·Wᵀ, by which of their factors lies transposed in memory.
LAYOUTS = {"x·Wᵀ": (False, True), "dy·W": (False, False), "dyᵀ·x": (True, False)}


def matmul_case(m: int, k: int, n: int, layout: str, cuda: bool) -> Case:
    """(m, k) times (k, n) in bf16. torch.compile takes cuBLAS, too, and so does not compete."""

    def make(g: torch.Generator) -> list[Tensor]:
        sides = zip(((m, k), (k, n)), LAYOUTS[layout], strict=True)
        return [
            normal(g, *size[::-1], dtype=torch.bfloat16).t() if turned else normal(g, *size, dtype=torch.bfloat16)
            for size, turned in sides
        ]  # fmt: skip

    hopper = cuda and torch.cuda.get_device_capability() >= (9, 0)
    names: tuple[Variant, ...] = ("tma", "tiles", "persistent") if hopper else ("tiles", "persistent", "tma")
    without = "" if hopper or not cuda else "this GPU has no tensor memory accelerator"
    variants = [
        Contender(name, partial(matmul, variant=name), True, without if name == "tma" else "")
        for name in names
    ]
    return Case(
        "matmul", f"{m:,} × {k:,} × {n:,}, {layout}", torch.bfloat16, make, 0, matmul_torch,
        (*variants, _library(cuda)), {"forward": (2 * (m * k + k * n + m * n), 2 * m * k * n)},
    )  # fmt: skip


def ladder_case(size: int, dtype: torch.dtype, cuda: bool) -> Case:
    """The steps in CUDA C++, of which the last one is compared with the others; tensor cores multiply fp16."""
    sixteen = dtype == torch.float16
    names = ("tensor_cores",) if sixteen else ("naive", "coalesced", "tiled", "coarsened")
    steps = (replace(one, ours=one.name == names[-1]) for one in in_cuda("multiply", names, cuda))
    return Case(
        "ladder", f"{size:,} × {size:,} × {size:,}", dtype,
        lambda g: [normal(g, size, size, dtype=dtype) for _ in range(2)], 0, matmul_torch,
        (*steps, _library(cuda)),
        # tensor cores write fp32
        {"forward": (size * size * (2 * dtype.itemsize + 4), 2 * size**3)},
    )  # fmt: skip


def grouped_cases(rows: int, k: int, n: int, groups: int, cuda: bool) -> list[Case]:
    """Rows of a layer's experts, of which some get many times what others get, and the gradient of their weights."""

    def ends_of(g: torch.Generator) -> Tensor:
        shares = torch.rand(groups, generator=g, device=g.device).square()
        return (shares.cumsum(0) / shares.sum() * rows).round().clamp(max=rows).to(torch.int32)

    def make(g: torch.Generator) -> list[Tensor]:
        x, w = normal(g, rows, k, dtype=torch.bfloat16), normal(g, groups, k, n, dtype=torch.bfloat16)
        return [x, w, ends_of(g)]

    def make_gradient(g: torch.Generator) -> list[Tensor]:
        return [*(normal(g, rows, width, dtype=torch.bfloat16) for width in (n, k)), ends_of(g)]

    theirs, size, flops = Products(), f"{rows:,} × {k:,} × {n:,}, {groups} groups", 2 * rows * k * n
    return [
        Case(
            name, size, torch.bfloat16, made, 0, twin,
            (Contender("ours", ours, True), Contender("eager", twin, waits=True), Contender("torch", peer)),
            {"forward": (2 * (rows * (k + n) + groups * k * n), flops)},
        )
        for name, made, ours, twin, peer in (
            ("grouped_matmul", make, grouped_matmul, grouped_matmul_torch, theirs.grouped),
            (
                "grouped_gradient", make_gradient, grouped_gradient, grouped_gradient_torch,
                theirs.grouped_weight_gradient,
            ),
        )
    ]  # fmt: skip


# ---- attention


def attention_case(
    b: int, s: int, heads: int, kv_heads: int, d: int, cuda: bool, eager: bool = True, flex: bool = True
) -> Case:
    """Causal, in bf16, from tensors (b, s, heads, d), of which SDPA gets transposed views.

    FLOPs are two products forward and five backward, half of each under the mask: what any way to do it needs. Ours
    computes seven in backward. ``eager`` says whether the scores of all heads fit into memory, ``flex`` whether
    FlexAttention is worth the time that it is compiled in.
    """

    def make(g: torch.Generator) -> list[Tensor]:
        return [normal(g, b, s, n, d, dtype=torch.bfloat16) for n in (heads, kv_heads, kv_heads)]

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Outputs:
        return attention_torch(q, k, v, causal=True)[0]

    grouped = heads != kv_heads
    flash, cudnn = (
        Contender(name, partial(_sdpa, backend, grouped), missing=missing)
        for name, backend, missing in (
            ("SDPA flash", SDPBackend.FLASH_ATTENTION, ""),
            ("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION, "" if cuda else "it needs a GPU"),
        )
    )
    compiled = Contender(
        "FlexAttention", partial(_flex, grouped), missing="" if cuda else "it is compared on a GPU"
    )
    missing = "" if eager else "its scores take too much memory"
    written_out = Contender("eager", formula, missing=missing, slack=EAGER)
    return Case(
        "attention", f"{b} × {s:,}, {_heads(heads, kv_heads)} of {d}", torch.bfloat16, make, 3, formula,
        (Contender("ours", partial(flash_attention, causal=True), True), flash, cudnn, *[compiled] * flex, written_out),
        _attention_needs(b, s, heads, kv_heads, d),
    )  # fmt: skip


def _heads(heads: int, kv_heads: int) -> str:
    return f"{heads} heads" if heads == kv_heads else f"{heads} and {kv_heads} heads"


def _attention_needs(b: int, s: int, heads: int, kv_heads: int, d: int) -> dict[str, tuple[int, int]]:
    """Each launch of ours reads and writes its tensors once: forward; delta, dk and dv, dq of backward."""
    q, k, row = 2 * b * s * heads * d, 2 * b * s * kv_heads * d, 4 * b * s * heads
    forward = 2 * q + 2 * k + row
    delta, keys, queries = 2 * q + row, 2 * q + 4 * k + 2 * row, 3 * q + 2 * k + 2 * row
    product = 2 * b * heads * s * s * d // 2
    return {"forward": (forward, 2 * product), "both": (forward + delta + keys + queries, 7 * product)}


def _sdpa(backend: SDPBackend, grouped: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


def _flex(grouped: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attend, mask = _flex_compiled(q.shape[1], str(q.device))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attend(q, k, v, block_mask=mask, enable_gqa=grouped).transpose(1, 2)


@cache
def _flex_compiled(s: int, device: str) -> tuple[Callable[..., Tensor], Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, s, s, device=device)
    return torch.compile(flex_attention, dynamic=False), mask


# ---- all of them


def product_cases(large: bool, cuda: bool) -> list[Case]:
    """Every kernel of this file, as large as models have them or as an interpreter manages."""
    if not large:
        return [
            attention_case(1, 64, 2, 2, 64, cuda),
            attention_case(1, 80, 4, 2, 16, cuda),
            *(matmul_case(48, 32, 64, layout, cuda) for layout in LAYOUTS),
            *grouped_cases(48, 32, 32, 4, cuda),
            *(ladder_case(128, dtype, cuda) for dtype in (torch.float32, torch.float16)),
        ]
    lengths = [(16_384 // s, s) for s in (2048, 4096, 8192, 16_384)]
    return [
        *(
            attention_case(b, s, 2048 // d, 2048 // d, d, cuda, s <= 4096, s == 16_384)
            for d in (128, 64)
            for b, s in lengths
        ),
        attention_case(2, 8192, 32, 8, 128, cuda, False, False),
        *(matmul_case(8192, 8192, 8192, layout, cuda) for layout in LAYOUTS),
        matmul_case(4096, 4096, 4096, "x·Wᵀ", cuda),
        matmul_case(8192, 2048, 8192, "x·Wᵀ", cuda),
        matmul_case(16, 4096, 14_336, "x·Wᵀ", cuda),
        *grouped_cases(32_768, 2048, 1024, 64, cuda),
        *(ladder_case(2048, dtype, cuda) for dtype in (torch.float32, torch.float16)),
    ]
