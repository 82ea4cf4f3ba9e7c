"""A problem for decentralized methods: least squares, of which every node has other data, with noise that is known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

D, STEPS = 5, 12


def gradient(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
    """Of ½‖A_i·x − b_i‖²: each node has other data, and some noise in each step."""
    rows = []
    for row, node in zip(x, nodes, strict=True):
        own = torch.Generator().manual_seed(node)
        a = torch.randn(D, D, generator=own, dtype=x.dtype) / D**0.5
        b = torch.randn(D, generator=own, dtype=x.dtype)
        noise = torch.randn(D, generator=torch.Generator().manual_seed(1000 * step + node), dtype=x.dtype)
        rows.append(a.T @ (a @ row - b) + 0.1 * noise)
    return torch.stack(rows)


def start(n: int) -> Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
