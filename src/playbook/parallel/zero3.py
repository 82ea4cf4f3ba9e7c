"""ZeRO-3, known from PyTorch as FSDP: of the parameters, too, each rank keeps its shard (arXiv 1910.02054; 2304.11277).

A layer needs its weights whole, but only while it runs. So they are all-gathered just before it runs, forward and
backward, and forgotten after it; while one block computes, the next one's weights are on their way. A *unit* is what is
gathered together: the embedding, each block, the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.model.linear import linear_layers
from playbook.model.moe import MoE
from playbook.model.transformer import Block, Transformer
from playbook.parallel.flat import Bucket, FlatOrder, Named, Segment, backward_order
from playbook.parallel.mesh import all_gather, clone_group
from playbook.parallel.replicas import ReplicaSet, broadcast
from playbook.parallel.stages import Stage, own_blocks
from playbook.parallel.zero import GradientShards, Zero
from playbook.registry import lab
from playbook.schedules.messages import Residency

# An operator of PyTorch's dispatcher, so that instruments see it (``instruments.memory_timeline``).
_LIBRARY = torch.library.Library("playbook", "DEF")
_LIBRARY.define("resize_storage(Tensor(a!) x, int bytes) -> ()")


def _resize(x: Tensor, bytes: int) -> None:
    x.untyped_storage().resize_(bytes)


_LIBRARY.impl("resize_storage", _resize, "CompositeExplicitAutograd")


def resize_storage(x: Tensor, bytes: int) -> None:
    """Let the storage of ``x`` have so many bytes; 0 gives its memory back.

    What autograd saved of ``x`` or of a view of it is right again as soon as the same values are: that is how ZeRO-3 can
    forget weights between forward and backward (as PyTorch's FSDP does). Nobody may read ``x`` while it has none.
    """
    torch.ops.playbook.resize_storage(x, bytes)


@dataclass(eq=False)
class Unit:
    """Parameters that come and go together, and the modules that use them.

    ``keep``: from its forward to its backward the unit stays, because backward begins with it, or because it is used
    twice (a tied embedding). ``late``: something beside its modules uses its parameters (learned positions); what was
    gathered for them goes only when the next unit begins. ``again``: backward needs the weights, too; an embedding's does
    not. ``stage`` is that of a pipeline; None where there is none, or two.
    """

    modules: list[nn.Module]
    keep: bool = False
    late: bool = False
    again: bool = True
    stage: int | None = None
    parameters: Named = field(default_factory=list)
    bucket: Bucket = field(init=False)
    whole: Tensor = field(init=False)  # without memory while the unit is not gathered
    gathered: bool = False
    work: dist.Work | None = None
    landing: Tensor | None = None  # where it arrives if not in ``whole``

    def show(self) -> None:
        """Let the parameters be views of the whole vector."""
        for slot in self.bucket.slots:
            slot.parameter.data = slot.view(self.whole, self.bucket.start)

    def hide(self) -> None:
        """Leave NaN in their place, a single one in the shape of each: whoever looks now shall notice."""
        nothing = self.whole.new_full((), float("nan"))
        for slot in self.bucket.slots:
            slot.parameter.data = nothing.expand(slot.shape)


def units_of(model: Transformer, stages: Sequence[Stage] = (), parameters: Named | None = None) -> list[Unit]:
    """The units of a transformer in the order of the forward pass; of a pipeline's rank, those of its ``stages``.

    Of ``parameters`` alone, if they are given. Where these are those of experts, a unit is the experts of a block.
    """
    own = {p for _, p in parameters} if parameters else {p for p in model.parameters() if p.requires_grad}
    blocks = {i: _experts(block, own) for i, block in own_blocks(model)}
    late = model.position_embedding is not None
    first: list[nn.Module] = [m for m in (model.embedding, model.position_embedding) if m is not None]
    last = [m for m in (model.final_norm, model.head) if m and not own.isdisjoint(m.parameters())]
    tied = bool(model.shape.tied)
    units: list[Unit] = []
    if not stages:
        all_blocks = [Unit([block]) for block in blocks.values()]
        if tied:
            units = [Unit([*first, *last], keep=True, late=late), *all_blocks]
        else:
            units = [Unit(first, late=late, again=False), *all_blocks, Unit(last, keep=True)]
    for stage in stages:
        units += [Unit(first, late=late, again=False, stage=stage.index)] * stage.first
        units += [Unit([blocks[i]], stage=stage.index) for i in stage.blocks]
        units += [Unit(last, keep=True, stage=stage.index)] * stage.last
    if stages and tied:  # the table of two stages: on its own, for it is complete when both are
        units.append(Unit([m for m in (model.embedding, model.head) if m is not None], keep=True))
    return _filled(units, model, own, apart=bool(stages) and tied)


def _experts(block: Block, own: set[nn.Parameter]) -> nn.Module:
    """The module that uses the weights of a block that are in ``own``: the block, or its experts alone."""
    experts = block.mlp.experts if isinstance(block.mlp, MoE) else None
    return experts if experts and own.isdisjoint(block.attention.parameters()) else block


def _filled(units: list[Unit], model: Transformer, own: set[nn.Parameter], apart: bool) -> list[Unit]:
    """Fill in those of ``own``, in the order of backward; a table ``apart`` is in the last unit alone."""
    table = next((m.weight for m in (model.embedding, model.head) if m is not None), None) if apart else None
    named = [(name, p) for name, p in model.named_parameters() if p in own][::-1]
    for unit in units:
        inside = {p for module in unit.modules for p in module.parameters()}
        inside = inside & {table} if apart and unit is units[-1] else inside - {table}
        unit.parameters = [(name, p) for name, p in named if p in inside]
    return [unit for unit in units if unit.parameters]


class Gathered(ReplicaSet):
    """A set of which each rank keeps its shards of the ``weights``, which are whole only where they are used."""

    shared = True
    gathers_weights = True
    weights: GatheredUnits

    def begin_pass(self, stays: Residency) -> None:
        self.weights.stays = stays

    def end_pass(self) -> None:
        self.weights.end_pass()

    def step(self) -> None:
        """Update this rank's segments. What was gathered before is out of date."""
        self.weights.release()
        self.optimizer.step()

    def forget_gathered(self) -> None:
        self.weights.release()

    def load(self, value: Callable[[str], Tensor]) -> None:
        self.forget_gathered()
        for leaf in self.leaves:
            leaf.tensor.copy_(value(leaf.name).reshape(-1)[leaf.start : leaf.stop])


def gathered(
    model: Transformer,
    group: dist.ProcessGroup,
    parameters: Named | None = None,
    *,
    reshard: bool = True,
    prefetch: bool = True,
    stages: Sequence[Stage] = (),
    hybrid: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None,
) -> tuple[FlatOrder, list[Bucket], GatheredUnits]:
    """Parameters in one vector, those of the first rank, a bucket for each unit, and what gathers them. A collective."""
    units = units_of(model, stages, parameters)
    shards, across = hybrid or (group, None)
    order = FlatOrder([unit.parameters for unit in reversed(units)], shards.size())
    broadcast([slot.parameter for slot in order.slots], group)
    buckets = order.cut()
    weights = GatheredUnits(model, units, order, buckets, shards, reshard, prefetch, bool(stages))
    weights.across = across
    return order, buckets, weights


class Zero3(Gathered, Zero):
    """Stage 3: parameters, gradients and optimizer states are sharded; weights are whole only where they are used.

    With ``reshard`` a block's weights go after its forward pass and are gathered again for backward. ``prefetch`` gathers
    the next unit while one runs. In a pipeline, whose ``stages`` are this rank's, weights stay as long as
    ``schedules.messages`` says.
    """

    stage = 3
    weights: GatheredUnits

    def __init__(
        self,
        model: Transformer,
        group: dist.ProcessGroup,
        parameters: Named | None = None,
        *,
        find_unused: bool = False,
        **how: Any,
    ):
        backward_order(parameters or model)  # raises where somebody has them already
        order, buckets, weights = gathered(model, group, parameters, **how)
        store = GradientShards(order, buckets, weights.group, weights.across)
        Zero.__init__(self, order, buckets, group, weights, store, find_unused)

    def _complete(self, bucket: Bucket) -> None:
        super()._complete(bucket)
        self.weights.used(bucket)


class GatheredUnits:
    """This rank's shards of all weights in one vector, and hooks on the model that gather each unit when it is used."""

    across: dist.ProcessGroup | None  # with hybrid sharding, ranks that have the same shards

    def __init__(
        self,
        model: Transformer,
        units: list[Unit],
        order: FlatOrder,
        buckets: list[Bucket],
        group: dist.ProcessGroup,
        reshard: bool,
        prefetch: bool,
        pipeline: bool,
    ):
        self.model, self.units, self.group = model, units, group
        for layer in (layers := list(linear_layers(model))):
            layer.products.remember_no_weight()
        self.reshard, self.prefetch = reshard, prefetch
        #: What stays after the pass that a pipeline is at; None where there is no pipeline.
        self.stays: Residency | None = Residency(False, False) if pipeline else None
        # Gathers and reductions meet in one order on each rank, but not in the same one beside each other.
        self.gathering = clone_group(group)
        self.vector = torch.zeros(order.length // group.size(), dtype=order.dtype, device=order.device)
        sent = any(layer.products.sends_weights for layer in layers)
        self.fp8: Any = lab("fp8", "gathers")(model, buckets, self.gathering) if sent else {}
        self._agreed = False
        self._unit_of = dict(zip(buckets, reversed(units), strict=True))
        with torch.no_grad():
            for bucket, unit in self._unit_of.items():
                self._take_over(unit, bucket)
        for i, unit in enumerate(units):
            for module in unit.modules:
                module.register_forward_pre_hook(partial(self._before_forward, i))
                module.register_forward_hook(partial(self._after_forward, i))

    def _take_over(self, unit: Unit, bucket: Bucket) -> None:
        """Keep this rank's shard of a unit; the whole is gone until it is gathered."""
        unit.bucket = bucket
        unit.whole = self.vector.new_zeros(len(bucket))
        for slot in bucket.slots:
            slot.view(unit.whole, bucket.start).copy_(slot.parameter)
        self.vector[bucket.in_shards] = unit.whole.chunk(self.group.size())[self.group.rank()]
        unit.gathered = True
        self._release(unit)

    def leaf(self, segment: Segment) -> Tensor:
        return segment.of_shards(self.vector)

    def _gather(self, unit: Unit) -> None:
        """Start to gather a unit, unless it is here or on its way."""
        if unit.gathered or unit.work is not None:
            return
        resize_storage(unit.whole, len(unit.bucket) * unit.whole.element_size())
        own = self.vector[unit.bucket.in_shards]
        if unit.bucket not in self.fp8:
            unit.work = all_gather(unit.whole, own, self.gathering, async_op=True)
            return
        if not self._agreed:
            self.fp8.agree(self.vector)
            self._agreed = True
        unit.work, unit.landing = self.fp8.start(unit.bucket, own)

    def _ready(self, unit: Unit) -> None:
        """Have a unit's weights here."""
        self._gather(unit)
        if unit.work is not None:
            self._arrive(unit)
            unit.show()

    def _arrive(self, unit: Unit) -> None:
        assert unit.work is not None
        unit.work.wait()
        if unit.landing is not None:
            self.fp8.finish(unit.bucket, unit.landing, unit.whole)
        unit.work, unit.landing, unit.gathered = None, None, True

    def _release(self, unit: Unit) -> None:
        if unit.work is not None:  # fetched too early: nobody may write into memory that is given back
            self._arrive(unit)
        if unit.gathered:
            unit.gathered = False
            unit.hide()
            resize_storage(unit.whole, 0)

    def _before_forward(self, i: int, *_: Any) -> None:
        # A checkpoint runs the forward pass again within backward: then the next unit is the one before.
        backward = _in_backward()
        self._ready(self.units[i])
        self._fetch(i, -1 if backward else 1)
        if backward:
            self._leave_behind(i)
        before = self._neighbour(i, -1)
        if before is not None and before.late and not self._stays(before):
            self._release(before)

    def _after_forward(self, i: int, module: nn.Module, args: Any, output: Tensor) -> None:
        unit = self.units[i]
        # The way back through an embedding needs no weights.
        if torch.is_grad_enabled() and output.requires_grad and module is not self.model.embedding:
            output.register_hook(partial(self._before_backward, i))
        if module is unit.modules[-1] and not self._stays(unit, module):
            self._release(unit)

    def _stays(self, unit: Unit, module: nn.Module | None = None) -> bool:
        """Whether a unit is needed after its forward pass, for it or for others."""
        if not self.reshard or _in_backward():
            return True
        if self.stays is None:
            return unit.keep and self.model.training
        return self.stays.stage or (unit.keep and self.stays.head and module is not self.model.embedding)

    def _before_backward(self, i: int, _: Tensor) -> None:
        self._ready(self.units[i])
        self._fetch(i, -1)
        self._leave_behind(i)

    def _fetch(self, i: int, step: int) -> None:
        """Start to gather the unit that is needed next."""
        unit = self._neighbour(i, step)
        if self.prefetch and unit is not None and (step > 0 or unit.again):
            self._gather(unit)

    def _leave_behind(self, i: int) -> None:
        """The pass back through the unit behind this one is over: in a pipeline also if its W is still to come, and of
        frozen ones none will."""
        unit = self._neighbour(i, 1)
        if unit is None or not self.reshard or (self.stays and self.stays.stage):
            return
        begins = self.units[i].keep  # a tied table, at both ends
        if self.stays or not (begins or unit.parameters[0][1].requires_grad):
            self._release(unit)

    def _neighbour(self, i: int, step: int) -> Unit | None:
        """The unit before or behind, in the same stage of a pipeline."""
        if not 0 <= i + step < len(self.units):
            return None
        unit = self.units[i + step]
        return unit if unit.stage == self.units[i].stage else None

    def used(self, bucket: Bucket) -> None:
        """Every gradient of the unit is there: its backward is over."""
        if self.stays is None:
            self._release(self._unit_of[bucket])

    def end_pass(self) -> None:
        """A pipeline's pass over a stage is over: forget what does not stay."""
        if self.stays is None or not self.reshard or self.stays.stage:
            return
        for unit in self.units:
            if not (unit.keep and self.stays.head):
                self._release(unit)

    def release(self) -> None:
        """Forget all gathered weights, and the scales that they travelled with."""
        self._agreed = False
        for unit in self.units:
            self._release(unit)

    def gather(self) -> None:
        """Have all weights here, for a look from outside; `release` forgets them. A collective."""
        for unit in self.units:
            self._ready(unit)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
