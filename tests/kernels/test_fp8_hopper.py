"""FP8 products in groups of warps: what the compiler makes of them here; on Hopper the bits of the kernel without."""

from __future__ import annotations

import pytest
import torch

from playbook.errors import ConfigError
from playbook.kernels.fp8_hopper import multiply_in_groups
from playbook.kernels.fp8_matmul import fp8_matmul
from playbook.kernels.jit import launches
from playbook.precision.scaling import quantize
from playbook_book.kernels.compiled import SHARED, compiled

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_compiles_to_three_groups_of_products_and_one_warp_of_copies(kind):
    m, n, k = 8192, 4096, 14_336
    a, b = (
        torch.empty(rows, k, dtype=of, device="meta") for rows, of in ((m, kind), (n, torch.float8_e4m3fn))
    )
    scales = torch.empty(k // 128, m, device="meta").t(), torch.empty(n // 128, k // 128, device="meta")
    with launches() as found:
        multiply_in_groups(torch.empty(m, n, dtype=torch.bfloat16, device="meta"), a, b, *scales, 132)
    made = compiled(found[0], 90)
    assert (made.spills, made.unset, made.shared <= SHARED[90]) == (0, set(), True)
    assert made.uses("wgmma.mma_async") == 3 * 4  # of 32 along k
    assert made.uses("setmaxnreg") > 2
    assert made.uses("cp.async.bulk.tensor") == 3 + 1


def test_says_what_it_needs():
    rows, columns = (
        quantize(torch.ones(256, 256), "e4m3", "tile"),
        quantize(torch.ones(256, 256), "e4m3", "block"),
    )
    with pytest.raises(
        ConfigError, match='variant is "groups", but that needs scales of 1 × 128 and 128 × 128'
    ):
        fp8_matmul(rows, rows, variant="groups")
    with pytest.raises(ConfigError, match="fp8_groups_kernel is written in Gluon and needs a GPU"):
        fp8_matmul(rows, columns, variant="groups")


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(
    ("m", "n", "k"), [(512, 640, 1024), (192, 256, 256), (1000, 384, 4096), (130, 272, 400)]
)
@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_has_the_bits_of_the_kernel_without_groups_on_a_gpu(m, n, k, form):
    a, b = (
        quantize(torch.randn(m, k).cuda(), form, "tile"),
        quantize(torch.randn(n, k).cuda(), "e4m3", "block"),
    )
    found = fp8_matmul(a, b, variant="groups")
    assert torch.equal(found, fp8_matmul(a, b, variant="tma"))
    assert all(torch.equal(found, fp8_matmul(a, b, variant="groups")) for _ in range(5))
