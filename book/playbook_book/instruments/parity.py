"""The same answer as one device: gradients as one vector, and how far two such vectors are apart.

The test of everything in this book that cuts a batch or a model into pieces. A loss curve is no such test: it falls for
gradients that are wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from playbook.errors import ConfigError


def gradient_vector(model: nn.Module) -> Tensor:
    """All gradients of ``model`` end to end, one copy of shape (number of parameters,), in the order of ``parameters()``.

    A parameter that got none counts as zeros, so that two models of one shape always compare.
    """
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad.detach()).flatten() for p in model.parameters()]
    )


def relative_error(value: Tensor, reference: Tensor) -> float:
    """‖value − reference‖ / ‖reference‖, summed in fp64 (millions of fp32 squares would lose digits of their own).

    NaN where ``value`` holds one. Raises ConfigError when the shapes differ, or when ``reference`` is zero.
    """
    if value.shape != reference.shape:
        raise ConfigError(
            f"value has shape {tuple(value.shape)}, but the reference has {tuple(reference.shape)}"
        )
    size = reference.double().norm()
    if size == 0:
        raise ConfigError("reference is zero everywhere: there is nothing to be relative to")
    return float((value.double() - reference.double()).norm() / size)
