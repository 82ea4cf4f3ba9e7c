"""Parameters of which each rank has a piece: the norm of all gradients, and whole tensors for those who ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.training.optimizer import in_optimizer_order


@dataclass(frozen=True)
class Piece:
    """The part ``start:stop`` along ``dim`` of a parameter of ``size`` there; beyond ``size`` it is padding.

    ``copies`` ranks of the tensor-parallel group have the same piece.
    """

    dim: int
    start: int
    stop: int
    size: int
    copies: int = 1

    def of(self, whole: Tensor) -> Tensor:
        """The piece of a whole tensor, padded with zeros."""
        start, stop = min(self.start, self.size), min(self.stop, self.size)
        inside = whole.narrow(self.dim, start, stop - start)
        missing = self.stop - self.start - inside.shape[self.dim]
        if not missing:
            return inside
        padding = list(whole.shape)
        padding[self.dim] = missing
        return torch.cat([inside, whole.new_zeros(padding)], self.dim)


@dataclass
class Pieces:
    """What tensor parallelism did to a model, by parameter name: pieces, and gradients that are sums over ranks.

    Parameters without a piece are whole on every rank. A gradient in ``partial`` is an addend: the sum over the group has
    the rest.
    """

    group: dist.ProcessGroup
    pieces: dict[str, Piece] = field(default_factory=dict)
    partial: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    def copies(self, name: str) -> int:
        """On how many ranks of the group each element of a parameter is."""
        return self.pieces[name].copies if name in self.pieces else self.group.size()

    def groups(self) -> list[dist.ProcessGroup]:
        """The group, and those of its parts in which gradients are added up."""
        return list(dict.fromkeys([self.group, *self.partial.values()]))

    def whole(self, name: str, own: Tensor) -> Tensor:
        """The whole tensor from the pieces of all ranks. A collective."""
        if name not in self.pieces:
            return own.detach().clone()
        mine = self.pieces[name]
        parts = [torch.empty_like(own) for _ in range(self.group.size())]
        dist.all_gather(parts, own.contiguous(), group=self.group)
        whole = torch.cat(parts[:: mine.copies], mine.dim)
        return whole.narrow(mine.dim, 0, mine.size)


def clip_owned(engine: Any, limit: float) -> Tensor:
    """The norm of the whole gradient, of which ranks own parts; where it is above ``limit``, scale it down to it.

    Squares of elements that several ranks have count once.
    """
    owned = engine.owned()
    squares = torch.zeros((), device=next(engine.model.parameters()).device)
    by_copies: dict[int, list[Tensor]] = {}
    for name, gradient in owned:
        by_copies.setdefault(engine.copies(name), []).append(gradient)
    for copies, gradients in by_copies.items():
        squares += torch.nn.utils.get_total_norm(gradients).float().square() / copies
    for group in engine.norm_groups():
        dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    if owned:
        torch._foreach_mul_([g for _, g in owned], (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


class Around:
    """An engine around another, ``inner``, which shares a model out over other axes; what it leaves open is for that."""

    def __init__(self, inner: Any):
        self.inner, self.model = inner, inner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.inner.optimizer

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        return self.inner.no_sync()

    def finish(self) -> None:
        self.inner.finish()

    def clip(self, limit: float) -> Tensor:
        """The norm of the whole gradient; where it is above ``limit``, gradients are scaled down to it."""
        return clip_owned(self, limit)

    def owned(self) -> list[tuple[str, Tensor]]:
        return self.inner.owned()

    def norm_groups(self) -> list[dist.ProcessGroup]:
        return self.inner.norm_groups()

    def copies(self, name: str) -> int:
        return self.inner.copies(name)

    @property
    def keeps_gradients(self) -> bool:
        return self.inner.keeps_gradients

    def hold(self) -> None:
        self.inner.hold()

    def deliver(self, parameters: Iterable[nn.Parameter]) -> None:
        self.inner.deliver(parameters)

    def step(self) -> None:
        self.inner.step()

    def sum(self, value: Tensor) -> Tensor:
        return self.inner.sum(value)

    def groups(self) -> list[dist.ProcessGroup]:
        return self.inner.groups()

    def tensors(self) -> dict[str, list[Tensor]]:
        return self.inner.tensors()


class Cut(Around):
    """An engine whose parameters are pieces: ``inner`` replicates or shares them out over the other axes."""

    def __init__(self, inner: Any, pieces: Pieces):
        super().__init__(inner)
        self.pieces = pieces

    def finish(self) -> None:
        """Complete the gradients: over replicas first, then those that are addends, in one message for each group."""
        self.inner.finish()
        by_group: dict[dist.ProcessGroup, list[Tensor]] = {}
        for name, gradient in self.inner.owned():
            if name in self.pieces.partial:
                by_group.setdefault(self.pieces.partial[name], []).append(gradient)
        for group, gradients in by_group.items():
            vector = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(vector, group=group)
            for gradient, part in zip(gradients, vector.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def norm_groups(self) -> list[dist.ProcessGroup]:
        return [*self.inner.norm_groups(), self.pieces.group]

    def copies(self, name: str) -> int:
        """On how many ranks of the norm's groups each element of a parameter is."""
        return self.inner.copies(name) * self.pieces.copies(name)

    def gradients_whole(self) -> dict[str, Tensor | None]:
        found = self.inner.gradients_whole()
        return {name: g if g is None else self.pieces.whole(name, g) for name, g in found.items()}

    def state_dict(self) -> dict[str, Any]:
        state = self.inner.state_dict()
        names = in_optimizer_order(self.model)
        model = {name: self.pieces.whole(name, value) for name, value in state["model"].items()}
        optimizer = {
            i: {k: self.pieces.whole(names[i], v) if v.dim() else v.clone() for k, v in kept.items()}
            for i, kept in state["optimizer"]["state"].items()
        }
        return {"model": model, "optimizer": {**state["optimizer"], "state": optimizer}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = in_optimizer_order(self.model)

        def own(name: str, value: Tensor) -> Tensor:
            piece = self.pieces.pieces.get(name)
            return (piece.of(value) if piece and value.dim() else value).clone()

        model = {name: own(name, value) for name, value in state["model"].items()}
        optimizer = {
            i: {k: own(names[i], v) for k, v in kept.items()}
            for i, kept in state["optimizer"]["state"].items()
        }
        self.inner.load_state_dict({"model": model, "optimizer": {**state["optimizer"], "state": optimizer}})
