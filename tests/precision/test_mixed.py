"""FP16 needs each of three tricks, BF16 weights one of three cures; and the arithmetic that is emulated is real."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from playbook import launch
from playbook.errors import ConfigError
from playbook.precision.casts import round_to
from playbook.shapes import load
from playbook.training.optimizer import MasterAdamW
from playbook_book.mixed import (
    ROUNDINGS,
    Bf16AdamW,
    HalfProducts,
    Trace,
    Tricks,
    half,
    half_sum,
    train_bf16,
    train_half,
)

ONE_LAYER = load("tiny").replace(layers=1)


@functools.cache
def trained(tricks: Tricks | None) -> Trace:
    """60 steps of one layer at a small rate, as a micro-batch of a batch of 2^26 tokens."""
    return train_half(tricks, shape=ONE_LAYER, steps=60, samples=2, seq=32, lr=1e-5)


def test_with_all_three_tricks_fp16_trains_as_fp32_does(
    record_property: Callable[[str, object], None],
) -> None:
    wide, all_three = trained(None), trained(Tricks())
    record_property("measured", f"final loss: fp32 {wide.final():.4f}, FP16 {all_three.final():.4f}")
    assert wide.losses[0] - wide.final() > 0.3
    assert all_three.final() == pytest.approx(wide.final(), abs=0.002)
    assert max(all_three.zeros) < 0.01


@pytest.mark.parametrize(
    ("tricks", "fall"),  # at most this part of fp32's fall: without a scale, the head alone learns
    [
        (Tricks(master=False), 0.8),
        (Tricks(scaling=False), 0.15),
        (Tricks(sums=False), 0.15),
        (Tricks(master=False, scaling=False, sums=False), 0.15),
    ],
    ids=str,
)
def test_without_one_of_them_it_stalls(
    tricks: Tricks, fall: float, record_property: Callable[[str, object], None]
) -> None:
    wide, found = trained(None), trained(tricks)
    record_property("measured", f"{tricks}: {found.final():.4f}, fp32 {wide.final():.4f}")
    assert found.losses[0] - found.final() < fall * (wide.losses[0] - wide.final())
    if not tricks.master and tricks.scaling:  # nearly no update reaches a weight
        assert sum(found.lost[-20:]) / 20 > 0.85
        assert sum(wide.lost[-20:]) / 20 < 0.02
    if not tricks.scaling:  # no gradient reaches the blocks
        assert min(found.zeros) > 0.99
    if tricks.scaling and not tricks.sums:  # a scale with which the sum of squares is finite is far too small
        assert sum(found.skipped) > 20
        assert found.scales[-1] < 2**8
        assert found.zeros[-1] > 0.9


def test_a_product_rounds_once_or_after_every_sixteen_elements() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(8, 4096, generator=generator), torch.randn(4096, 8, generator=generator)
    exact = half(a).double() @ half(b).double()
    once, often = (HalfProducts(wide).product(a, b).double() for wide in (True, False))
    ulp = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 11)
    assert ((once - exact).abs() <= 0.5 * ulp + 1e-3).all()
    assert 4 * (once - exact).norm() < (often - exact).norm() < 0.02 * exact.norm()
    assert torch.equal(
        HalfProducts(False).product(a[:, :16], b[:16]), HalfProducts(True).product(a[:, :16], b[:16])
    )


def test_products_are_those_of_a_device_that_multiplies_fp16() -> None:
    """PyTorch's CPU adds up FP16 products in fp32, in an order of its own."""
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(5, 3, 64, generator=generator), torch.randn(32, 64, generator=generator)
    ours, theirs = HalfProducts().output(x, w), torch.nn.functional.linear(x.half(), w.half()).float()
    assert (ours - theirs).abs().max() <= 2**-7  # an ulp of numbers from 8 to 16
    assert (ours == theirs).float().mean() > 0.9


