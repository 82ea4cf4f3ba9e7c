"""Which operators run below autocast, and in which dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


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
