"""Autocast, written out: which functions it casts the inputs of, and an ear at the operators below it.

PyTorch's lists are in its documentation ("Autocast Op Reference", torch.amp): products are in 16 bits; on CUDA what sums
or has a wide range, softmax, norms and losses among them, is in fp32; everything else takes what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

#: Of the functions that a transformer calls, those whose inputs are cast to 16 bits, and on CUDA to fp32.
NARROW = {
    F.linear,
    F.scaled_dot_product_attention,
    torch.matmul,
    Tensor.matmul,
    torch.bmm,
    torch.mm,
    torch.addmm,
}
WIDE = {
    F.cross_entropy,
    F.layer_norm,
    F.softmax,
    torch.softmax,
    Tensor.softmax,
    torch.exp,
    torch.log,
    torch.sum,
}


class Autocast(TorchFunctionMode):
    """What torch.autocast does to a forward pass: inputs of some functions are cast, those of all others are not."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        dtype = self.dtype if func in NARROW else torch.float32 if func in WIDE else None

        def cast(x: Any) -> Any:
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        if dtype is not None:
            args, kwargs = tree_map(cast, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class OpDtypes(TorchDispatchMode):
    """Listens to the operators that run, below autocast: (name, dtypes of its inputs, dtype of its output) each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[torch.dtype, ...], torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        first = found[0] if isinstance(found, tuple | list) else found
        if isinstance(first, Tensor) and first.is_floating_point():
            inputs = tuple(x.dtype for x in tree_flatten(args)[0] if isinstance(x, Tensor))
            self.calls.append((func.__name__.split(".")[0], inputs, first.dtype))
        return found
