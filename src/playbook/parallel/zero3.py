"""ZeRO-3, known from PyTorch as FSDP: of the parameters, too, each rank keeps its share (arXiv 1910.02054; 2304.11277).

A layer needs its weights whole, but only while it runs. So they are all-gathered just before it runs, forward and
backward, and forgotten after it; while one block computes, the next one's weights are on their way. A *unit* is what is
gathered together: the embedding, each block, the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.model.transformer import Transformer
from playbook.parallel.flat import Bucket, FlatOrder, Segment, backward_order
from playbook.parallel.mesh import beside
from playbook.parallel.single import all_gather
from playbook.parallel.storage import resize_storage
from playbook.parallel.zero import copies
from playbook.parallel.zero2 import Zero2
from playbook.training.optimizer import MakeOptimizer


@dataclass(eq=False)
class Unit:
    """Modules whose parameters come and go together.

    ``keep``: from its forward to its backward the unit stays, because backward begins with it, or because it is used
    twice (a tied embedding). ``late``: something beside its modules uses its parameters (learned positions); what was
    gathered for them goes only when the next unit begins.
    """

    modules: list[nn.Module]
    keep: bool = False
    late: bool = False
    bucket: Bucket = field(init=False)
    whole: Tensor = field(init=False)  # without memory while the unit is not gathered
    gathered: bool = False
    work: dist.Work | None = None

    def show(self) -> None:
        """Let the parameters be views of the whole vector."""
        for slot in self.bucket.slots:
            slot.parameter.data = slot.view(self.whole, self.bucket.start)

    def hide(self) -> None:
        """Leave NaN in their place, a single one in the shape of each: whoever looks now shall notice."""
        nothing = self.whole.new_full((), float("nan"))
        for slot in self.bucket.slots:
            slot.parameter.data = nothing.expand(slot.shape)


def units_of(model: Transformer) -> list[Unit]:
    """The units of a transformer in the order of the forward pass."""
    blocks = [Unit([block]) for block in model.blocks]
    late = model.position_embedding is not None
    first: list[nn.Module] = [m for m in (model.embedding, model.position_embedding) if m is not None]
    last: list[nn.Module] = [model.final_norm, model.head]
    if model.head.weight is model.embedding.weight:
        return [Unit([*first, *last], keep=True, late=late), *blocks]
    return [Unit(first, late=late), *blocks, Unit(last, keep=True)]


class Zero3(Zero2):
    """Stage 3: parameters, gradients and optimizer states are shared out; weights are whole only where they are used.

    With ``reshard`` a block's weights go after its forward pass and are gathered again for backward: per micro-batch
    3(N − 1)/N bytes for each byte of the blocks' parameters, as against 2(N − 1)/N without, when all weights stay from
    forward to backward. ``prefetch`` gathers the next unit while one runs.
    """

    stage = 3

    def __init__(
        self,
        model: Transformer,
        group: dist.ProcessGroup,
        make: MakeOptimizer,
        *,
        reshard: bool = True,
        prefetch: bool = True,
        find_unused: bool = False,
    ):
        self.model, self.group, self.find_unused = model, group, find_unused
        self.reshard, self.prefetch = reshard, prefetch
        # Gathers and reductions meet in one order on each rank, but not in the same one beside each other.
        self.gathering = beside(group)
        self.units = units_of(model)
        order = FlatOrder(_parameters(self.units, model), group.size())
        self._set_up(order, order.whole_units(), make)
        self._handles = list(self._hooks())

    @torch.no_grad()
    def _make_parameters(self) -> Tensor:
        """Keep this rank's share of each unit; the whole is gone until it is gathered."""
        shares = torch.zeros(
            self.order.length // self.group.size(), dtype=self.order.dtype, device=self.order.device
        )
        for unit, bucket in zip(reversed(self.units), self.buckets, strict=True):
            unit.bucket = bucket
            unit.whole = torch.zeros(len(bucket), dtype=self.order.dtype, device=self.order.device)
            for slot in bucket.slots:
                slot.view(unit.whole, bucket.start).copy_(slot.parameter)
            shares[self.in_shares(bucket)] = unit.whole[self._own(bucket)]
            unit.gathered = True
            self._release(unit)
        return shares

    def _weights(self, segment: Segment) -> Tensor:
        return segment.of_shares(self.parameters)

    def _own(self, bucket: Bucket) -> slice:
        """Where this rank's share lies in a unit's whole vector."""
        share = self.share(bucket)
        return slice(share.start - bucket.start, share.stop - bucket.start)

    # ---- weights that come and go

    def _gather(self, unit: Unit) -> None:
        """Start to gather a unit, unless it is here or on its way."""
        if unit.gathered or unit.work is not None:
            return
        resize_storage(unit.whole, len(unit.bucket) * unit.whole.element_size())
        own = self.parameters[self.in_shares(unit.bucket)]
        unit.work = all_gather(unit.whole, own, self.gathering, async_op=True)

    def _ready(self, unit: Unit) -> None:
        """Have a unit's weights here."""
        self._gather(unit)
        if unit.work is not None:
            unit.work.wait()
            unit.work, unit.gathered = None, True
            unit.show()

    def _release(self, unit: Unit) -> None:
        if unit.work is not None:  # fetched too early: nobody may write into memory that is given back
            unit.work.wait()
            unit.work, unit.gathered = None, True
        if unit.gathered:
            unit.gathered = False
            unit.hide()
            resize_storage(unit.whole, 0)

    def _hooks(self) -> Iterator[Any]:
        for i, unit in enumerate(self.units):
            for module in unit.modules:
                yield module.register_forward_pre_hook(partial(self._before_forward, i))
                yield module.register_forward_hook(partial(self._after_forward, i))

    def _before_forward(self, i: int, *_: Any) -> None:
        # A checkpoint runs the forward pass again within backward: then the next unit is the one before.
        self._ready(self.units[i])
        self._fetch(i - 1 if _in_backward() else i + 1)
        if i and self.units[i - 1].late and not self._stays(self.units[i - 1]):
            self._release(self.units[i - 1])

    def _after_forward(self, i: int, module: nn.Module, args: Any, output: Tensor) -> None:
        unit = self.units[i]
        if torch.is_grad_enabled() and output.requires_grad:
            output.register_hook(partial(self._before_backward, i))
        late = unit.late and module is not unit.modules[-1]
        if not (late or self._stays(unit)):
            self._release(unit)

    def _stays(self, unit: Unit) -> bool:
        """Whether a unit is needed after its forward pass, for it or for others."""
        return not self.reshard or _in_backward() or (unit.keep and self.model.training)

    def _before_backward(self, i: int, _: Tensor) -> None:
        if i or self.units[i].keep:  # an embedding's backward needs no weights
            self._ready(self.units[i])
        self._fetch(i - 1)

    def _fetch(self, i: int) -> None:
        """Start to gather the unit that is needed next."""
        if not self.prefetch or not 0 <= i < len(self.units):
            return
        if _in_backward() and i == 0 and not self.units[0].keep:
            return
        self._gather(self.units[i])

    # ---- a step

    def _complete(self, bucket: Bucket) -> None:
        super()._complete(bucket)
        self._release(self._unit(bucket))  # every gradient of the unit is there: its backward is over

    def _unit(self, bucket: Bucket) -> Unit:
        return self.units[len(self.units) - 1 - bucket.index]

    def step(self) -> None:
        """Update this rank's shares. What was gathered before is out of date."""
        self.release()
        self.shards.step()

    def release(self) -> None:
        """Forget all gathered weights."""
        for unit in self.units:
            self._release(unit)

    def gather_parameters(self) -> None:
        """Have all weights here, for a look from outside; ``release`` forgets them. A collective."""
        for unit in self.units:
            self._ready(unit)

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer as one device would save them, on every rank. A collective: all ranks must call it."""
        self.gather_parameters()
        state = copies(self.model.state_dict())
        self.release()
        return {"model": state, "optimizer": self.shards.state_dict(self.model)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state_dict`` gave, or a single device saved: each rank its share of it. A collective."""
        self.gather_parameters()
        self.model.load_state_dict(state["model"])
        for unit in self.units:
            self.parameters[self.in_shares(unit.bucket)] = unit.whole[self._own(unit.bucket)]
        self.release()
        self.shards.load_state_dict(self.model, state["optimizer"])


def _parameters(units: Iterable[Unit], model: nn.Module) -> list[list[tuple[str, nn.Parameter]]]:
    """Named parameters of each unit in the order of backward."""
    named = backward_order(model)
    lists = []
    for unit in reversed(list(units)):
        members = {p for module in unit.modules for p in module.parameters()}
        lists.append([(name, p) for name, p in named if p in members])
    return lists


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
