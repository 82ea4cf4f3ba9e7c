"""AdamW's kernel beside its twin and the book's optimizer, in the interpreter; compiled for GPUs that are not here."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import check_compiles, off, paired
from torch import Tensor, nn

from playbook.errors import ConfigError, ShapeError
from playbook.kernels.adamw import adamw, adamw_torch, bytes_step
from playbook.kernels.jit import launches
from playbook.training import optimizer
from playbook.training.optimizer import MasterAdamW, state_formats
from playbook_book.kernels.sectors import Sectors

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: One rounding of a parameter, as two sums that differ in their last bit may round to neighbours.
LAST_BIT = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SETTINGS = {"lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}


def vectors(n: int, dtype: torch.dtype, device: str | None = None) -> list[Tensor]:
    """A parameter, both moments, and a master where the parameter is in 16 bits."""
    parameter = torch.randn(n, device=device).to(dtype)
    states = [torch.zeros(n, device=device) for _ in range(2)]
    return [parameter, *states, *([] if dtype == torch.float32 else [parameter.float()])]


def step_with(function, held: list[Tensor], gradient: Tensor, step: int) -> None:
    parameter, *states = held
    function(parameter, gradient, *states, step=step, **SETTINGS)


@pytest.mark.usefixtures("device")
@paired(n=[1, 63, 65, 257, 2049], dtype=DTYPES, stride=[1, 2])
def test_three_steps_equal_those_of_its_twin(n, dtype, stride):
    torch.manual_seed(n)
    ours = vectors(n, dtype)
    twins = [x.double() if x.dtype == torch.float32 else x.clone() for x in ours]
    for step in (1, 2, 3):
        gradient = torch.randn(n * stride, dtype=dtype)[::stride]
        step_with(adamw, ours, gradient, step)
        step_with(adamw_torch, twins, gradient, step)
    for x, y in zip(ours[1:], twins[1:], strict=True):
        assert off(x, y) < 4e-6
    assert off(ours[0], twins[0]) < LAST_BIT[dtype]
    assert dtype == torch.float32 or torch.equal(ours[0], ours[-1].to(dtype))  # the master, rounded


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decays", [False, True])
def test_equals_the_books_optimizer(dtype, decays):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(257).to(dtype))
    book = optimizer.adamw([(weight, decays)], **SETTINGS)
    held = [weight.detach().clone(), *vectors(257, dtype)[1:3]]
    held += [] if dtype == torch.float32 else [held[0].float()]
    for step in range(1, 6):
        weight.grad = torch.randn(257).to(dtype)
        book.step()
        parameter, *states = held
        adamw(
            parameter, weight.grad, *states, step=step, **SETTINGS | ({} if decays else {"weight_decay": 0.0})
        )
    state = book.state[weight]
    for x, name in zip(held[1:], ("exp_avg", "exp_avg_sq", "master"), strict=False):
        assert off(x, state[name].detach()) < 1e-6
    assert off(held[0], weight.detach()) < LAST_BIT[dtype]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("formats", [{}, state_formats("bf16"), state_formats("fp8")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_optimizer_updates_with_it(dtype, formats):
    """Two tensors, loss scale, narrow moments, and a second optimizer that takes up the first one's state."""
    torch.manual_seed(0)
    values = [torch.randn(65, 3), torch.randn(257)]
    weights = [[nn.Parameter(x.to(dtype)) for x in values] for _ in range(3)]
    options = {**SETTINGS, "formats": formats}
    plain, ours, later = (
        MasterAdamW(w, **options, kernel=k) for w, k in zip(weights, (None, adamw, adamw), strict=True)
    )
    for step in range(4):
        if step == 2:
            later.load_state_dict(ours.state_dict())
            torch._foreach_copy_([w.detach() for w in weights[2]], [w.detach() for w in weights[1]])
        used = [(plain, weights[0]), (ours, weights[1]), *([(later, weights[2])] if step > 1 else [])]
        gradients = [512 * torch.randn_like(x) for x in values]
        for one, own in used:
            one.loss_scale = 512.0
            for w, g in zip(own, gradients, strict=True):
                w.grad = g.to(dtype, copy=True)
            one.step()
    for x, y, z in zip(*weights, strict=True):
        assert off(y.detach(), x.detach()) < LAST_BIT[dtype]
        assert torch.equal(y, z)
        assert off(ours.wide(y)["exp_avg"], plain.wide(x)["exp_avg"]) < (0.1 if formats else 1e-6)
        assert int(ours.state[y]["step"]) == 4


@pytest.mark.usefixtures("device")
def test_small_updates_stay_in_the_master():
    """An update of 1/1000 of a weight is below what bf16 can tell; ten of them are not."""
    held = vectors(64, torch.bfloat16)
    held[0].fill_(1.0)
    held[-1].fill_(1.0)
    for step in range(1, 11):
        adamw(
            held[0], torch.ones(64, dtype=torch.bfloat16), *held[1:], step=step, lr=1e-3, betas=(0.9, 0.999)
        )
        assert step > 1 or float(held[0][0]) == 1.0
    torch.testing.assert_close(held[-1], torch.full((64,), 0.99))
    assert float(held[0][0]) == pytest.approx(0.99, abs=2**-9)


def test_a_backward_that_needs_the_old_weight_is_told():
    weight = torch.randn(64, requires_grad=True)
    y = (weight * weight).sum()
    adamw(weight, torch.ones(64), torch.zeros(64), torch.zeros(64), step=1, lr=0.1, betas=(0.9, 0.999))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiles_once_for_all_steps(dtype):
    held = vectors(2**30, dtype, "meta")
    with launches() as found:
        for step in (1, 16, 17):
            step_with(adamw, held, torch.empty(2**30, dtype=dtype, device="meta"), step)
    for made in check_compiles(found[:1]).values():
        assert (made.occupancy, made.shared) == (1, 0)
    # Nothing that a step changes is a whole number, the only numbers for which Triton compiles anew.
    kinds = [{name: x for name, x in one.arguments.items() if isinstance(x, int)} for one in found]
    assert kinds == [{"n": 2**30, "BLOCK": 512}] * 3


@pytest.mark.parametrize(
    ("dtype", "of_gradient", "per_parameter"),
    [
        (torch.bfloat16, torch.bfloat16, 28),
        (torch.bfloat16, torch.float32, 30),
        (torch.float32, torch.float32, 28),
    ],
)
def test_moves_what_its_formula_says(dtype, of_gradient, per_parameter):
    n = 4096
    held = vectors(n, dtype)
    with Sectors() as counted:
        step_with(adamw, held, torch.randn(n, dtype=of_gradient), 1)
    assert counted.dram.total == bytes_step(n, dtype.itemsize, of_gradient.itemsize) == per_parameter * n
    assert counted.efficiency == 1


def test_what_is_refused():
    x, short, options = torch.ones(4), torch.ones(3), {"step": 1, "lr": 0.1, "betas": (0.9, 0.999)}
    with pytest.raises(
        ShapeError, match=r"second has shape \(3,\), but must have \(4,\), as the parameter has"
    ):
        adamw(x, x, x, short, **options)
    with pytest.raises(
        ConfigError, match=r"parameter is torch.bfloat16, but must be torch.float32; 16-bit param"
    ):
        adamw(x.bfloat16(), x, x, x, **options)
    with pytest.raises(
        ConfigError, match=r"first has strides \(2,\), but must be contiguous, as it changes in pl"
    ):
        adamw(x, x, torch.ones(8)[::2], x, **options)
