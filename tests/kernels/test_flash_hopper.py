"""Attention in groups of warps: what the compiler makes of it here; on Hopper the same as the kernel without groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from playbook.errors import ConfigError
from playbook.kernels.flash_attention import blocks_for, flash_forward
from playbook.kernels.flash_hopper import forward_in_groups, takes_groups
from playbook.kernels.jit import launches
from playbook_book.kernels.compiled import SHARED, compiled

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
GIVEN: dict[str, Any] = {"causal": True, "scale": 0.1, "offset": 0}


def qkv(b: int, s: int, S: int, heads: int, kv_heads: int, device: str) -> tuple[torch.Tensor, ...]:
    shapes = (b, s, heads, 128), (b, S, kv_heads, 128), (b, S, kv_heads, 128)
    x, k, v = (torch.empty(*shape, dtype=torch.bfloat16, device=device) for shape in shapes)
    return (x, k, v) if device == "meta" else tuple(t.normal_() for t in (x, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_compiles_to_two_groups_of_products_and_one_warp_of_copies(causal):
    with launches() as found:
        forward_in_groups(*qkv(2, 4096, 4096, 16, 4, "meta"), **GIVEN | {"causal": causal})
    made = compiled(found[0], 90)
    assert (made.spills, made.unset, made.shared <= SHARED[90]) == (0, set(), True)
    # Each group has the first scores, those of masked and of whole blocks with the values before, and the last values.
    assert made.uses("wgmma.mma_async") == 2 * (8 + 2 * 16 + 8)
    assert made.uses("setmaxnreg") > 2
    assert made.uses("cp.async.bulk.tensor") == 2 * (2 + 2)  # of 64 columns each


def test_is_for_a_gpu_alone():
    assert not takes_groups(*qkv(1, 4, 4, 1, 1, "cpu"))
    with pytest.raises(
        ConfigError, match="groups_kernel is written in Gluon and needs a GPU, but its tensors are"
    ):
        forward_in_groups(*qkv(1, 4, 4, 1, 1, "cpu"), **GIVEN)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(
    ("s", "S", "causal", "offset"),
    [
        (1024, 1024, True, 0),
        (700, 700, True, 0),
        (300, 900, True, 600),
        (513, 257, False, 0),
        (200, 1000, True, -50),
    ],
)
def test_equals_the_kernel_without_groups_on_a_gpu(s, S, causal, offset):
    q, k, v = qkv(2, s, S, 4, 2, "cuda")
    given: dict[str, Any] = {"causal": causal, "scale": 0.09, "offset": offset}
    assert takes_groups(q, k, v)
    (o, lse), plain = forward_in_groups(q, k, v, **given), blocks_for(90, 128).forward
    o_plain, lse_plain = flash_forward(q, k, v, **given, blocks=plain)
    torch.testing.assert_close(o, o_plain, atol=4e-3, rtol=1e-2)  # a rounding or two in 16 bits
    torch.testing.assert_close(lse, lse_plain, atol=2e-6, rtol=1e-6)
    assert all(torch.equal(o, forward_in_groups(q, k, v, **given)[0]) for _ in range(5))
