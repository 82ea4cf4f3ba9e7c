"""What a rank keeps from one step to the next for every parameter, counted kind by kind, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from playbook.model.fp8 import FP8
from playbook.model.linear import linear_layers
from playbook.parallel.engine import Engine

#: What optimizers call their states.
STATES = {"masters": "master", "first moments": "exp_avg", "second moments": "exp_avg_sq"}


def kept_states(engine: Engine) -> dict[str, int]:
    """Bytes on this rank by kind, after a step, while its gradients are there: weights, gradients, optimizer states by
    kind, weights in FP8 that linear layers keep between micro-batches, and scales of these copies and of the states.

    Where ZeRO pads its vectors, padding counts.
    """
    kept = engine.tensors()
    found = {"weights": _bytes(kept["parameters"]), "gradients": _bytes(kept["gradients"])}
    states = [state for one in engine.optimizers for state in one.state.values()]
    found |= {kind: _bytes(s[name] for s in states if name in s) for kind, name in STATES.items()}
    scales = [t for state in states for name, t in state.items() if name.endswith("_scale")]
    codes: list[Tensor] = []
    for layer in linear_layers(engine.model):
        if isinstance(layer.products, FP8):
            copies = layer.products.copies(layer.weight)
            codes, scales = codes + copies[0::2], scales + copies[1::2]
    return found | {"weights in FP8": _bytes(codes), "scales": _bytes(scales)}


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, what several of them share once: a transpose may be a view."""
    sizes = {(t.data_ptr(), t.numel()): t.numel() * t.element_size() for t in tensors}
    return sum(sizes.values())
