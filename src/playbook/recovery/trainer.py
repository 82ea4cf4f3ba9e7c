"""The trainer of a rank whose replica is one of some that come and go: the core's, with sums that reach over a quorum.

A replica's engine has groups of its own, and knows no other. Here what it sums over its ranks is summed over the replicas
of the quorum as well: first the targets that count, by which losses are divided, so that a step of fewer replicas
is the mean over *their* tokens; then gradients and the loss. Between the gradients and the update ranks vote.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook._json import to_json
from playbook.parallel.engine import Engine
from playbook.recovery.domains import Domains
from playbook.recovery.manager import Discarded, Manager, add_up
from playbook.seeding import derive_seed
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus
from playbook.training.trainer import StepResult, Trainer, make_trainer


class ReplicaEngine(Engine):
    """The engine of one replica; ``manager`` adds up over the others, ``commit`` says whether an update is to be made."""

    manager: Manager
    commit: Callable[[bool], bool]
    samples_before: int  # in data-parallel ranks: whose samples come before this one's
    loss: Tensor  # of this step, and the norm of its gradients
    norm: Tensor
    tokens = 0  # that took part in it

    @classmethod
    def of(cls, engine: Engine, manager: Manager, samples_before: int) -> ReplicaEngine:
        """The same with what a quorum adds."""
        own = cls(engine.model, engine.sets, engine.placements, engine.names, engine.mesh, engine.pipeline)
        own.manager, own.samples_before = manager, samples_before
        return own

    def first_sample(self, inputs: Tensor) -> int:
        return self.samples_before * len(inputs)

    def sum(self, value: Tensor, over_stages: bool = False) -> Tensor:
        return self.manager.all_reduce(super().sum(value, over_stages))

    def count(self, targets: Tensor) -> Tensor:
        tokens = super().count(targets)
        self.tokens = int(tokens)
        return tokens

    def accumulate(self, *given: Any, **how: Any) -> Tensor:
        self.loss = super().accumulate(*given, **how)
        return self.loss

    def clip(self, limit: float, loss_scale: float = 1.0) -> Tensor:
        self.norm = super().clip(limit, loss_scale)
        return self.norm

    def finish(self) -> None:
        """Backward is over: complete the gradients, inside and across. A weight that no replica used has none."""
        super().finish()
        leaves = [leaf for one in self.sets for leaf in one.leaves if leaf.tensor.requires_grad]
        used = torch.tensor([leaf.tensor.grad is not None for leaf in leaves], dtype=torch.uint8)
        self.manager.all_reduce(used, dist.ReduceOp.MAX)
        found = []
        for leaf, somewhere in zip(leaves, used.tolist(), strict=True):
            if somewhere and leaf.tensor.grad is None:
                leaf.tensor.grad = torch.zeros_like(leaf.tensor)
            if somewhere and leaf.tensor.grad is not None:
                found.append(leaf.tensor.grad)
        add_up(found, self.manager)

    def step(self) -> None:
        for router in self._routers.values():
            self.manager.all_reduce(router.load)
        for history in self.histories:
            self.manager.all_reduce(history.now, dist.ReduceOp.MAX)
        self._vote(skipped=False)
        super().step()

    def skip(self) -> None:
        self._vote(skipped=True)
        super().skip()

    def _vote(self, skipped: bool) -> None:
        """Raises Discarded, on all ranks of the quorum or on none."""
        if not self.commit(skipped):
            super().skip()
            raise Discarded


class ReplicaTrainer(Trainer):
    """Takes each step until a quorum has committed it."""

    engine: ReplicaEngine

    def __init__(self, model: Any, batches: Any, config: TrainConfig, mesh: Any, manager: Manager):
        super().__init__(model, batches, config, mesh)
        self.manager, self.begun, self.loss_before = manager, 0.0, copy.copy(self.loss_scale)
        each, replicas = config.layout.dp, manager.domains.replicas
        self.replica = manager.replica * each + (mesh.index("dp") if mesh else 0), each * replicas
        # Of the global batch a replica has the same samples, whoever takes part.
        self.batches = type(batches)(batches.corpus, config.global_batch * replicas, config.seq, config.seed)
        self.engine = ReplicaEngine.of(self.engine, manager, self.replica[0])
        self.engine.commit = self._commit

    def step(self) -> StepResult:
        """One step, which is taken again in the next quorum if it was discarded. Its tokens are those that took part."""
        while True:
            self.manager.begin(self)
            self.begun, self.loss_before = time.perf_counter(), copy.copy(self.loss_scale)
            with suppress(Discarded):
                return replace(super().step(), tokens=self.engine.tokens)
            self.loss_scale = self.loss_before

    def _seed_dropout(self, step: int) -> None:
        super()._seed_dropout(step)
        if self.manager.replica:
            torch.manual_seed(derive_seed(torch.initial_seed(), f"replica group {self.manager.replica}"))

    def _commit(self, skipped: bool) -> bool:
        return self.manager.commit(lambda: self._record(skipped))

    def _record(self, skipped: bool) -> str:
        """What the launcher writes into logs, should the step be committed."""
        engine, lr = self.engine, self.optimizer.param_groups[0]["lr"]
        took = time.perf_counter() - self.begun
        scale = self.loss_before.value if self.loss_before else 1.0
        told = (
            self.step_count,
            engine.loss.item(),
            engine.norm.item(),
            lr,
            took,
            engine.tokens,
            scale,
            skipped,
        )
        return to_json(asdict(StepResult(*told)))


def replica_trainer(
    shape: ModelShape, corpus: Corpus, config: TrainConfig, manager: Manager, mesh: Any
) -> ReplicaTrainer:
    """The trainer of this rank, of ``config`` for all replicas; the ``mesh`` is of its own one."""
    domains: Domains = manager.domains

    def make(model: Any, batches: Any, config: TrainConfig, mesh: Any) -> ReplicaTrainer:
        return ReplicaTrainer(model, batches, config, mesh, manager)

    made = make_trainer(shape, corpus, domains.config(config), mesh, make)
    assert isinstance(made, ReplicaTrainer)
    return made