def test_a_sum_of_squares_in_fp16() -> None:
    assert half_sum(torch.ones(2048)).item() == 2048
    assert half_sum(torch.full((3000,), 5.0).square()).item() == math.inf
    assert half_sum(torch.full((1000,), 2.0**-13).square()).item() == 0


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_an_update_below_an_ulp(rounding: str) -> None:
    """Of 1/1000 of a weight of 1, twenty times: BF16 has 1 and 1 − 1/256 there."""
    p = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = Bf16AdamW([p], lr=1e-3, rounding=rounding, weight_decay=0.0)
    for _ in range(20):
        p.grad = torch.ones_like(p)
        optimizer.step()
    mean = p.double().mean().item()
    assert (mean == 1) if rounding == "nearest" else mean == pytest.approx(0.98, abs=2e-3)


def test_with_a_master_it_is_master_adamw() -> None:
    values = torch.linspace(-1, 1, 24).bfloat16()
    a, b = (torch.nn.Parameter(values.clone()) for _ in range(2))
    ours = Bf16AdamW([a], lr=1e-2, rounding="master", betas=(0.9, 0.95), weight_decay=0.1)
    theirs = MasterAdamW([b], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(5):
        for p, optimizer in ((a, ours), (b, theirs)):
            p.grad = torch.full_like(p, 0.1 * (step - 2))
            optimizer.step()
    assert torch.equal(a, b)


def test_an_unknown_rounding() -> None:
    with pytest.raises(ConfigError, match="unknown rounding 'up'; known: kahan, master, nearest, stochastic"):
        Bf16AdamW([torch.zeros(2)], lr=1e-3, rounding="up")


def test_kahan_and_stochastic_rounding_train_as_masters_do(
    record_property: Callable[[str, object], None],
) -> None:
    setting = {"shape": ONE_LAYER, "steps": 30, "samples": 2, "seq": 32, "lr": 3e-5}
    runs = {one: train_bf16(one, **setting) for one in ROUNDINGS}
    final = {one: run.final() for one, run in runs.items()}
    record_property("measured", ", ".join(f"{one} {loss:.4f}" for one, loss in final.items()))
    for cure in ("kahan", "stochastic"):
        assert final[cure] == pytest.approx(final["master"], abs=0.005)
    assert final["nearest"] > final["master"] + 0.2


def sums_over_ranks(n: int) -> tuple[float, float]:
    """In a rank: the relative error of an all-reduce of n numbers in BF16, and in fp32."""
    import torch.distributed as dist

    with launch.process_group() as world:
        everyone = [torch.randn(n, generator=torch.Generator().manual_seed(r)) + 1 for r in range(world.size)]
        exact = torch.stack(everyone).double().sum(0)
        found = []
        for dtype in (torch.bfloat16, torch.float32):
            mine = everyone[world.rank].to(dtype)
            dist.all_reduce(mine)
            found.append(float((mine.double() - exact).norm() / exact.norm()))
        return found[0], found[1]


def test_an_all_reduce_in_bf16_rounds_at_every_rank(ranks) -> None:
    narrow, wide = ranks(sums_over_ranks, 1000, ranks=4)[0].value
    assert wide < 1e-6
    assert 2**-10 < narrow < 2**-7


def error_of_accumulation(count: int, dtype: torch.dtype) -> float:
    """Relative error of adding up ``count`` gradients one after the other."""
    generator = torch.Generator().manual_seed(0)
    parts: list[Tensor] = [torch.randn(1000, generator=generator) + 1 for _ in range(count)]
    total = torch.zeros(1000, dtype=dtype)
    for part in parts:
        total += part.to(dtype)
    exact = (
        torch.stack([round_to(p, "bf16") if dtype == torch.bfloat16 else p for p in parts]).double().sum(0)
    )
    return float((total.double() - exact).norm() / exact.norm())


def test_micro_batches_added_up_in_bf16_are_lost_when_they_are_many() -> None:
    errors = {n: error_of_accumulation(n, torch.bfloat16) for n in (8, 64, 512)}
    assert errors[8] < errors[64] < 0.012 < errors[512]
    assert error_of_accumulation(512, torch.float32) < 1e-5
