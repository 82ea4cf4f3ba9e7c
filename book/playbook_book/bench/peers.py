"""torch's own ways to train on many ranks, behind the methods of an engine: one step function drives ours and theirs.

Data parallelism and ZeRO are torch's classes; tensor and sequence parallelism is DTensor, with the plan that its
tutorials give for a Llama; context parallelism is what one writes in an afternoon, for PyTorch's own needs CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from playbook.model.norms import RMSNorm
from playbook.model.transformer import Transformer
from playbook.parallel.replicas import is_matrix
from playbook_book.bench.turns import Batch, Run, Work

_DDP = "DistributedDataParallel(gradient_as_bucket_view=True, broadcast_buffers=False)"


class Peer:
    """A model that torch has wrapped, and its optimizer. Gradients are *means* over the ranks, as torch has it.

    ``options`` are those of AdamW; as in ``training.optimizer``, weight decay is for matrices alone, and a GPU has the
    fused kernel.
    """

    #: What is asked of torch, for the record.
    settings: str

    def __init__(self, model: Transformer, *, weight_decay: float, **options: Any):
        self.model = self.wrap(model)
        decayed = [p for p in model.parameters() if is_matrix(p)]
        others = [p for p in model.parameters() if not is_matrix(p)]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        if model.embedding.weight.is_cuda:
            options["fused"] = True
        self.optimizer = self.make([group for group in groups if group["params"]], options)

    def wrap(self, model: Transformer) -> nn.Module:
        raise NotImplementedError

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, **options)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, work: Work) -> Run:
        """Training with it, in one rank."""
        return Run(self, work.tokens)

    def no_sync(self) -> AbstractContextManager[None]:
        """A backward pass after which there will be another."""
        return nullcontext()

    def finish(self) -> None:
        """Nothing to do: torch's hooks have waited for everything when backward returns."""

    def clip(self, limit: float) -> Tensor:
        """The norm of the whole gradient, clipped as torch does it; under FSDP2 a DTensor."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def step(self) -> None:
        self.optimizer.step()


class DDP(Peer):
    """Replicas. The reducer is C++; its buckets are the gradients' memory, as ours are."""

    settings = f"{_DDP}, AdamW"

    def wrap(self, model: Transformer) -> nn.Module:
        return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)

    def no_sync(self) -> AbstractContextManager[None]:
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()


class ZeroRedundancy(DDP):
    """Stage 1 as torch's documentation has it: DDP, and an optimizer of which each rank runs a part."""

    settings = f"{_DDP}, ZeroRedundancyOptimizer(AdamW)"
    #: Whether updated parameters are sent in one message for each rank, and not each on its own.
    bucket_view = False

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
        view = self.bucket_view
        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, parameters_as_bucket_view=view, **options)


class ZeroRedundancyView(ZeroRedundancy):
    """The same, with an option that makes it faster."""

    settings = f"{_DDP}, ZeroRedundancyOptimizer(AdamW, parameters_as_bucket_view=True)"
    bucket_view = True


class FSDP2(Peer):
    """Parameters sharded. Each block, and what is outside of them, is gathered as one; as in ours, the gradients of every
    micro-batch are reduced."""

    settings = "fully_shard(block, reshard_after_forward=True), fully_shard(model), AdamW"
    reshard = True
    replicas = 1

    def wrap(self, model: Transformer) -> nn.Module:
        sizes = self.replicas, dist.get_world_size() // self.replicas
        both = init_device_mesh(
            model.embedding.weight.device.type, sizes, mesh_dim_names=("replicate", "shard")
        )
        mesh = both if self.replicas > 1 else both["shard"]
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=self.reshard)
        fully_shard(model, mesh=mesh)  # stays whole from forward to backward, as by default
        return model


class FSDP2Kept(FSDP2):
    """Weights stay from forward to backward."""

    settings = "fully_shard(block, reshard_after_forward=False), fully_shard(model), AdamW"
    reshard = False


class FSDP2Hybrid(FSDP2):
    """Two groups of ranks with all shards each. As in ours, they add these up in a step's last backward alone."""

    settings = (
        "fully_shard on a (2, N/2) mesh, set_requires_all_reduce(False) until the last micro-batch, AdamW"
    )
    replicas = 2

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        model: Any = self.model
        model.set_requires_all_reduce(False)
        yield
        model.set_requires_all_reduce(True)


class DTensorPeer(Peer):
    """Every rank has all samples, and the gradients of its pieces when backward returns.

    The model is ours. Where its users would have to know what slows DTensor down, the peer gets the faster way: norms on
    shared-out tokens are torch's fused ones (ours are many small operations, each of which DTensor would dispatch), and
    each gradient takes its parameter's placement once, not in every operation of the optimizer.
    """

    settings = "parallelize_module(Colwise-, RowwiseParallel), loss_parallel, AdamW"
    sequence = False

    def wrap(self, model: Transformer) -> nn.Module:
        mesh = init_device_mesh(model.embedding.weight.device.type, (dist.get_world_size(),))
        if self.sequence:
            _fuse_norms(model)
        _plan(model, mesh, self.sequence)
        return model

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
        apart = [{**group, "params": params} for group in groups for params in _by_kind(group["params"])]
        return super().make(apart, options)

    def run(self, work: Work) -> Run:
        return RunDTensor(self, work.tokens, copies=dist.get_world_size())

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
    for name, others in {"attention": (None, None), "mlp": ()}.items():
        # entered once: one message back, not one each
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


class GatheredSDPA:
    """Keys and values gathered, and torch's attention does the rest: what ours has to be better than.

    An attention core, as `model.ops.Ops.attention`: this rank's queries, the keys and values of all ranks.

    Ranks have contiguous parts of the tokens. ``sliced``: keys that none of the queries sees are left out.
    """

    def __init__(self, group: dist.ProcessGroup, sliced: bool):
        self.group, self.sliced = group, sliced

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
    ) -> Tensor:
        s, mask = q.shape[2], None
        start = self.group.rank() * s
        k, v = (all_gather_tensor_autograd(t.contiguous(), 2, self.group) for t in (k, v))
        if causal and self.sliced:
            k, v = k[:, :, : start + s], v[:, :, : start + s]
        if causal:
            keys = torch.arange(k.shape[2], device=q.device)
            mask = torch.arange(start, start + s, device=q.device)[:, None] >= keys  # (s/c, s)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=p if training else 0.0, enable_gqa=q.shape[1] != k.shape[1]
        )
