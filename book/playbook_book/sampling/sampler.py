"""A sampler on the ranks of a trainer: the same model in a layout of its own, with a cache of keys and values.

It is made without a whole model on any rank (slices of tensors without memory), filled by `reshard.Transfer`, and
generates token by token: the first pass reads the prompt, each further one a single token, which attends to the cached
keys of those before it. Log-probabilities of what it chose come with it: reinforcement learning compares them with the
trainer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.layout import Layout
from playbook.layout.fields import BUCKET
from playbook.model.moe import routers
from playbook.model.ops import sdpa_attention
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh, all_gather
from playbook.parallel.placement import Placements, whole
from playbook.parallel.sequence import Crossing
from playbook.parallel.tensor import shard_tensors
from playbook_book.sampling.invariant import attention, log_softmax, use_invariant
from playbook_book.sampling.reshard import Transfer, needed
from playbook_book.sampling.transfer import order, sampling

Core = Callable[..., Tensor]


class Cache:
    """An attention core that remembers the keys and values of all tokens so far: (b, kv, ≤ length, ·)."""

    def __init__(self, core: Core):
        self.core, self.used = core, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def begin(self, length: int) -> None:
        """Forget all, and have room for so many tokens; memory is used again where it fits."""
        self.used, self.length = 0, length

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
    ) -> Tensor:
        self.keys, self.values = self._room(self.keys, k), self._room(self.values, v)
        end = self.used + k.shape[2]
        for kept, new in ((self.keys, k), (self.values, v)):
            kept[:, :, self.used : end] = new
        first, self.used = self.used == 0, end
        return self.core(q, self.keys[:, :, :end], self.values[:, :, :end], causal=first)

    def _room(self, kept: Tensor | None, new: Tensor) -> Tensor:
        shape = (*new.shape[:2], self.length, new.shape[3])
        return kept if kept is not None and kept.shape == shape else new.new_empty(shape)


class SamplerMesh(Mesh):
    """A mesh whose ranks are those of another in an ``order``, which goes up in every group."""

    def __init__(self, layout: Layout, order: Sequence[int]):
        super().__init__(layout)
        self.order, self.coordinates = order, layout.coordinates(order.index(self.rank))

    def _create(self, groups: list[tuple[int, ...]], axes: tuple[str, ...]) -> dist.ProcessGroup:
        return super()._create([tuple(self.order[rank] for rank in group) for group in groups], axes)

    def subgroup(self, groups: Iterable[Iterable[int]]) -> dist.ProcessGroup | None:
        return super().subgroup([[self.order[rank] for rank in group] for group in groups])


class Sampler:
    """A model for generation over all ranks of ``engine``, ``tp`` of which share its tensors; dp over the rest.

    ``refresh`` fills it with the engine's weights of the moment. With ``finest`` both compute with batch-invariant
    operators, so that log-probabilities are the trainer's to the last bit. A collective. Raises LayoutError or
    ConfigError for a layout that the model does not fit.
    """

    def __init__(
        self, engine: Engine, tp: int, *, finest: int = 0, limit: int = BUCKET, node: int | None = None
    ):
        of, some = engine.mesh.layout if engine.mesh else Layout(), next(engine.model.parameters())
        layout = sampling(of, engine.model.shape, tp)
        self.mesh = SamplerMesh(layout, order(of, tp)) if engine.mesh else None
        self.model, self.placements = empty(engine.model, self.mesh, some.dtype, some.device)
        if finest:
            for model in (engine.model, self.model):
                use_invariant(model, finest)
        core = attention if finest else sdpa_attention
        self.caches = [Cache(core) for _ in self.model.blocks]
        for cache, block in zip(self.caches, self.model.blocks, strict=True):
            block.attention.core = cache  # type: ignore[union-attr]
        self.refresh = Transfer(engine, needed(self.model, self.placements), limit, node)
        self.refresh()

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks that share its tensors."""
        return self.mesh.group("tp") if self.mesh and self.mesh.layout.tp > 1 else None

    def own(self, rows: Tensor) -> Tensor:
        """Of rows for all ranks, those of this one's replica."""
        return rows.chunk(self.mesh.size("dp"))[self.mesh.index("dp")] if self.mesh else rows

    def everywhere(self, rows: Tensor) -> Tensor:
        """The rows of all replicas, in their order, from each one's own. A collective."""
        if self.mesh is None:
            return rows
        every = rows.new_empty(self.mesh.size("dp") * len(rows), *rows.shape[1:])
        all_gather(every.view(-1), rows.contiguous().view(-1), self.mesh.group("dp"))
        return every

    @torch.no_grad()
    def generate(self, prompts: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Continue ``prompts`` (b, s) by as many tokens as there are ``draws`` (b, n), uniform in [0, 1).

        Returns all tokens (b, s + n), and the log-probabilities of the new ones (b, n) in fp32. With the same draws, the
        same bits give the same tokens, whatever the batch and the layout.
        """
        n = draws.shape[1]
        for cache in self.caches:
            cache.begin(prompts.shape[1] + n)
        tokens, new, at = prompts, prompts, 0
        found = []
        for i in range(n):
            where = torch.arange(at, at + new.shape[1], device=tokens.device)
            log_probabilities = log_softmax(self._last(new, where))  # (b, vocab)
            below = log_probabilities.double().exp().cumsum(-1)
            wanted = draws[:, i : i + 1].double() * below[:, -1:]
            at += new.shape[1]
            new = torch.searchsorted(below, wanted, right=True).clamp_(max=below.shape[1] - 1)  # (b, 1)
            found.append(log_probabilities.gather(1, new))
            tokens = torch.cat([tokens, new], 1)
        return tokens, torch.cat(found, 1)

    def _last(self, tokens: Tensor, where: Tensor) -> Tensor:
        """Logits behind the last token, in fp32: (b, s) at positions (s,) -> (b, vocab)."""
        x = self.model.hidden_states(tokens, where)[:, -1:]
        return whole_logits(self.model.head(self.model.final_norm(x)), self.model.shape.vocab, self.group)[
            :, 0
        ]


def empty(
    like: Transformer, mesh: Mesh | None, dtype: torch.dtype, device: torch.device
) -> tuple[Transformer, Placements]:
    """A rank's slices of a model of the same shape, zero and ready to be filled; and where they are."""
    model: Any = Transformer(like.shape, device="meta", dtype=dtype)
    placements: Placements = whole(model)
    if mesh and mesh.layout.tp > 1:
        placements = shard_tensors(model, mesh, placements)
    model.to_empty(device=device)
    if model.shape.tied:  # each of the two names got a tensor of its own
        model.head.weight = model.embedding.weight
    model._register_rotary(device)
    for router in routers(model).values():
        router.begin()
    for p in model.parameters():
        torch.nn.init.zeros_(p.requires_grad_(False))  # what pads a vocabulary stays so
    return model.eval(), placements


def whole_logits(logits: Tensor, vocab: int, group: dist.ProcessGroup | None) -> Tensor:
    """The logits of all vocabulary entries, in fp32, of each rank's columns: (b, s, vocab/t) -> (b, s, vocab).

    Ranks compute the same with them; backward gives each the gradient of its own columns.
    """
    every = Crossing.apply(logits, group, _gather_columns, _own_columns) if group else logits
    return every[..., :vocab].float()


def _gather_columns(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    every = x.new_empty(group.size(), *x.shape)
    all_gather(every.view(-1), x.contiguous().view(-1), group)
    return torch.cat(every.unbind(), -1)


def _own_columns(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    return gradient.chunk(group.size(), -1)[group.rank()].contiguous()


def log_probabilities(
    logits: Tensor, targets: Tensor, vocab: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """log p(target) of each token, as a trainer computes it: a rank's logits (b, s, vocab/t), (b, s) -> (b, s)."""
    found = log_softmax(whole_logits(logits, vocab, group))
    return found.gather(-1, targets[..., None]).squeeze(-1)
