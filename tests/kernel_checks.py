"""What every kernel is held to: its twin in PyTorch, forward and backward, and a compiler for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from all_pairs import all_pairs, combined
from torch import Tensor, nn

from playbook.kernels.jit import Launch, launches
from playbook_book.instruments.measured import SavedActivations
from playbook_book.kernels.compiled import SHARED, Compiled, compiled

CAPABILITIES = (80, 90, 100)
#: How far a result may be off, as a share of the largest number of the twin's: two roundings of the type.
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def paired(**options: Sequence[Any]) -> pytest.MarkDecorator:
    """So many cases of a test that any two values of two options meet."""
    cases = all_pairs(combined(**options))
    return pytest.mark.parametrize(tuple(options), [tuple(case.values()) for case in cases])


def off(ours: Tensor, twin: Tensor) -> float:
    """The largest difference, as a share of the largest number, or of a tenth where all are smaller than that."""
    return float((ours.double() - twin.double()).abs().max() / twin.double().abs().max().clamp(min=0.1))


def beside_twin(
    ours: Callable[..., Tensor], twin: Callable[..., Tensor], *given: Any, tolerance: float | None = None
) -> None:
    """Outputs and gradients of all floating tensors among ``given`` are the twin's, which computes in fp64."""
    tensors = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]
    dtype = tensors[0].dtype
    limit = ROUNDING[dtype] if tolerance is None else tolerance

    def run(function: Callable[..., Tensor], wide: bool) -> tuple[Tensor, Sequence[Tensor]]:
        leaves = [x.detach().to(torch.float64 if wide else x.dtype).requires_grad_() for x in tensors]
        replaced = iter(leaves)
        arguments = [next(replaced) if any(x is t for t in tensors) else x for x in given]
        y = function(*arguments)
        weights = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view(y.shape).to(y)
        return y.detach(), torch.autograd.grad(y, leaves, weights)

    y, gradients = run(ours, wide=False)
    z, expected = run(twin, wide=True)
    assert y.dtype == dtype
    assert y.shape == z.shape
    assert off(y, z) <= limit, ("output", off(y, z))
    for i, (one, other, leaf) in enumerate(zip(gradients, expected, tensors, strict=True)):
        assert one.dtype == leaf.dtype
        assert off(one, other) <= 4 * limit, (f"gradient of argument {i}", off(one, other))


def on_meta(function: Callable[..., Tensor], *given: Any, backward: bool = True) -> list[Launch]:
    """What ``function`` would launch, forward and backward: tensors are given as (…, dtype), the rest as it is."""
    arguments = [
        torch.empty(x[:-1], dtype=x[-1], device="meta", requires_grad=x[-1].is_floating_point)
        if isinstance(x, tuple) else x
        for x in given
    ]  # fmt: skip
    with launches() as found:
        y = function(*arguments)
        if backward:
            y.backward(torch.empty_like(y))
    return found


def check_compiles(launched: Sequence[Launch], spills: int = 0) -> dict[tuple[str, int], Compiled]:
    """Each for every generation, within its shared memory and with at most ``spills`` bytes of a thread spilled."""
    assert launched
    found = {}
    for launch in launched:
        for capability in CAPABILITIES:
            one = compiled(launch, capability)
            assert one.shared <= SHARED[capability], one.name
            assert one.spills <= spills, (one.name, capability, one.spills)
            # Of 10.0 some instructions write operands that are not their first.
            assert capability > 90 or not one.unset, (one.name, capability, one.unset)
            found[one.name, capability] = one
    return found


def kept_bytes(function: Callable[..., Any], *given: Tensor) -> int:
    """Bytes that autograd keeps for backward of ``function``, beside the ``given`` that are parameters."""
    model = nn.ParameterList([x for x in given if isinstance(x, nn.Parameter)])
    with SavedActivations(model) as saved:
        function(*given)
    return saved.bytes
