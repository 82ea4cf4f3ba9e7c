"""The products of linear layers by this room's kernels, which a model can take in the place of PyTorch's.

use_products(model, TritonProducts())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from playbook.kernels.grouped_matmul import grouped_gradient, grouped_matmul
from playbook.kernels.matmul import matmul
from playbook.model.linear import Products, linear_layers

if TYPE_CHECKING:
    from playbook.model.linear import Taken


class TritonProducts(Products):
    """`matmul` and `grouped_matmul`, of views where PyTorch's products have transposed matrices: nothing is copied."""

    def output(self, x: Taken, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x·Wᵀ + b: (…, in), (out, in), (out,) -> (…, out)."""
        assert isinstance(x, Tensor)
        y = matmul(x.flatten(0, -2), weight.to(x.dtype).t()).view(*x.shape[:-1], -1)
        return y if bias is None else y.add_(bias.to(x.dtype))

    def input_gradient(self, dy: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
        """dy·W: (n, out), (out, in) -> (n, in); added to ``onto`` if that is given."""
        return matmul(dy, weight.to(dy.dtype), onto)

    def weight_gradient(self, dy: Tensor, x: Taken, onto: Tensor | None = None) -> Tensor:
        """dyᵀ·x: (n, out), (n, in) -> (out, in); added to ``onto``, of the same dtype, if that is given."""
        assert isinstance(x, Tensor)
        return matmul(dy.t(), x, onto)

    def grouped(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Rows up to ends[0] of x times weight[0], and so on: (n, in), (E, in, out), (E,) -> (n, out)."""
        return grouped_matmul(x, weight, ends)

    def grouped_weight_gradient(self, dy: Tensor, x: Taken, ends: Tensor) -> Tensor:
        """dyᵀ·x of each group of rows: (n, out), (n, in), (E,) -> (E, out, in)."""
        assert isinstance(x, Tensor)
        return grouped_gradient(dy, x, ends)


def use_products(model: nn.Module, products: Products) -> None:
    """Have every linear layer of ``model``, whole or cut, and every grouped one multiply by ``products``."""
    for layer in linear_layers(model):
        layer.products = products
