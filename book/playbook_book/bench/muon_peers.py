"""torch's own Muon on many ranks: on replicas, on FSDP2's shards as they are, and on matrices gathered from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from playbook.model.linear import linear_layers
from playbook.training.muon import use_muon
from playbook_book.bench import peers
from playbook_book.bench.contest import Way, start_ours
from playbook_book.bench.turns import OPTIMIZER, Run, Work


def ours(way: str, layout: str) -> Way:
    """Ours, whose products are in bf16 as torch's are."""
    return Way(f"Muon, {way}", partial(start_muon, way, layout, torch.bfloat16))


def start_muon(way: str, layout: str, dtype: torch.dtype, work: Work, device: torch.device) -> Run:
    run = start_ours(layout, {"muon": way}, work, device)
    use_muon(run.engine, dtype=dtype, **OPTIMIZER)
    return run


class Both:
    """Muon for the matrices of blocks, AdamW for all else, as one optimizer."""

    def __init__(
        self, muon: type[torch.optim.Muon], model: Any, groups: list[dict[str, Any]], options: dict[str, Any]
    ):
        hidden = {id(layer.weight) for layer in linear_layers(getattr(model, "module", model).blocks)}
        mine = [p for group in groups for p in group["params"] if id(p) in hidden]
        rest = [{**g, "params": [p for p in g["params"] if id(p) not in hidden]} for g in groups]
        decay = OPTIMIZER["weight_decay"]
        matrices = muon(mine, lr=options["lr"], weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        self.parts = matrices, torch.optim.AdamW([group for group in rest if group["params"]], **options)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self) -> None:
        for part in self.parts:
            part.step()


class Gathered(torch.optim.Muon):
    """Of sharded matrices: moments stay shards, and what is made orthogonal is gathered in bf16, on GPUs all under way at
    once; each rank computes whole updates, and keeps its rows of them."""

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        params, grads, moments = list[Any](), list[Any](), list[Any]()
        self._init_group(group, params, grads, moments)
        coming = []
        for grad, moment in zip(grads, moments, strict=True):
            moment.lerp_(grad, 1 - group["momentum"])
            part = grad.lerp(moment, group["momentum"]).bfloat16()
            # Several at once over gloo end a process in some thousand steps by a segmentation fault (PyTorch 2.13).
            coming.append(part.redistribute(placements=[Replicate()], async_op=grad.is_cuda))
        for p, whole in zip(params, coming, strict=True):
            found = _zeropower_via_newtonschulz(
                whole.to_local(), group["ns_coefficients"], group["ns_steps"], group["eps"]
            )
            update: Any = DTensor.from_local(found, whole.device_mesh, [Replicate()], run_check=False)
            p.mul_(1 - group["lr"] * group["weight_decay"])
            scale = _adjust_lr(group["lr"], group["adjust_lr_fn"], p.shape)
            p.add_(update.redistribute(placements=p.placements), alpha=-scale)


class DDPMuon(peers.DDP):
    """Every replica updates all matrices."""

    settings = "DistributedDataParallel as above, torch.optim.Muon and AdamW"

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        return Both(torch.optim.Muon, self.model, groups, options)


class FSDP2Muon(peers.FSDP2):
    """DTensor finds out by itself what to send for each product."""

    settings = "fully_shard as FSDP2 above, torch.optim.Muon of DTensors as they are, and AdamW"
    muon = torch.optim.Muon

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        return Both(self.muon, self.model, groups, options)


class FSDP2Gathered(FSDP2Muon):
    """Whole matrices on every rank."""

    settings = "the same, moments redistributed to Replicate() in bf16 before Newton-Schulz, all at once"
    muon = Gathered
