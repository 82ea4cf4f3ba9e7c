"""What runs below autocast: products in 16 bits, norms in fp32; outside of it nothing is cast."""

from __future__ import annotations

import pytest
import torch
from helpers import BLOCKS

from playbook.model.transformer import Transformer
from playbook_book.instruments.op_dtypes import OpDtypes

PRODUCTS = {"mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu"}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_block(block: str, dtype: torch.dtype) -> None:
    model = Transformer(BLOCKS[block])
    x = torch.randn(2, 7, model.shape.hidden, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), OpDtypes() as ops, torch.autocast("cpu", dtype):
        model.blocks[0](x, *model.angles(7))
    products = [(set(inputs), out) for name, inputs, out in ops.calls if name in PRODUCTS]
    assert products
    assert all(inputs == {dtype} and out == dtype for inputs, out in products)
    assert {out for name, _, out in ops.calls if "norm" in name or name == "rsqrt"} == {torch.float32}


def test_outside_nothing_is_cast() -> None:
    with OpDtypes() as ops:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert {out for _, _, out in ops.calls} == {torch.float32}
