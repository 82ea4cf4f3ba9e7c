"""Parameters that ranks have in common: one group, one way to add up gradients, one optimizer.

An engine has a list of such sets. The way is a subclass: those of ``data.py`` keep whole gradients and update everything
everywhere, those of ``zero.py`` shard what replicas would hold in common. The base class is that of a single device,
which sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.errors import ConfigError
from playbook.parallel.flat import GradientHooks, Named, backward_order
from playbook.schedules.messages import Residency

#: Tensors to train, and whether weight decay pulls at them.
Weights = Sequence[tuple[Tensor, bool]]
MakeOptimizer = Callable[[Weights], torch.optim.Optimizer]


def is_matrix(parameter: Tensor) -> bool:
    """Whether weight decay applies: norms and biases are vectors, and pulling them to zero regularises nothing."""
    return parameter.dim() >= 2


@dataclass(frozen=True, eq=False)
class Leaf:
    """What an optimizer updates: ``tensor`` has the elements from ``start`` on of a parameter, end to end."""

    name: str
    parameter: nn.Parameter
    start: int
    tensor: Tensor

    @property
    def stop(self) -> int:
        return self.start + self.tensor.numel()


class ReplicaSet:
    """Parameters that the ranks of ``group`` have in common; without a group, those of a single device.

    A step is: ``zero_grad``; backward passes, all but the last of them inside ``no_sync``; ``finish``, after which each
    leaf's ``.grad`` is a sum over the ranks; ``step``. A pipeline, in which many micro-batches are under way at once,
    says `defer_sync` once and `mark_ready` whenever gradients are complete.
    """

    #: Whether whole gradients stay on this rank until the last micro-batch.
    keeps_gradients = True
    #: Whether each element is updated by one rank of the group alone (ZeRO).
    shared = False
    #: Over how many ranks it shards updates; with hybrid sharding, ranks of other shard groups that make the same ones.
    sharers = 1
    across: dist.ProcessGroup | None = None
    #: Whether weights are gathered when they are used (ZeRO-3).
    gathers_weights = False
    optimizer: torch.optim.Optimizer

    def __init__(self, parameters: nn.Module | Named, group: dist.ProcessGroup | None = None):
        self.parameters, self.group = backward_order(parameters), group
        self.leaves = [Leaf(name, p, 0, p) for name, p in reversed(self.parameters)]

    def optimize(self, make: MakeOptimizer) -> None:
        """Make the optimizer of what this rank updates."""
        learning = (leaf for leaf in self.leaves if leaf.parameter.requires_grad)
        weights = [(leaf.tensor, is_matrix(leaf.parameter)) for leaf in learning]
        # A rank beyond the last parameter owns nothing, and an optimizer wants something.
        nothing = self.parameters[0][1].new_zeros(0).requires_grad_()
        self.optimizer = make(weights or [(nothing, False)])

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for _, p in self.parameters:
            p.grad = None

    def no_sync(self) -> AbstractContextManager[None]:
        """A backward pass after which there will be another: gradients stay here, and add up."""
        return nullcontext()

    def defer_sync(self) -> None:
        """From now on gradients are handed over by `mark_ready`, and not by hooks."""

    def mark_ready(self, parameters: Iterable[nn.Parameter]) -> None:
        """The gradients of these parameters are complete, or what cannot stay of them: what can be sent is."""

    def begin_pass(self, stays: Residency) -> None:
        """A pipeline begins a pass over one of its stages, of whose weights ``stays`` are needed after it."""

    def end_pass(self) -> None:
        """That pass is over."""

    def finish(self) -> None:
        """After the last backward pass of a step: each leaf's gradient is the sum over the ranks."""

    def divide_gradients_by(self, loss_scale: float) -> None:
        """Have the optimizer divide gradients of 16 bits by the scale of the loss.

        Raises ConfigError for one that cannot.
        """
        if hasattr(self.optimizer, "loss_scale"):
            self.optimizer.loss_scale = loss_scale
        elif loss_scale != 1:
            raise ConfigError(
                f"loss_scale is {loss_scale:g} with gradients of 16 bits, but the optimizer has no fp32 masters: take "
                "MasterAdamW"
            )

    def step(self) -> None:
        """Update this rank's leaves; afterwards parameters are, or will be when they are used, those of all ranks."""
        self.optimizer.step()

    def wait(self) -> None:
        """Wait until all parameters are up to date."""

    def forget_gathered(self) -> None:
        """Give back weights that were gathered: what this rank has of them is about to change."""

    def gradients(self) -> list[tuple[str, Tensor]]:
        """The gradients that this rank updates with, with the names of their parameters."""
        return [(leaf.name, leaf.tensor.grad) for leaf in self.leaves if leaf.tensor.grad is not None]

    def groups(self) -> list[dist.ProcessGroup]:
        """Process groups in which it talks."""
        return [] if self.group is None else [self.group]

    def load(self, value: Callable[[str], Tensor]) -> None:
        """Take up new values of the parameters, given by name, in the shape that they have on this rank."""
        for name, p in self.parameters:
            p.copy_(value(name))

    def tensors(self) -> dict[str, list[Tensor]]:
        """What this rank keeps between steps, by kind."""
        return {
            "parameters": [p.detach() for _, p in self.parameters],
            "gradients": [p.grad for _, p in self.parameters if p.grad is not None],
            "optimizer": self.states(),
        }

    def states(self) -> list[Tensor]:
        """Optimizer states with an element for each weight."""
        states = self.optimizer.state.values()
        return [t for state in states for t in state.values() if isinstance(t, Tensor) and t.dim() > 0]


class HookedReplicaSet(ReplicaSet):
    """A set whose ``hooks`` tell during backward when gradients are complete."""

    hooks: GradientHooks

    def no_sync(self) -> AbstractContextManager[None]:
        return self.hooks.paused()

    def defer_sync(self) -> None:
        self.hooks.defer_sync(collect=self.keeps_gradients)

    def mark_ready(self, parameters: Iterable[nn.Parameter]) -> None:
        self.hooks.mark_ready(parameters)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Give every rank of the group the tensors of its first: replicas must start alike."""
    for tensor in tensors:
        dist.broadcast(tensor, group=group, group_src=0)
