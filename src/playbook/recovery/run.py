"""A run with live recovery: the ranks, their launcher, and what it does when one of them dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from playbook import launch
from playbook.errors import PlaybookError
from playbook.instruments.step_costs import StepCosts
from playbook.launch import warm
from playbook.launch.ranks import RankError, Ranks, names
from playbook.launch.watch import Stream, results
from playbook.parallel.mesh import Mesh
from playbook.recovery.domains import Domains, check
from playbook.recovery.lighthouse import Event, History, Lighthouse
from playbook.recovery.manager import Manager
from playbook.recovery.trainer import ReplicaTrainer, replica_trainer
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import Log, StepResult

#: Seconds between two looks of the launcher.
_LOOK = 0.02


@dataclass(frozen=True)
class Live:
    """What is trained. ``watch`` is called in each rank with its trainer, before the first step."""

    shape: ModelShape
    config: TrainConfig
    data: str | None = None
    patience: float = 60.0
    watch: Callable[[ReplicaTrainer], None] | None = None


@dataclass
class Outcome:
    """Steps, peaks by rank and what rank 0 sent, as of any run; and ``history``. ``pids`` of a rank are those of all the
    processes that it has had."""

    results: list[StepResult]
    history: History
    peak_bytes: list[int] = field(default_factory=list)
    bytes_sent: dict[str, int] = field(default_factory=dict)
    pids: dict[int, list[int]] = field(default_factory=dict)
    interrupted: bool = False
    lost_tokens: int = 0


def train(run: Live, log: Log | None = None, say: Callable[[str], None] | None = None) -> Outcome:
    """Launch the ranks of all replicas, train, and replace replicas that die. ``log`` gets each committed step.

    Raises ConfigError or LayoutError for what cannot be recovered, LaunchError where processes cannot be replaced one by
    one, ReplicasLost where no replica is left.
    """
    check(run.shape, run.config)
    if not warm.AVAILABLE:
        raise launch.LaunchError("live recovery replaces single ranks, which needs Linux: leave it out")
    warm.start()  # it must not be forked from a process that hosts a store
    domains, tokens = Domains(run.config.layout), run.config.global_batch * run.config.seq
    lighthouse = Lighthouse(domains, run.config.steps, tokens, run.patience)
    keeper = Keeper(lighthouse, log, say or _say)
    ranks = domains.layout.world_size
    outcome = Outcome([], lighthouse.history, pids=keeper.pids)
    try:
        found = launch.run(
            _rank,
            run,
            lighthouse.store.port,
            ranks=ranks,
            timeout=run.patience,
            backend="gloo",
            watcher=keeper,
        ).values
        outcome.peak_bytes = [value[0] if value else 0 for value in found]
        outcome.bytes_sent = next((value[1] for value in found if value and value[1]), {})
    except KeyboardInterrupt:
        outcome.interrupted = True
    outcome.results = [StepResult(**record) for record in lighthouse.history.records]
    outcome.lost_tokens = tokens * len(outcome.results) - sum(result.tokens for result in outcome.results)
    return outcome


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Keeper:
    """Watches the ranks of a launch in the place of ``launch.watch``: a rank that fails does not end the others."""

    def __init__(self, lighthouse: Lighthouse, log: Log | None, say: Callable[[str], None]):
        self.lighthouse, self.domains, self.log, self.say = lighthouse, lighthouse.domains, log, say
        self.told = 0
        self.pids: dict[int, list[int]] = {}

    def __call__(self, processes: Any, stream: bool, interrupted: Callable[[], bool]) -> Ranks:
        """All ranks once the steps are done. However this is left, no process is."""
        self.processes, self.job = processes, processes.job
        printed = Stream(self.job)
        try:
            processes.start()
            while not self._done():
                processes.wait(_LOOK)
                if interrupted():
                    raise KeyboardInterrupt
                printed.show()
                self._look()
        except PlaybookError:
            self._refused()
            raise
        finally:
            processes.stop()
            printed.show(last=True)
        return results(self.job)[0]

    def _done(self) -> bool:
        """Whether the steps are done, and every rank of the last quorum has given its result, or can no more."""
        if not self.lighthouse.finished or self.lighthouse.quorum is None:
            return False
        ranks = [rank for replica in self.lighthouse.quorum.members for rank in self.domains.ranks(replica)]
        return all(rank in self.processes.exits for rank in ranks)

    def _look(self) -> None:
        lighthouse = self.lighthouse
        for rank, pid in self.job.pids().items():
            if pid not in self.pids.setdefault(rank, []):
                self.pids[rank].append(pid)
        for replica in list(lighthouse.alive):
            dead = [rank for rank in self.processes.exits if rank in self.domains.ranks(replica)]
            if dead and not lighthouse.finished:
                self._lose(replica, self._end(dead[0]))
        for replica in lighthouse.hung():
            self._lose(
                replica,
                f"nothing was heard of {names(self.domains.ranks(replica))} for {lighthouse.patience:.0f} s",
            )
        self._replace()
        for record in lighthouse.look():
            if self.log:
                self.log.step(record)
        self._tell()

    def _lose(self, replica: int, why: str) -> None:
        """A replica without one of its ranks computes nothing: the others of it go, too."""
        self._refused()
        self.processes.end(self.domains.ranks(replica))
        self.lighthouse.lost(replica, why)

    def _replace(self) -> None:
        """Start the successors of replicas that are gone."""
        for replica in set(range(self.domains.replicas)) - self.lighthouse.alive.keys():
            ranks = self.domains.ranks(replica)
            if self.lighthouse.finished or not all(rank in self.processes.exits for rank in ranks):
                continue
            for rank in ranks:
                del self.processes.exits[rank]
                for kind in ("pid", "value", "error", "stack"):
                    self.job.path(rank, kind).unlink(missing_ok=True)
            self.lighthouse.replaced(replica)
            self.processes.start(ranks)

    def _end(self, rank: int) -> str:
        status, errors = self.processes.exits[rank], self.job.errors()
        if status < 0:
            return f"rank {rank} was killed by signal {-status}"
        said = errors[rank]["summary"] if rank in errors else f"it ended with status {status}"
        return f"rank {rank} failed: {said}"

    def _refused(self) -> None:
        """What a rank refuses it would refuse again. Raises RankError."""
        for rank, error in self.job.errors().items():
            if error["summary"].startswith(_REFUSALS):
                raise RankError(f"rank {rank} failed: {error['summary']}", error["traceback"], rank)

    def _tell(self) -> None:
        for event in self.lighthouse.history.events[self.told :]:
            self.say(sentence(event, self.domains.replicas))
        self.told = len(self.lighthouse.history.events)


_REFUSALS = ("ConfigError", "LayoutError", "DataError")


def sentence(event: Event, replicas: int) -> str:
    """What is said of an event."""
    if event.kind == "lost":
        return f"step {event.step}: replica {event.replica} of {replicas} is lost ({event.why}); the others go on"
    return (
        f"step {event.step}: replica {event.replica} is back, with {event.bytes:,} bytes from replica {event.why} in "
        f"{event.seconds:.2f} s; steps without its samples: {event.missed}, {event.tokens:,} tokens"
    )


def _rank(run: Live, port: int) -> tuple[int, dict[str, int]]:
    """One rank: of its replica, whose process group is the default one, and through a manager of the quorum."""
    domains, rank = Domains(run.config.layout), int(os.environ["RANK"])
    replica, inside = domains.place(rank)
    patience = timedelta(seconds=run.patience)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=patience)
    generation = int(store.get(f"generation/{replica}"))
    dist.distributed_c10d.default_pg_timeout = patience  # of groups that are made later
    own = dist.PrefixStore(f"inside/{replica}/{generation}", store)
    dist.init_process_group(
        "gloo", store=own, rank=inside, world_size=domains.inside.world_size, timeout=patience
    )
    manager = Manager(store, domains, rank, generation, run.patience)
    mesh = Mesh(domains.inside) if domains.inside.world_size > 1 else None
    trainer = replica_trainer(run.shape, load_corpus(run.data), run.config, manager, mesh)
    costs = StepCosts(trainer)
    if run.watch:
        run.watch(trainer)
    store.add(f"ready/{replica}/{generation}", 1)
    trainer.run()
    dist.barrier()  # nobody hangs up on a rank of its replica that is still talking
    dist.destroy_process_group()
    return costs.peak_bytes, costs.bytes_sent
