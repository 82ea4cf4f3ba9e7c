"""A problem for decentralized methods: least squares, of which every node has other data, with noise that is known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

D, STEPS = 5, 12


@cache
def data(node: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A and b of a node."""
    own = torch.Generator().manual_seed(node)
    a = torch.randn(D, D, generator=own, dtype=dtype) / D**0.5
    return a, torch.randn(D, generator=own, dtype=dtype)


@cache
def noise(step: int, node: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(1000 * step + node), dtype=dtype)


def exact(x: Tensor, nodes: Sequence[int], step: int = 0) -> Tensor:
    """Of ½‖A_i·x − b_i‖²: each node has other data."""
    found = ((row, *data(node, x.dtype)) for row, node in zip(x, nodes, strict=True))
    return torch.stack([a.T @ (a @ row - b) for row, a, b in found])


def gradient(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
    """The same with some noise in each step."""
    return exact(x, nodes) + 0.1 * torch.stack([noise(step, node, x.dtype) for node in nodes])


def minimum(n: int) -> Tensor:
    """Of the sum of all nodes' losses, by the normal equations."""
    every = [data(node, torch.float64) for node in range(n)]
    return torch.linalg.solve(sum(a.T @ a for a, _ in every), sum(a.T @ b for a, b in every))


def start(n: int) -> Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
