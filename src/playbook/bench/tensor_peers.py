"""torch's own tensor and sequence parallelism: DTensor, with the plan that its tutorials give for a Llama.

The model is ours. Where its users would have to know what slows DTensor down, the peer gets the faster way: norms on
shared-out tokens are torch's fused ones (ours are many small operations, each of which DTensor would dispatch), and each
gradient takes its parameter's placement once, not in every operation of the optimizer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from playbook.bench.turns import Batch, Run
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.model.norms import RMSNorm
from playbook.model.transformer import Transformer
from playbook.parallel.replicas import is_matrix
from playbook.shapes import ModelShape


class DTensorPeer:
    """An engine. Every rank has all samples, and the gradients of its pieces when backward returns."""

    settings = "parallelize_module(Colwise-, RowwiseParallel), loss_parallel, AdamW"
    sequence = False

    def __init__(self, model: Transformer, *, weight_decay: float, **options: Any):
        self.model = model
        mesh = init_device_mesh(model.embedding.weight.device.type, (dist.get_world_size(),))
        if self.sequence:
            _fuse_norms(model)
        _plan(model, mesh, self.sequence)
        groups = [
            {"params": params, "weight_decay": weight_decay if decays else 0.0}
            for decays in (True, False)
            for params in _by_kind([p for p in model.parameters() if is_matrix(p) is decays])
        ]
        if model.embedding.weight.is_cuda:
            options["fused"] = True
        self.optimizer = torch.optim.AdamW(groups, **options)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self) -> None:
        for p in self.model.parameters():
            if isinstance(p, DTensor) and isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)

    def clip(self, limit: float) -> Tensor:
        """torch does not take the norm of DTensors and others at once: of each kind on its own."""
        kinds = _by_kind([p for p in self.model.parameters() if p.grad is not None])
        norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds]
        total = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, limit, total)
        return total

    def step(self) -> None:
        self.optimizer.step()


class DTensorSequence(DTensorPeer):
    """Norms and residual additions see some of the tokens."""

    settings = "the same with SequenceParallel for norms, tokens as Shard(1) between regions"
    sequence = True


class RunDTensor(Run):
    """Logits stay sharded by vocabulary entries, also in the loss."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        found: Any = super().loss(x, y)
        return found.to_local()

    def step(self, batch: Batch) -> None:
        with loss_parallel():
            super().step(batch)


def check_tensor(shape: ModelShape, ranks: int) -> None:
    """Raises ConfigError for models that DTensor's usual plan does not train as they are, LayoutError for heads that
    ``ranks`` do not divide."""
    for field, value, need in (
        ("tied", shape.tied, "False"),
        ("qk_norm", shape.qk_norm, "False"),
        ("positions", shape.positions == "learned" and "learned", "rotary"),
        ("kv_heads", bool(shape.n_kv_heads % ranks) and shape.n_kv_heads, f"a multiple of {ranks} ranks"),
    ):
        if value:
            raise ConfigError(f"{field} is {value}, but DTensor's plan needs {need}: choose another model")
    Layout(tp=ranks).check(shape)


def _by_kind(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """DTensors and others, without empty lists: no operation takes both."""
    kinds = [[p for p in parameters if isinstance(p, DTensor) is cut] for cut in (True, False)]
    return [kind for kind in kinds if kind]


def _fuse_norms(model: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if isinstance(norm, RMSNorm):
                fused = nn.RMSNorm(norm.weight.shape[0], norm.eps)
                fused.weight = norm.weight
                setattr(parent, name, fused)


def _plan(model: Transformer, mesh: DeviceMesh, sequence: bool) -> None:
    """Columns in, rows out; what is between regions is whole or, with ``sequence``, sharded by tokens."""
    tokens: Any = Shard(1) if sequence else Replicate()
    top: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False),
    }
    block: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    block |= {f"mlp.{name}": ColwiseParallel() for name in ("up", "gate")[: 1 + model.shape.gated]}
    block |= {name: RowwiseParallel(output_layouts=tokens) for name in ("attention.out", "mlp.down")}
    for name, others in (
        ("attention", (None, None)),
        ("mlp", ()),
    ):  # entered once: one message back, not one each
        block[name] = PrepareModuleInput(
            input_layouts=(tokens, *others), desired_input_layouts=(Replicate(), *others)
        )
    if sequence:
        top["final_norm"] = SequenceParallel()
        block |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    parallelize_module(model, mesh, top)
    for one in model.blocks:
        assert isinstance(one, nn.Module)
        parallelize_module(one, mesh, block)
