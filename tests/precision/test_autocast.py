"""Autocast written out gives the numbers of torch's, and casts what torch's casts."""

from __future__ import annotations

import pytest
import torch
from helpers import BLOCKS

from playbook.model.transformer import Transformer
from playbook_book.autocast import Autocast, OpDtypes


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "reference"])
def test_a_block(block: str, dtype: torch.dtype, attention: str) -> None:
    model = Transformer(BLOCKS[block], attention=attention)
    x = torch.randn(2, 7, model.shape.hidden, generator=torch.Generator().manual_seed(0))
    found = []
    for mode in (torch.autocast("cpu", dtype), Autocast(dtype)):
        given = x.clone().requires_grad_()
        with OpDtypes() as ops, mode:
            y = model.blocks[0](given, *model.angles(7))
        y.float().square().sum().backward()
        found.append((y.detach(), given.grad, ops.calls))
    (y, dx, calls), (own_y, own_dx, own_calls) = found
    assert torch.equal(y, own_y)
    # Layers that share an input cast it once, and add up its gradient in 16 bits.
    assert (dx - own_dx).norm() < 0.01 * dx.norm()
    products = {"mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu"}
    for some in (calls, own_calls):
        kinds = {out for name, _, out in some if name in products}
        assert kinds == {dtype}
        assert {out for name, _, out in some if "norm" in name or name == "rsqrt"} == {torch.float32}


def test_outside_nothing_is_cast() -> None:
    with OpDtypes() as ops:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert {out for _, _, out in ops.calls} == {torch.float32}
