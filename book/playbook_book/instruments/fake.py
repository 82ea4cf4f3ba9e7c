"""Models too large for this machine, run without their memory or their arithmetic.

PyTorch's *fake tensors* have a shape, a dtype and a device, and no data. Every operation works out the shape of its
result and stops there; autograd saves what it always saves. So the activations of a 70-billion-parameter model can be
counted on a laptop, tensor by tensor, in seconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from playbook.model.ops import Ops
from playbook.model.transformer import Transformer
from playbook.shapes import ModelShape, load
from playbook_book.instruments.measured import SavedActivations


def saved_without_memory(
    shape: ModelShape | str | dict,
    batch: int,
    seq: int,
    *,
    attention: str = "sdpa",
    recompute: str = "none",
    dtype: torch.dtype = torch.bfloat16,
    kernels: str = "torch",
) -> SavedActivations:
    """What autograd would save in a forward pass, loss included, over (batch, seq) tokens of a model of any size.

    ``dtype`` is that of the parameters, ``kernels`` as `model.ops.Ops.named`. Fake tensors stand for CPU ones: with
    ``"sdpa"`` and no dropout the attention is the flash kernel, which saves q, k, v, its output and one fp32 number per
    query and head, as it does on CUDA. (With dropout the CPU has no flash kernel.) Rotary positions may run past
    ``max_seq``. Raises as ``Transformer`` does.
    """
    shape = load(shape)
    if shape.positions == "rotary":
        shape = shape.replace(max_seq=seq)
    model = Transformer(
        shape, attention=attention, recompute=recompute, ops=Ops.named(kernels), dtype=dtype, device="meta"
    )
    with FakeTensorMode():
        _fill_with_fakes(model)
        tokens = torch.zeros(batch, seq, dtype=torch.long)
        with SavedActivations(model, (tokens,)) as saved:
            model.loss(tokens, tokens)
    return saved


def _fill_with_fakes(model: nn.Module) -> None:
    """Replace every parameter and buffer by a fake CPU tensor of the same shape; shared ones stay shared."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, t in table.items():
                if t is not None:
                    table[name] = made.setdefault(id(t), _fake(t))


def _fake(t: Tensor) -> Tensor:
    fake = torch.empty(t.shape, dtype=t.dtype)
    return nn.Parameter(fake) if isinstance(t, nn.Parameter) else fake
