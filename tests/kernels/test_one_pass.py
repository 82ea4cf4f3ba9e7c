"""Backward in one pass beside the two that are deterministic, and what the compiler makes of it."""

import pytest
import torch
from kernel_checks import paired

from playbook.kernels.flash_attention import flash_forward
from playbook.kernels.flash_backward import Blocks, flash_backward
from playbook.kernels.jit import launches
from playbook_book.kernels.compiled import SHARED, compiled
from playbook_book.kernels.machine_code import hazards, instructions
from playbook_book.kernels.one_pass import TUNED, backward_in_one_pass

SMALL = Blocks(16, 32, 4, 1)


def given(b: int, s: int, S: int, heads: int, kv_heads: int, d: int, **of) -> list[torch.Tensor]:
    shapes = (b, s, heads, d), (b, S, kv_heads, d), (b, S, kv_heads, d), (b, s, heads, d)
    return [torch.randn(shape, **of) for shape in shapes]


@paired(b=[1, 2], s=[17, 32], S=[32, 49], heads=[(2, 2), (4, 2), (3, 1)], d=[16, 24], causal=[False, True])
def test_equals_two_passes(b, s, S, heads, d, causal):
    torch.manual_seed(s)
    q, k, v, do = given(b, s, S, *heads, d)
    how = {"causal": causal, "scale": d**-0.5, "offset": S - s}
    o, lse = flash_forward(q, k, v, **how, blocks=SMALL)
    ours = backward_in_one_pass(do, q, k, v, o, lse, **how, blocks=SMALL)
    theirs = flash_backward(do, q, k, v, o, lse, **how, keys=SMALL, queries=SMALL)
    for name, one, other in zip("qkv", ours, theirs, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-5, atol=2e-6, msg=lambda said, name=name: f"d{name}: {said}"
        )


@pytest.mark.parametrize("d", TUNED)
@pytest.mark.parametrize("causal", [False, True])
def test_compiles_to_five_products_that_are_well(d, causal):
    q, k, v, do = given(1, 4096, 4096, 32, 8, d, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(1, 32, 4096, device="meta")
    with launches() as found:
        backward_in_one_pass(do, q, k, v, torch.empty_like(do), lse, causal=causal, scale=0.1, offset=0)
    made = compiled(found[1], 90)
    assert (made.name, made.spills, made.warnings) == ("one_pass_kernel", 0, ())
    assert made.shared <= SHARED[90]
    assert made.uses("red.relaxed") or made.uses("atom") or made.uses("red.global")
    assert hazards(instructions(made)) == []
    assert made.uses("wgmma.mma_async") >= 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("d", TUNED)
def test_equals_two_passes_on_a_gpu(d):
    q, k, v, do = given(2, 1000, 1000, 8, 2, d, dtype=torch.bfloat16, device="cuda")
    how = {"causal": True, "scale": d**-0.5, "offset": 0}
    o, lse = flash_forward(q, k, v, **how, blocks=TUNED[d])
    ours = backward_in_one_pass(do, q, k, v, o, lse, **how)
    theirs = flash_backward(do, q, k, v, o, lse, **how, keys=TUNED[d], queries=TUNED[d])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
