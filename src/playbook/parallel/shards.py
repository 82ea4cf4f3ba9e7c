"""What one rank owns of a flat vector, as an optimizer sees it: a tensor for each segment, its states, its norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.parallel.flat import Bucket, FlatOrder, Segment
from playbook.parallel.single import all_gather
from playbook.training.optimizer import MakeOptimizer, MasterAdamW, in_optimizer_order, is_matrix


class Shards:
    """This rank's segments of ``order``, cut into ``buckets``, and their optimizer.

    ``value(segment)`` is the memory of a segment's weights, which the optimizer updates in place; ``make`` makes the
    optimizer of (tensor, decays) pairs.
    """

    def __init__(
        self,
        order: FlatOrder,
        buckets: Iterable[Bucket],
        group: dist.ProcessGroup,
        value: Callable[[Segment], Tensor],
        make: MakeOptimizer,
    ):
        self.order, self.buckets, self.group = order, list(buckets), group
        self.segments = list(order.segments(self.buckets, group.rank()))
        self.leaves = {s: value(s).detach().requires_grad_() for s in self.segments}
        weights = [(leaf, is_matrix(s.slot.parameter)) for s, leaf in self.leaves.items()]
        # A rank beyond the last parameter owns nothing, and an optimizer wants something.
        self.optimizer = make(weights or [(torch.zeros(0, requires_grad=True), False)])

    # ---- a step

    def forget_gradients(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None

    def take_gradients(self, gradient: Callable[[Segment], Tensor | None]) -> None:
        """Give each segment its gradient, or none."""
        for segment, leaf in self.leaves.items():
            leaf.grad = gradient(segment)

    def clip(self, limit: float) -> Tensor:
        """The norm of the whole gradient, over all ranks; where it is above ``limit``, scale it down to it.

        A rank knows the squares of its own segments; their sum over ranks is the square of the norm.
        """
        gradients = [leaf.grad for leaf in self.leaves.values() if leaf.grad is not None]
        squares = torch.zeros((), dtype=torch.float32, device=self.order.device)
        if gradients:
            squares += torch.nn.utils.get_total_norm(gradients).float().square()
        dist.all_reduce(squares, group=self.group)
        norm = squares.sqrt()
        if gradients:
            torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def step(self) -> None:
        self.optimizer.step()

    def tensors(self) -> list[Tensor]:
        """States with an element for each weight."""
        return [
            t for state in self.optimizer.state.values() for t in state.values()
            if isinstance(t, Tensor) and t.dim() > 0
        ]  # fmt: skip

    # ---- whole tensors: collectives, which every rank of the group must call

    def gather(self, value: Callable[[Segment], Tensor | None], dtype: torch.dtype) -> dict[str, Tensor]:
        """Whatever each rank has for its segments (None counts as zeros), as whole tensors by parameter name."""
        n, device = self.group.size(), self.order.device
        mine = torch.zeros(self.order.length // n, dtype=dtype, device=device)
        for segment in self.segments:
            part = value(segment)
            if part is not None:
                segment.of_shares(mine).copy_(part)
        whole = torch.empty(self.order.length, dtype=dtype, device=device)
        for bucket in self.buckets:
            share = mine[bucket.start // n : bucket.stop // n]
            all_gather(whole[bucket.start : bucket.stop], share, self.group)
        return {slot.name: slot.view(whole).clone() for slot in self.order.slots}

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """The optimizer's states as that of a single device saves them."""
        have, kinds = self._kept()
        whole = {kind: self.gather(partial(self._state_tensor, kind), torch.float32) for kind in kinds}
        names = in_optimizer_order(model)
        steps = {name: torch.tensor(step) for name, step in have.items()}
        state = {
            i: {"step": steps[name], **{kind: whole[kind][name] for kind in kinds}}
            for i, name in enumerate(names)
            if name in have
        }
        return {"state": state, "param_groups": self._groups(model, names)}

    def _state(self, segment: Segment) -> Mapping[str, Any]:
        return self.optimizer.state.get(self.leaves[segment], {})

    def _state_tensor(self, kind: str, segment: Segment) -> Tensor | None:
        return self._state(segment).get(kind)

    def _kept(self) -> tuple[dict[str, float], list[str]]:
        """Steps of every parameter that has states on some rank, and the names of the states."""
        mine = {
            s.slot.name: float(state["step"]) for s in self.segments if "step" in (state := self._state(s))
        }
        kinds = {k for s in self.segments for k, v in self._state(s).items() if k != "step" and v is not None}
        every: list[Any] = [None] * self.group.size()
        dist.all_gather_object(every, (mine, kinds), group=self.group)
        steps = {name: step for known, _ in every for name, step in known.items()}
        return steps, sorted({kind for _, kinds in every for kind in kinds})

    def _groups(self, model: nn.Module, names: list[str]) -> list[dict[str, Any]]:
        """Options of the two groups, with the numbers that their parameters have on a single device."""
        shapes = dict(model.named_parameters())
        options = {bool(group["weight_decay"]): group for group in self.optimizer.param_groups}
        groups = []
        for decays in (True, False):
            numbers = [i for i, name in enumerate(names) if is_matrix(shapes[name]) is decays]
            group = options.get(decays, self.optimizer.param_groups[0])
            kept = {k: v for k, v in group.items() if k not in ("params", "weight_decay")}
            decay = group["weight_decay"] if decays in options else 0.0
            if numbers:
                groups.append({**kept, "weight_decay": decay, "params": numbers})
        return groups

    def load_state_dict(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Take this rank's parts of the states that a single device saved (or ``state_dict`` gave)."""
        number = {name: i for i, name in enumerate(in_optimizer_order(model))}
        for segment, leaf in self.leaves.items():
            saved = state["state"].get(number[segment.slot.name])
            if saved is None:
                self.optimizer.state.pop(leaf, None)
            else:
                set_state(self.optimizer, leaf, _cut(saved, segment))


def _cut(saved: Mapping[str, Any], segment: Segment) -> dict[str, Any]:
    start, stop = segment.start - segment.slot.start, segment.stop - segment.slot.start
    return {
        kind: value.reshape(-1)[start:stop].clone() if isinstance(value, Tensor) and value.dim() else value
        for kind, value in saved.items()
    }


def set_state(optimizer: torch.optim.Optimizer, parameter: Tensor, state: dict[str, Any]) -> None:
    """Give an optimizer the states of one parameter."""
    if isinstance(optimizer, MasterAdamW):
        optimizer.set_state(parameter, state)
    else:
        step = state["step"]
        state["step"] = step.clone() if isinstance(step, Tensor) else torch.tensor(float(step))
        optimizer.state[parameter] = state
