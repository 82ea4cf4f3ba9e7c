"""Every kernel of the library that has wgmma, compiled for an H100 in the tiles that it gets there. Run: what is found.

``python tests/hopper_kernels.py`` prints, as JSON, spills, warnings and hazards of each, with any Triton.
"""

import json
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from playbook.kernels.flash_attention import blocks_for, flash_attention_lse
from playbook.kernels.flash_hopper import forward_in_groups
from playbook.kernels.fp8_hopper import multiply_in_groups
from playbook.kernels.fp8_matmul import fp8_matmul
from playbook.kernels.fp8_matmul import tuned as tuned_fp8
from playbook.kernels.jit import Launch, launches
from playbook.kernels.matmul import matmul, tuned
from playbook.precision.scaling import GROUPS, Quantized
from playbook_book.kernels.compiled import compiled
from playbook_book.kernels.grouped_matmul import grouped_gradient, grouped_matmul
from playbook_book.kernels.grouped_matmul import tuned as tuned_groups
from playbook_book.kernels.machine_code import hazards, instructions

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16


def empty(*size: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
    return torch.empty(*size, dtype=dtype, device="meta", requires_grad=grad)


def attention(d: int, e: int) -> None:
    q, k, v = (empty(1, 4096, heads, dims, grad=True) for heads, dims in ((32, d), (8, d), (8, e)))
    o, _ = flash_attention_lse(q, k, v, causal=True, tuning=blocks_for(90, d))
    o.backward(torch.empty_like(o))


def attention_in_groups(causal: bool) -> None:
    q, k, v = (empty(2, 4096, heads, 128) for heads in (16, 4, 4))
    forward_in_groups(q, k, v, causal=causal, scale=0.1, offset=0)


def products(variant: Any, turned: bool) -> None:
    x = empty(8192, 8192)
    matmul(x, x.t() if turned else x, None, tuned(BF16, 90, variant, turned), variant)


def quantized(groups: str) -> Quantized:
    size = GROUPS[groups].size(torch.Size((8192, 8192)))
    scales = empty(-(-8192 // size[0]), -(-8192 // size[1]), dtype=torch.float32)
    return Quantized(empty(8192, 8192, dtype=E4M3), scales, size)


def fp8_products(variant: Any, pair: tuple[str, str]) -> None:
    onto = empty(8192, 8192, dtype=torch.float32) if pair[1] == "tile" else None
    tiles = tuned_fp8(90, variant, pair == ("tile", "tile"))
    fp8_matmul(quantized(pair[0]), quantized(pair[1]), onto=onto, variant=variant, tiles=tiles)


def fp8_in_groups() -> None:
    m, n, k = 8192, 4096, 14_336
    of_a, of_b = empty(k // 128, m, dtype=torch.float32).t(), empty(n // 128, k // 128, dtype=torch.float32)
    multiply_in_groups(empty(m, n), empty(m, k, dtype=E4M3), empty(n, k, dtype=E4M3), of_a, of_b, 132)


def groups_of_products() -> None:
    w, ends = empty(64, 2048, 4096), empty(64, dtype=torch.int32)
    grouped_matmul(empty(8192, 4096), w.transpose(1, 2), ends, tuned_groups(BF16, 90))
    grouped_gradient(empty(8192, 2048), empty(8192, 4096), ends, w, tuned_groups(BF16, 90))


HEADS = (64, 64), (128, 128), (192, 128), (256, 256)
CASES: dict[str, Callable[[], None]] = {
    **{f"attention {d}, {e}": (lambda d=d, e=e: attention(d, e)) for d, e in HEADS},
    "attention in groups": lambda: attention_in_groups(False),
    "attention in groups, causal": lambda: attention_in_groups(True),
    **{
        f"product {variant}{', turned' * turned}": (lambda v=variant, t=turned: products(v, t))
        for variant, turned in product(("tiles", "persistent", "tma"), (False, True))
    },
    **{
        f"fp8 {variant} {' × '.join(pair)}": (lambda v=variant, p=pair: fp8_products(v, p))
        for variant, pair in product(("tiles", "tma"), (("tile", "block"), ("tile", "tile"), ("tensor", "tensor")))
    },
    "fp8 in groups": fp8_in_groups,
    "grouped products": groups_of_products,
}  # fmt: skip


def launched(name: str) -> list[Launch]:
    with launches() as found:
        CASES[name]()
    return [one for one in found if one.kernel.fn.__name__ != "delta_kernel"]  # which multiplies nothing


def examined(name: str) -> dict[str, Any]:
    """Of each kernel of a case: bytes spilled, warnings, hazards, how many wgmma it has."""
    found = {}
    for launch in launched(name):
        made = compiled(launch, 90)
        code = instructions(made)
        found[made.name] = {
            "spills": made.spills, "warnings": made.warnings, "hazards": hazards(code),
            "products": sum(one.multiplies for block in code.values() for one in block),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    json.dump({name: examined(name) for name in sys.argv[1:] or CASES}, sys.stdout)
