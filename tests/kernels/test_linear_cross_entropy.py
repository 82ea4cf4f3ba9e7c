"""The head and its loss in chunks, beside their twin; how much is in memory; the kernel's bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_checks import beside_twin, check_compiles, kept_bytes, off, on_meta
from torch import nn

from playbook.errors import ShapeError
from playbook.kernels import linear_cross_entropy as kernels
from playbook.kernels.cross_entropy import IGNORE
from playbook.kernels.jit import cdiv, launches
from playbook.kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_torch,
)
from playbook.model.ops import token_losses
from playbook.model.transformer import Transformer
from playbook.planning.fusion import chunk_tokens
from playbook.shapes import ModelShape
from playbook_book.kernels.sectors import Sectors


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("n", "v", "step"), [(1, 257, 1), (63, 2, 2), (65, 257, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_its_twin(n, v, step, dtype):
    torch.manual_seed(n)
    x, weight = torch.randn(n, step * 16, dtype=dtype)[:, ::step], torch.randn(v, 16, dtype=dtype) / 4
    targets = torch.randint(0, v, (n,))
    targets[1::7] = IGNORE
    beside_twin(
        lambda x, w: linear_cross_entropy(x, w, targets)[0].to(dtype),
        lambda x, w: linear_cross_entropy_torch(x, w, targets)[0],
        x,
        weight,
    )


@pytest.mark.usefixtures("device")
def test_equals_the_books_head():
    shape = ModelShape(layers=1, hidden=32, heads=2, ffn=64, vocab=67, max_seq=16)
    torch.manual_seed(0)
    model = Transformer(shape, device=torch.empty(()).device)
    x, targets = torch.randn(2, 16, 32), torch.randint(0, 67, (2, 16))
    targets[1, 5:] = IGNORE
    total, count = linear_cross_entropy(model.final_norm(x), model.head.weight, targets)
    torch.testing.assert_close(total, model.loss_of(x, targets))
    assert int(count) == 16 + 5


def test_under_autocast_as_the_books_head():
    torch.manual_seed(0)
    x, weight = torch.randn(20, 32, requires_grad=True), nn.Parameter(torch.randn(67, 32) / 6)
    targets = torch.randint(0, 67, (20,))
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(x, weight, targets)[0]
        book = token_losses(F.linear(x, weight), targets)
    torch.testing.assert_close(ours, book, rtol=1e-4, atol=0)
    gradients = torch.autograd.grad(ours, (x, weight)), torch.autograd.grad(book, (x, weight))
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == torch.float32
        assert off(one, other) < 1.6e-2


@pytest.mark.usefixtures("device")
def test_gradient():
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, IGNORE, 4])
    assert torch.autograd.gradcheck(
        lambda x, w: linear_cross_entropy(x, w, targets)[0], (x, weight), fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda x: linear_cross_entropy(x, weight.detach(), targets)[0], (x,), fast_mode=True
    )


def test_what_chunks_add_to_the_weights_gradient_is_not_rounded(monkeypatch):
    """The second half of the tokens takes back nearly all that the first half adds. Weights are 0, so that all words are
    as likely and dz is exact; from a sum in fp32 all that is lost is the one rounding to bf16 at the end."""
    monkeypatch.setattr("playbook.planning.fusion.CHUNK", 1)
    n, h, v = 256, 32, 64
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(n // 2, h, generator=generator).bfloat16()
    x = torch.cat([first, -first * (1 + 2.0**-6)]).requires_grad_()
    weight = torch.zeros(v, h, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, v, (n // 2,), generator=generator).repeat(2)
    assert n // chunk_tokens(n, v, h) > 1
    (found,) = torch.autograd.grad(linear_cross_entropy(x, weight, targets)[0], weight)
    dz = torch.full((n, v), 1 / v, dtype=torch.float64)
    dz[torch.arange(n), targets] -= 1
    exact = dz.bfloat16().double().T @ x.detach().double()
    assert ((found.double() - exact).norm() / exact.norm()) < 2.5e-3


def test_keeps_gradients_in_the_place_of_logits():
    x = torch.randn(64, 16, requires_grad=True)
    weight, targets = torch.randn(64, 16, requires_grad=True), torch.zeros(64, dtype=torch.int64)
    assert kept_bytes(lambda *a: linear_cross_entropy(*a, targets), x, weight) == x.nbytes + weight.nbytes
    assert kept_bytes(lambda *a: linear_cross_entropy_torch(*a, targets), x, weight) > 64 * 64 * 4


@pytest.mark.parametrize(("least", "size"), [(2048, 2048), (1, 256)])
def test_chunks_have_logits_as_large_as_the_hidden_states_or_2048_tokens(monkeypatch, least, size):
    monkeypatch.setattr("playbook.planning.fusion.CHUNK", least)
    n, h, v = 8192, 4096, 128256
    assert chunk_tokens(n, v, h) == size
    found = on_meta(
        lambda *given: linear_cross_entropy(*given)[0],
        (n, h, torch.bfloat16), (v, h, torch.bfloat16), (n, torch.int64),
    )  # fmt: skip
    assert [launch.grid for launch in found] == [(size,)] * (n // size)
    assert {launch.arguments["z"].shape for launch in found} == {(size, v)}
    assert all(launch.arguments["GRADIENT"] for launch in found)
    check_compiles(found[:1])


def test_nobody_asks_for_gradients():
    x, targets = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)
    weight = nn.Parameter(torch.randn(9, 4))
    with torch.no_grad(), launches() as found:
        linear_cross_entropy(x, weight, targets)
    assert not any(launch.arguments["GRADIENT"] for launch in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_moves_what_its_formula_says(dtype):
    n, h, v, c = 32, 256, 1024, dtype.itemsize
    x, weight = torch.randn(n, h, dtype=dtype, requires_grad=True), torch.randn(v, h, dtype=dtype)
    with Sectors() as counted:
        linear_cross_entropy(x, weight, torch.randint(0, v, (n,)))
    of_sums = cdiv(n, chunk_tokens(n, v, h)) * v * h * 8
    assert counted.dram.total == kernels.bytes_forward(n, h, v, c) - of_sums


def test_what_is_refused():
    x, targets = torch.ones(5, 4), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(
        ShapeError, match=r"targets has shape \(5,\), but must have \(6,\), one for each row of x"
    ):
        linear_cross_entropy(torch.ones(6, 4), torch.ones(9, 4), targets)
    with pytest.raises(
        ShapeError, match=r"weight has shape \(9, 3\), but must have \(9, 4\), a number for each"
    ):
        linear_cross_entropy(x, torch.ones(9, 3), targets)


@pytest.mark.parametrize("target", [5, -1])
def test_a_target_that_is_no_word_is_named(target):
    with pytest.raises(IndexError, match=f"word {target} is out of range: the vocabulary has 5"):
        linear_cross_entropy(torch.zeros(2, 3), torch.zeros(5, 3), torch.tensor([1, target]))
