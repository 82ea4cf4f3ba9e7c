"""The cases of ``playbook bench fp8``: products of two quantised matrices, recipe by recipe, and what quantises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.kernels import quantize as kernels
from playbook.kernels.fp8_matmul import Variant, bytes_moved, flops, fp8_matmul
from playbook.precision.products import scaled_by_blocks
from playbook.precision.recipes import Groups, load_fp8
from playbook.precision.scaling import Quantized, quantize_torch
from playbook_book.bench.contenders import Case, Contender, Outputs, contenders, installed, normal

E4M3 = torch.float8_e4m3fn
#: How much further those may be off who add up thousands of products with about 14 bits: sums of 4,096 are off by nearly
#: 2 % (DeepSeek-AI 2024, section 3.3.2).
FAST_SUMS = 2.0
#: The products of a layer, each of a (m, k) and b (n, k): whether a is a gradient, and whether b is an activation.
PRODUCTS = {"x·Wᵀ": (False, False), "dy·W": (True, False), "dyᵀ·x": (True, True)}


# ---- products


def product_case(recipe: str, product: str, m: int, n: int, k: int, cuda: bool) -> Case:
    """a (m, k) times b (n, k) transposed, in the groups and formats that ``recipe`` has for this product.

    Those who multiply in bf16 get the same numbers, dequantised. FLOPs are compared with the peak of FP8.
    """
    asked, (gradient, activation) = load_fp8(recipe), PRODUCTS[product]
    of_a, of_b = asked.groups, asked.groups if activation else asked.weights
    sizes = of_a.size((m, k)), of_b.size((n, k))

    def make(g: torch.Generator) -> list[Tensor]:
        a = quantize_torch(_numbers(g, m, k), asked.gradients if gradient else asked.forward, of_a)
        b = quantize_torch(_numbers(g, n, k), asked.forward, of_b)
        return [a.codes, b.codes, *map(_scales, (a, b)), *(x.dequantized(torch.bfloat16) for x in (a, b))]

    def ours(
        variant: Variant, fast: bool, a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, *_: Tensor
    ) -> Tensor:
        return fp8_matmul(
            Quantized(a, of_a, sizes[0]), Quantized(b, of_b, sizes[1]), variant=variant, fast=fast
        )

    def twin(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, *_: Tensor) -> Tensor:
        x, y = Quantized(a, of_a, sizes[0]), Quantized(b, of_b, sizes[1])
        return x.dequantized() @ y.dequantized().t()

    hopper = cuda and torch.cuda.get_device_capability() >= (9, 0)
    names: tuple[Variant, ...] = ("tma", "tiles") if hopper else ("tiles", "tma")
    if cuda and torch.cuda.get_device_capability() == (9, 0) and of_a.rows == 1 and of_b.rows == kernels.TILE:
        names = ("groups", *names)
    without = "" if hopper or not cuda else "this GPU has no tensor memory accelerator"
    variants = [
        Contender(name, partial(ours, name, False), True, without if name == "tma" else "") for name in names
    ]
    if asked.groups.columns is None:  # one scale for all of k
        variants.append(
            Contender(f"{names[0]}, fast sums", partial(ours, names[0], True), True, slack=FAST_SUMS)
        )
    library = Contender("bf16 cuBLAS" if cuda else "bf16 torch", lambda *t: t[4] @ t[5].t())
    return Case(
        recipe, f"{m:,} × {k:,} × {n:,}, {product}", E4M3, make, 0, twin,
        (*variants, library, *_peers(of_a, of_b, cuda, hopper)),
        {"forward": (bytes_moved(m, n, k, *sizes), flops(m, n, k))},
    )  # fmt: skip


def _scales(x: Quantized) -> Tensor:
    """As `kernels.quantize` writes them: those of tiles column by column."""
    return x.scales.t().contiguous().t() if x.size == (1, kernels.TILE) else x.scales


def _numbers(g: torch.Generator, rows: int, k: int) -> Tensor:
    return normal(g, rows, k, dtype=torch.bfloat16)


def _peers(of_a: Groups, of_b: Groups, cuda: bool, hopper: bool) -> list[Contender]:
    """PyTorch's own, and for tiles and blocks DeepGEMM's."""
    if of_a.rows is None or of_a.columns is None:
        by_row = of_a.rows is not None
        fast = "" if cuda else "it needs a GPU"
        return [
            Contender("torch", partial(_scaled_mm, by_row, False)),
            Contender("torch, fast sums", partial(_scaled_mm, by_row, True), missing=fast, slack=FAST_SUMS),
        ]
    missing = "" if hopper else "it needs a GPU of compute capability 9.0"
    if not hasattr(F, "scaled_mm"):
        missing = "this PyTorch has no torch.nn.functional.scaled_mm"
    own = Contender("torch", lambda a, b, of_a, of_b, *_: scaled_by_blocks(a, b, of_a, of_b), missing=missing)
    theirs = installed("DeepGEMM", "deep_gemm", "deep_gemm", "fp8_gemm_nt", _deep_gemm, needs_gpu=not cuda)
    return [own, *[theirs] * (of_b.rows != 1)]  # tiles times blocks, as its default has it


def _scaled_mm(
    by_row: bool, fast: bool, a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, *_: Tensor
) -> Tensor:
    """What ``torch.nn.functional.scaled_mm`` calls for scales of a tensor, or of rows."""
    scales = (of_a, of_b.t()) if by_row else (of_a.view(()), of_b.view(()))
    return torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _deep_gemm(fp8_gemm_nt: Callable[..., None]) -> Callable[..., Outputs]:
    def run(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, *_: Tensor) -> Tensor:
        y = a.new_empty(len(a), len(b), dtype=torch.bfloat16)
        fp8_gemm_nt((a, of_a), (b, of_b), y, disable_ue8m0_cast=True)
        return y

    return run


def layer_cases(recipe: str, tokens: int, inputs: int, outputs: int, cuda: bool) -> list[Case]:
    """The three products of a linear layer."""
    sizes = (tokens, outputs, inputs), (tokens, inputs, outputs), (outputs, inputs, tokens)
    return [product_case(recipe, product, *size, cuda) for product, size in zip(PRODUCTS, sizes, strict=True)]


# ---- quantisation


def _tensors(*quantized: Quantized) -> Outputs:
    return tuple(tensor for one in quantized for tensor in (one.codes, one.scales))


def _apart(groups: str, y: Tensor) -> Outputs:
    """A matrix and its transpose one after the other, in PyTorch: never by the kernel that is compared with it."""
    return _tensors(quantize_torch(y, "e4m3", groups), quantize_torch(y.t(), "e4m3", groups))


def quantize_case(n: int, m: int, groups: str, cuda: bool) -> Case:
    return Case(
        "quantize", f"{n:,} × {m:,}, {groups}s", E4M3, lambda g: [_numbers(g, n, m)], 0, partial(_apart, groups),
        contenders(lambda x: _tensors(*kernels.quantize_both(x, groups=groups)), partial(_apart, groups), cuda),
        {"forward": (kernels.bytes_quantize(n, m, 2, groups), 0)},
    )  # fmt: skip


# ---- all of them

RECIPES = ("blockwise", "tensorwise", "rowwise")
#: Inputs and outputs of the linear layers of Llama 3 8B: queries and output, keys and values, gate and up, down.
LLAMA = ((4096, 4096), (4096, 1024), (4096, 14_336), (14_336, 4096))


def fp8_cases(large: bool, cuda: bool) -> list[Case]:
    """Products as a GPU is measured with and as Llama 3 8B has them, for 8,192 tokens; or as an interpreter manages."""
    if not large:
        return [
            *(case for recipe in RECIPES for case in layer_cases(recipe, 128, 256, 256, cuda)),
            *(quantize_case(128, 256, groups, cuda) for groups in ("tile", "block")),
        ]
    squares = [product_case(r, "x·Wᵀ", n, n, n, cuda) for n in (4096, 8192) for r in RECIPES]
    layers = [case for i, o in LLAMA for case in layer_cases("blockwise", 8192, i, o, cuda)]
    others = [
        product_case(recipe, "x·Wᵀ", 8192, o, i, cuda)
        for i, o in LLAMA
        for recipe in ("tensorwise", "rowwise")
    ]
    return [
        *squares, *layers, *others,
        quantize_case(8192, 4096, "tile", cuda),
        quantize_case(8192, 14_336, "tile", cuda),
        quantize_case(14_336, 4096, "block", cuda),
    ]  # fmt: skip
