"""Cross-entropy's kernels beside their twin, in the interpreter; compiled for GPUs that are not here; bytes counted."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import beside_twin, check_compiles, kept_bytes, on_meta
from torch import Tensor

from playbook.errors import ShapeError
from playbook.kernels import cross_entropy as kernels
from playbook.kernels.cross_entropy import COLUMNS, IGNORE, cross_entropy, cross_entropy_torch
from playbook.model import transformer
from playbook_book.kernels.sectors import Sectors


def targets_of(n: int, v: int) -> Tensor:
    """Of n tokens, the second of which does not count."""
    targets = torch.randint(0, v, (n,))
    targets[1:2] = IGNORE
    return targets


def check(logits: Tensor, targets: Tensor) -> None:
    """Backward writes over the logits: the kernel is given a copy."""
    beside_twin(
        lambda z: cross_entropy(z + 0, targets)[0].to(z.dtype),
        lambda z: cross_entropy_torch(z, targets)[0],
        logits,
    )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("v", [2, 63, 65, 257, COLUMNS + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_its_twin(v, dtype):
    torch.manual_seed(v)
    check(3 * torch.randn(7, v, dtype=dtype), targets_of(7, v))


@pytest.mark.usefixtures("device")
def test_the_peak_rises_from_block_to_block():
    v = 2 * COLUMNS + 1
    check(torch.linspace(-3, 9, 2 * v).view(2, v), torch.tensor([0, v - 1]))


@pytest.mark.usefixtures("device")
def test_strided_rows():
    torch.manual_seed(0)
    check(torch.randn(7, 130)[:, :65], targets_of(7, 65))
    check(torch.randn(7, 130)[:, ::2], targets_of(7, 65))
    check(torch.randn(65, 7).T, targets_of(7, 65))


@pytest.mark.usefixtures("device")
def test_gives_what_the_book_counts():
    torch.manual_seed(0)
    assert IGNORE == transformer.IGNORE
    logits, targets = torch.randn(2, 5, 11), torch.randint(0, 11, (2, 5))
    targets[0, 3:] = IGNORE
    total, count = cross_entropy(logits, targets)
    torch.testing.assert_close(total, transformer.token_losses(logits.flatten(0, 1), targets.flatten()))
    assert (total.dtype, int(count)) == (torch.float32, 8)
    targets = targets.clamp(min=0)  # words, all of them
    assert int(cross_entropy(logits, targets, ignore_index=int(targets[1, 1]))[1]) < 10


@pytest.mark.usefixtures("device")
def test_no_token_counts_and_large_logits():
    z = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    assert cross_entropy(z + 0, torch.tensor([0, 0]))[0].item() == 2e4
    total, count = cross_entropy(z * 1, torch.tensor([IGNORE, IGNORE]))
    total.backward()
    assert (total.item(), count.item(), z.grad.abs().max().item()) == (0, 0, 0)


@pytest.mark.usefixtures("device")
def test_entries_at_minus_infinity_are_none_at_all():
    """As of a vocabulary that is padded."""
    z = torch.randn(3, 65)
    padded = torch.cat([z, torch.full((3, 3), float("-inf"))], 1).requires_grad_()
    total = cross_entropy(padded + 0, torch.tensor([0, 1, 2]))[0]
    torch.testing.assert_close(total, cross_entropy(z, torch.tensor([0, 1, 2]))[0])
    total.backward()
    assert float(padded.grad[:, 65:].abs().max()) == 0


def test_the_gradient_takes_the_place_of_the_logits():
    leaf, targets = torch.randn(3, 65, requires_grad=True), targets_of(3, 65)
    logits = leaf + 0
    total, _ = cross_entropy(logits, targets)
    (dz,) = torch.autograd.grad(total, logits, retain_graph=True)
    assert dz.data_ptr() == logits.data_ptr()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_gradient():
    """Against differences; torch's gradcheck goes backward twice, when the logits are gone."""
    z, targets = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), targets_of(3, 5)
    (dz,) = torch.autograd.grad(cross_entropy(z + 0, targets)[0], z)
    steps = 1e-5 * torch.eye(15, dtype=torch.float64).view(15, 3, 5)
    with torch.no_grad():
        ends = [[cross_entropy(z + sign * step, targets)[0] for sign in (1, -1)] for step in steps]
    differences = torch.tensor([(high - low) / 2e-5 for high, low in ends]).view(3, 5)
    torch.testing.assert_close(dz, differences, rtol=1e-6, atol=1e-8)


def test_keeps_the_logits_as_they_are():
    z, targets = torch.randn(8, 64, dtype=torch.bfloat16, requires_grad=True), targets_of(8, 64)
    assert kept_bytes(lambda z: cross_entropy(z, targets), z) == z.nbytes + 8 * (8 + 4)
    assert kept_bytes(lambda z: cross_entropy_torch(z, targets), z) >= 2 * z.nbytes


@pytest.mark.parametrize("v", [32000, 128256])
def test_compiles(v):
    targets = (8192, torch.int64)
    launched = on_meta(lambda z, t: cross_entropy(z, t)[0], (8192, v, torch.bfloat16), targets)
    assert len(launched) == 2
    for made in check_compiles(launched).values():
        assert made.occupancy == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("v", [1024, 2 * COLUMNS])
def test_moves_what_its_formula_says(dtype, v):
    n = 8
    logits = torch.randn(n, v, dtype=dtype, requires_grad=True) * 1
    with Sectors() as forward:
        total, _ = cross_entropy(logits, targets_of(n, v))
    with Sectors() as backward:
        total.backward()
    assert forward.dram.total == kernels.bytes_forward(n, v, dtype.itemsize)
    assert backward.dram.total == pytest.approx(kernels.bytes_backward(n, v, dtype.itemsize), rel=0.01)
    assert min(forward.efficiency, backward.efficiency) > 0.9


def test_what_is_refused():
    with pytest.raises(
        ShapeError, match=r"targets has shape \(3,\), but must have \(2,\), one for each row of lo"
    ):
        cross_entropy(torch.ones(2, 4), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("target", [5, -1])
def test_a_target_that_is_no_word_is_named(target):
    with pytest.raises(IndexError, match=f"word {target} is out of range: the vocabulary has 5"):
        cross_entropy(torch.zeros(2, 5), torch.tensor([1, target]))
