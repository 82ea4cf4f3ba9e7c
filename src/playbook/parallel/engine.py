"""The engine: gradients of a global batch that are complete, their norm, an update; on one device and on many.

It has a model, or what of it is on this rank; the sets of parameters that ranks have in common (``replicas.py``); where
each parameter is (``placement.py``); and a pipeline, if the layout has one. Everything that is said of all parameters at
once is said here, from their placements: sums over ranks of which each has a part, the norm, clipping, whole tensors
for those who ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from playbook.errors import ConfigError
from playbook.layout import AXES
from playbook.model.attention import Positions
from playbook.model.linear import linear_layers
from playbook.model.moe import routers
from playbook.model.transformer import IGNORE, Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.pipeline import Pipeline, Step
from playbook.parallel.placement import Placement, WholeNames, whole
from playbook.parallel.replicas import MakeOptimizer, ReplicaSet
from playbook.parallel.state import RankState


def accumulate_gradients(
    model: Transformer,
    inputs: Tensor,
    targets: Tensor,
    micro_batch: int,
    *,
    dtype: torch.dtype = torch.float32,
    loss_scale: float = 1.0,
    engine: Engine | None = None,
    positions: Positions | list[Positions] = None,
) -> Tensor:
    """Add the gradient of the mean loss over all targets of (B, s) to ``.grad``, ``micro_batch`` rows at a time.

    Each micro-batch's *sum* of losses is divided by the *global* number of tokens, so the pieces add up to the gradient
    of the whole batch also when they hold different numbers of tokens. Returns the mean loss, a scalar. A last, smaller
    micro-batch is fine. ``dtype`` is what the forward pass computes in (autocast, if it is not fp32), and ``loss_scale``
    what gradients, but not the loss that is returned, are multiplied by. A profiler sees each pass under its name.
    Raises ConfigError when no target counts.

    With an ``engine`` the rows are this rank's share of the global batch: tokens and loss are those of all ranks.
    ``positions`` (s,) say where in its sample each token stands, if not from the beginning on; one for all micro-batches,
    or a list of theirs.
    """
    engine = engine or Engine.on_one_device(model)
    tokens, seed = engine.begin(targets, loss_scale)
    first = engine.first_sample(inputs)
    total = torch.zeros((), device=inputs.device)
    xs, ys = inputs.split(micro_batch), targets.split(micro_batch)
    for i, (x, y, where) in enumerate(zip(xs, ys, of_each(positions, len(xs)), strict=True)):
        autocast = torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype != torch.float32)
        last = i == len(xs) - 1
        model.begins = first + i * micro_batch, x.shape, where
        with nullcontext() if last else engine.no_sync():
            with record_function("forward"), autocast:
                loss = model.loss(x, y, where)[0] / tokens
            with record_function("backward"):
                loss.backward(seed)
        total += loss.detach()
    engine.finish()
    return engine.sum(total)


def of_each(positions: Positions | list[Positions], micro_batches: int) -> list[Positions]:
    """Those of each micro-batch."""
    return positions if isinstance(positions, list) else [positions] * micro_batches


class Engine(RankState):
    """Trains ``model``. One step is: ``zero_grad``, ``accumulate``, ``clip``, ``step``.

    ``sets`` are the parameters that learn, ``placements`` say where every parameter is, by its name here; ``names`` are
    those of the whole model's state dict. Without a ``mesh`` it is the engine of one device.
    """

    def __init__(
        self,
        model: Transformer,
        sets: Sequence[ReplicaSet],
        placements: Mapping[str, Placement] | None = None,
        names: WholeNames | None = None,
        mesh: Mesh | None = None,
        pipeline: Pipeline | None = None,
    ):
        self.model, self.sets, self.mesh, self.pipeline = model, list(sets), mesh, pipeline
        self.placements = dict(placements or whole(model))
        self.names = names or WholeNames(model)
        self._cut_axes = self._axes_that_cut()
        #: Ranks that have other elements of the gradient; None if this one has all.
        self._elements = mesh.group(*self._cut_axes) if mesh and self._cut_axes else None
        #: Ranks that have other tokens.
        self._samples = None
        if mesh and mesh.layout.dp * mesh.layout.cp > 1:
            replicas = {placement.replicas for placement in self.placements.values()}
            self._samples = self.sets[0].group if replicas == {("dp", "cp")} else mesh.group("dp", "cp")
        self._routers = routers(model)
        found = (one.products.history for one in linear_layers(model))
        self.histories = {history for history in found if history is not None}
        mirrored = pipeline is not None and len(pipeline.stage_ranks) > 1  # ranks that have the same stages
        self._seen_by = AXES if mirrored else ("dp", "cp", "tp")
        self._sharers = {name: one.sharers for one in self.sets for name, _ in one.parameters}
        if pipeline:
            pipeline.sets, pipeline.tied = self.sets, frozenset(self._tied())
            for one in self.sets:
                one.defer_sync()

    @classmethod
    def on_one_device(cls, model: Transformer, make: MakeOptimizer | None = None) -> Engine:
        """The engine of a single device: PyTorch as everyone knows it. ``make`` makes its optimizer, if it has one."""
        alone = ReplicaSet(model)
        if make:
            alone.optimize(make)
        return cls(model, [alone])

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for one in self.sets:
            one.zero_grad()

    def accumulate(
        self,
        inputs: Tensor,
        targets: Tensor,
        micro_batch: int,
        positions: Positions | list[Positions] = None,
        *,
        dtype: torch.dtype = torch.float32,
        loss_scale: float = 1.0,
    ) -> Tensor:
        """Gradients of the mean loss over the global batch, and that loss: as `accumulate_gradients`, or by a pipeline.

        Afterwards gradients are sums over the ranks: a second call without ``zero_grad`` would have them summed again.
        """
        if self.pipeline is None:
            given = self.model, inputs, targets, micro_batch
            more: dict[str, Any] = {"dtype": dtype, "loss_scale": loss_scale, "positions": positions}
            return accumulate_gradients(*given, engine=self, **more)
        tokens, seed = self.begin(targets, loss_scale)
        autocast = partial(torch.autocast, inputs.device.type, dtype=dtype, enabled=dtype != torch.float32)
        batch = inputs.split(micro_batch), targets.split(micro_batch)
        loss = torch.zeros((), device=inputs.device)
        where = of_each(positions, len(batch[0]))
        angles = {id(one): self.model.angles(inputs.shape[1], one) for one in where}
        rotary = [angles[id(one)] for one in where]
        step = Step(*batch, where, rotary, 1.0 / tokens, seed, autocast, loss, self.first_sample(inputs))
        self.pipeline.run(step)
        self.finish()
        return self.sum(step.loss, over_stages=True)

    def first_sample(self, inputs: Tensor) -> int:
        """Where this rank's samples (B, s) begin in the global batch."""
        return self.mesh.index("dp") * len(inputs) if self.mesh else 0

    def count(self, targets: Tensor) -> Tensor:
        """The targets of all ranks that count, a scalar.

        Raises ConfigError when there are none, but not on a GPU: to look there is to wait for it.
        """
        tokens = self.sum((targets != IGNORE).sum())
        if not tokens.is_cuda and tokens == 0:
            raise ConfigError("targets hold no token that counts: every one of them is IGNORE")
        return tokens

    def begin(self, targets: Tensor, loss_scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """What sums of token losses are divided by, and the gradient of the mean loss, with which backward begins.

        Routers' own losses are multiplied as the model's is; ranks that route the same tokens, those of a
        tensor-parallel region, each add a part.
        """
        tokens, seed = self.count(targets), torch.full((), loss_scale, device=targets.device)
        for router in self._routers.values():
            router.loss_scale = (
                seed / tokens / (self.mesh.layout.tp // self.mesh.layout.apart if self.mesh else 1)
            )
        return tokens, seed

    def no_sync(self) -> AbstractContextManager[object]:
        """A backward pass after which there will be another, of the same step."""
        if self.pipeline:
            raise ConfigError("a pipeline takes all micro-batches of a step at once: call accumulate")
        with_each = ExitStack()
        for one in self.sets:
            with_each.enter_context(one.no_sync())
        return with_each

    def finish(self) -> None:
        """Backward is over: complete the gradients."""
        self._add_up_tied()
        for one in self.sets:
            one.finish()
        self._add_up_partial()

    def sum(self, value: Tensor, over_stages: bool = False) -> Tensor:
        """The sum over all ranks that have other samples, or also other stages of a pipeline; in place."""
        group = self._samples
        if over_stages and self.pipeline and self.mesh:
            group = self.mesh.group("dp", "cp", "pp")
        if group is not None:
            dist.all_reduce(value, group=group)
        return value

    def _add_up_partial(self) -> None:
        """Gradients of which ranks have partial sums, beside the sum over replicas: one message for each group."""
        by_axis: dict[str, list[Tensor]] = {}
        for name, gradient in self._gradients():
            for axis in self.placements[name].partial:
                by_axis.setdefault(axis, []).append(gradient)
        for axis, gradients in by_axis.items():
            assert self.mesh is not None
            vector = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(vector, group=self.mesh.group(axis))
            for gradient, part in zip(gradients, vector.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _tied(self) -> list[nn.Parameter]:
        """A tied table that learns, if this rank has it and it is on two stages of a pipeline."""
        if self.pipeline is None or not self.names.tied:
            return []
        named = self.model.named_parameters()
        return [p for name, p in named if p.requires_grad and self.placements[name].name == self.names.tied]

    def _add_up_tied(self) -> None:
        """Add up the gradient of a tied table whose two stages are on two ranks, before replicas do."""
        if self.pipeline is None:
            return
        for name, p in self.model.named_parameters():
            over = self.placements[name].tied
            if over and p.requires_grad and self.mesh:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.mesh.group(over))
        for one in self.sets:
            one.mark_ready(self._tied())

    # ---- the norm, and the update

    def clip(self, limit: float, loss_scale: float = 1.0) -> Tensor:
        """The norm of the whole gradient; where it is above ``limit``, gradients are scaled down to it.

        Gradients of ``loss_scale`` times the loss are divided by it first, those of 16 bits by their optimizer, when it
        has cast them to fp32: in 16 bits what the scale has saved would be lost here. A rank knows the squares of its
        own elements; those that several ranks have count once in the sum.
        """
        gradients = self._gradients()
        norm = self._norm(gradients) / loss_scale
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        if any(gradient.dtype != torch.float32 for _, gradient in gradients):
            for one in self.sets:
                one.divide_gradients_by(loss_scale)
        elif loss_scale != 1:
            factor = factor / loss_scale
        # A number: by a tensor a GPU multiplies gradients of 16 bits one by one, and rounds it to 16 bits first.
        if gradients and (by := factor.item()) != 1:
            torch._foreach_mul_([g for _, g in gradients], by)
        return norm

    def _norm(self, gradients: list[tuple[str, Tensor]]) -> Tensor:
        if self._elements is None:  # this rank has all of them
            return _total_norm([g for _, g in gradients])
        squares = torch.zeros((), device=next(self.model.parameters()).device)
        by_copies: dict[int, list[Tensor]] = {}
        for name, gradient in gradients:
            by_copies.setdefault(self._copies(name), []).append(gradient)
        for copies, some in by_copies.items():
            squares += _total_norm(some).square() / copies
        dist.all_reduce(squares, group=self._elements)
        return squares.sqrt()

    def _gradients(self) -> list[tuple[str, Tensor]]:
        return [pair for one in self.sets for pair in one.gradients()]

    def _axes_that_cut(self) -> tuple[str, ...]:
        """The axes along which ranks have other elements of the gradient."""
        if self.mesh is None:
            return ()
        layout = self.mesh.layout
        cut = {"tp", "pp", *(("dp", "cp") if layout.ep > 1 or any(one.shared for one in self.sets) else ())}
        return tuple(axis for axis in AXES if getattr(layout, axis) > 1 and axis in cut)

    def _copies(self, name: str) -> int:
        """On how many ranks, among those along the axes that cut, an element of a parameter's gradient is."""
        assert self.mesh is not None
        placement, ranks = self.placements[name], 1
        for axis in self._cut_axes:
            ranks *= placement.copies.get(axis, getattr(self.mesh.layout, axis))
        return ranks // self._sharers.get(name, 1)

    def step(self) -> None:
        """Update what this rank updates."""
        for one in self.sets:
            one.step()
        for name, router in self._routers.items():
            replicas = self.placements[f"{name}.weight"].replicas
            replicas += ("tp",) * (self.mesh.layout.etp if self.mesh else 0)
            if self.mesh and self.mesh.size(*replicas) > 1:
                dist.all_reduce(router.load, group=self.mesh.group(*replicas))
            router.update_bias(router.load)
        for history in self.histories:
            history.end_step(self.mesh.group(*self._seen_by) if self.mesh else None)

    def skip(self) -> None:
        """In the place of ``step``: nothing is updated, and what was counted for it is forgotten."""
        for router in self._routers.values():
            router.load.zero_()
        for history in self.histories:
            history.forget_step()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [one.optimizer for one in self.sets]


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all of them in fp32, whatever they are in: in fp16 it would overflow at 65,504."""
    if not gradients:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0, torch.float32)))
