"""Pipeline parallelism: each rank has some layers, and micro-batches pass from rank to rank.

``Pipeline`` carries out any `Schedule`, the same object that is drawn and timed. An action runs as soon as what it needs
has arrived: F computes a stage's output and sends it on; B sends the gradient of the stage's input back; W, which nobody
waits for, computes the gradients of the weights; BW is both at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from playbook.errors import ScheduleError
from playbook.layout.stages import StageRanks
from playbook.model.attention import Positions
from playbook.model.linear import DeferredGradients, Factors, defer_weights
from playbook.model.transformer import Transformer
from playbook.parallel.channels import Channel, open_channel
from playbook.parallel.mesh import Mesh
from playbook.parallel.replicas import ReplicaSet
from playbook.parallel.stages import Stage
from playbook.parallel.turns import Turns
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.messages import Messages, Residency, message, receiver, residency

#: A stage and a micro-batch.
Place = tuple[int, int]


@dataclass
class Step:
    """What one step works on: inputs and targets (b, s) of each micro-batch, and how far each of them is on this rank.

    ``scale`` is what a sum of token losses is multiplied with, ``seed`` the gradient with which backward begins.
    """

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    positions: Sequence[Positions]
    rotary: Sequence[tuple[Any, ...]]
    scale: Tensor
    seed: Tensor
    autocast: Callable[[], AbstractContextManager[None]]
    loss: Tensor
    first: int  # sample of the global batch
    received: dict[Place, Tensor] = field(default_factory=dict)  # the input of a stage, a leaf of its graph
    ends: dict[Place, Any] = field(default_factory=dict)  # where backward through a stage begins
    deferred: dict[Place, list[Factors]] = field(default_factory=dict)  # gradients of weights that wait for W
    nearby: dict[Action, Tensor] = field(default_factory=dict)  # messages from this rank to itself


class Pipeline:
    """This rank's part of a pipeline over the axis pp of ``mesh``: its ``stages`` of ``model``, as ``cut_stages`` left
    them.

    ``schedule`` gives the Schedule of so many micro-batches; where its stages are, ``stage_ranks``, must not depend on
    their number. With ``turns``, its overlapped pairs run side by side; without, one action follows another. Its engine
    gives it the ``sets`` of parameters, and ``tied``, those that are complete when two stages are. Instruments look in
    ``after`` each action.
    """

    def __init__(
        self,
        model: Transformer,
        mesh: Mesh,
        stages: dict[int, Stage],
        stage_ranks: StageRanks,
        schedule: Callable[[int], Schedule],
        turns: Turns | None = None,
    ):
        self.turns = turns
        self.model, self.group, self.make, self.stages = model, mesh.group("pp"), schedule, stages
        self.rank, self.stage_ranks = mesh.index("pp"), stage_ranks
        self.sets: Sequence[ReplicaSet] = ()
        self.tied: frozenset[nn.Parameter] = frozenset()
        self.after: Callable[[Action], None] = lambda action: None
        self.trace: list[tuple[Action, float, float]] | None = None
        self.deferred = DeferredGradients(in_place=True)
        defer_weights(model, self.deferred)
        self.split: set[Place] = set()  # whose backward is B and W
        self.channels = self._open(mesh)
        self._plan: tuple[Schedule, dict[int, Messages]] | None = None

    def _open(self, mesh: Mesh) -> dict[int, Channel]:
        """Channels to the ranks with neighbouring stages. Every rank opens all pairs, in one order."""
        hops = {frozenset(hop) for line in self.stage_ranks for hop in pairwise(line)}
        pairs = sorted(sorted(hop) for hop in hops if len(hop) == 2)
        opened = {pair: open_channel(pair, mesh) for a, b in pairs for pair in [(a, b)]}
        return {a + b - self.rank: channel for (a, b), channel in opened.items() if channel is not None}

    def groups(self) -> list[dist.ProcessGroup]:
        """The groups of its messages."""
        return list(dict.fromkeys(g for c in self.channels.values() for g in (c.outward, c.inward)))

    def plan(self, microbatches: int) -> tuple[Schedule, dict[int, Messages]]:
        """The schedule for so many micro-batches, and what comes from each neighbour in a step."""
        if self._plan is None or self._plan[0].microbatches != microbatches:
            schedule = self.make(microbatches)
            ranks = tuple(map(tuple, self.stage_ranks))
            if (schedule.placement, schedule.microbatches) != (ranks, microbatches):
                raise ScheduleError(
                    f"schedule {schedule.name!r} is for {schedule.microbatches} micro-batches with stages on ranks "
                    f"{[list(line) for line in schedule.placement]}, but the pipeline has {microbatches} on "
                    f"{[list(line) for line in self.stage_ranks]}"
                )
            coming = {peer: Messages.of(schedule, peer, self.rank) for peer in self.channels}
            self._plan = schedule, coming
            self.split = {(a.stage, a.microbatch) for a in schedule.ranks[self.rank] if a.op == "W"}
        return self._plan

    @property
    def schedule(self) -> Schedule:
        """The schedule of the last step."""
        if self._plan is None:
            raise ScheduleError("the pipeline has no schedule yet: it gets one in its first step")
        return self._plan[0]

    def run(self, step: Step) -> None:
        """Carry out all actions of this rank: gradients are in ``.grad``, the sum of its losses in ``step.loss``."""
        schedule, coming = self.plan(len(step.inputs))
        sizes = [x.shape for x in step.inputs]
        for peer, channel in self.channels.items():
            channel.begin(coming[peer], sizes)
        left = {s: schedule.microbatches_of(s, self.rank) for s in self.stages}
        actions = schedule.ranks[self.rank]
        stays = residency(actions)
        i = 0
        while i < len(actions):
            if self.turns and (self.rank, i) in schedule.overlapped:
                done = actions[i : i + 2]
                self._side_by_side(schedule, step, done, self.turns)
            else:
                done = actions[i : i + 1]
                self._act(schedule, step, actions[i], stays[i])
            for action in done:
                if action.op in ("W", "BW"):
                    left[action.stage] -= 1
                    self._hand_over(self.stages[action.stage], left[action.stage] == 0, stays[i].stage)
                i += 1
        for channel in self.channels.values():
            channel.finish()

    def _hand_over(self, stage: Stage, last: bool, stays: bool) -> None:
        """A stage's gradients have one more micro-batch in them: hand over what is complete, or cannot stay."""
        due = [o for o in self.sets if last or not (o.keeps_gradients or (stays and o.gathers_weights))]
        parameters = [p for p in stage.parameters().values() if p not in self.tied] if due else []
        for one in due:
            one.mark_ready(parameters)

    def _act(self, schedule: Schedule, step: Step, action: Action, stays: Residency) -> None:
        """One action, and nothing beside it."""
        passes = self.sets if action.op != "W" else ()  # W needs no weights
        for one in passes:
            one.begin_pass(stays)
        incoming = self._incoming(schedule, step, action)
        # Linear layers keep what W needs where there is a W: BW is plain autograd.
        self.deferred.wanted = (action.stage, action.microbatch) in self.split
        self._send(schedule, step, action, self._compute(step, action, incoming))
        for one in passes:
            one.end_pass()
        self.after(action)

    def _side_by_side(self, schedule: Schedule, step: Step, pair: Sequence[Action], turns: Turns) -> None:
        """Two actions: neither begins before both can, and neither waits for its rows while the other can compute."""
        first, second = pair
        incoming = [self._incoming(schedule, step, action) for action in pair]
        self.deferred.wanted = any((a.stage, a.microbatch) in self.split for a in pair)
        made: list[Tensor | None] = []

        def here() -> None:
            self._send(schedule, step, first, self._compute(step, first, incoming[0]))
            self.after(first)

        turns.run(here, lambda: made.append(self._compute(step, second, incoming[1])))
        self._send(schedule, step, second, made.pop())
        self.after(second)

    def _compute(self, step: Step, action: Action, incoming: Tensor | None) -> Tensor | None:
        start = time.perf_counter()
        x = step.inputs[action.microbatch]
        self.model.begins = (
            step.first + action.microbatch * len(step.inputs[0]),
            x.shape,
            step.positions[action.microbatch],
        )
        with record_function(f"{action.op} {action.stage} {action.microbatch}"):
            carry_out = self._forward if action.op == "F" else self._backward
            outgoing = carry_out(step, action, incoming)
        if self.trace is not None:
            if step.loss.is_cuda:
                torch.cuda.synchronize()
            self.trace.append((action, start, time.perf_counter()))
        return outgoing

    def _send(self, schedule: Schedule, step: Step, action: Action, outgoing: Tensor | None) -> None:
        """What an action made goes to the rank that needs it, if any does."""
        target = receiver(schedule, action)
        if outgoing is None or target is None:
            return
        if target == self.rank:
            step.nearby[message(action)] = outgoing
        else:
            self.channels[target].send(message(action), outgoing)

    def _incoming(self, schedule: Schedule, step: Step, action: Action) -> Tensor | None:
        """The activations or the gradient that an action works on, from wherever they are made."""
        op, stage, microbatch = action
        before = stage - 1 if op == "F" else stage + 1
        if op == "W" or not 0 <= before < schedule.depth:
            return None
        what = Action("F" if op == "F" else "B", before, microbatch)
        source = schedule.rank_of(before, microbatch)
        return step.nearby.pop(what) if source == self.rank else self.channels[source].receive(what)

    def _forward(self, step: Step, action: Action, x: Tensor | None) -> Tensor | None:
        """A stage's output; none for the last stage, whose loss goes nowhere."""
        stage, m = self.stages[action.stage], action.microbatch
        place = action.stage, m
        with step.autocast():
            if x is None:
                y = stage.forward(step.inputs[m], step.rotary[m], step.positions[m])
            else:
                step.received[place] = x.requires_grad_()
                y = stage.forward(x, step.rotary[m])
            if stage.last:
                y = self.model.loss_of(y, step.targets[m]) * step.scale
                step.loss += y.detach()
        # Backward needs the place of y in the graph, not its numbers: once sent, they may go.
        step.ends[place] = torch.autograd.graph.get_gradient_edge(y) if y.requires_grad else None
        return None if stage.last else y.detach()

    def _backward(self, step: Step, action: Action, gradient: Tensor | None) -> Tensor | None:
        """B gives the gradient of the stage's input and keeps the factors of those of its weights, W multiplies them."""
        place = action.stage, action.microbatch
        if action.op == "W":
            self.deferred.compute(step.deferred.pop(place))
            return None
        end = step.ends.pop(place)
        if end is None:  # a first stage whose weights are frozen
            step.deferred[place] = []
            return None
        gradient = step.seed if gradient is None else gradient
        if action.op == "B":
            with self.deferred.collect() as step.deferred[place]:
                torch.autograd.backward([end], [gradient])
        else:
            torch.autograd.backward([end], [gradient])
        x = step.received.pop(place, None)
        return None if x is None else x.grad
