"""One rank's view of the quorum: sums over its replicas, the vote on each step, and healing. As torchft's ``Manager``.

Nothing here raises when a peer is lost. The rest of the step is computed in vain, without a word to other replicas, so
that ranks inside a replica stay in step: half of them may have got a sum of which the other half saw the connection
break. Then all of them hear the same verdict. Two things make it one for all: a step is committed when *every* rank of
the quorum has voted for it, and it is committed or discarded by whoever first moves a register in the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.recovery import healing
from playbook.recovery.domains import Domains, Quorum

if TYPE_CHECKING:
    from playbook.training.trainer import Trainer

#: Seconds between two looks whether the quorum still stands, while this rank waits for another.
LOOK = 0.05
#: What a verdict can be: committed, and the quorum stays or ends; or not committed, and it ends.
STAY, LEAVE, DISCARD = "stay", "leave", "discard"


class QuorumLost(RuntimeError):
    """The quorum has ended while this rank waited for a peer."""


class Discarded(Exception):
    """A step was not committed: it is to be taken again, in the next quorum."""


class Manager:
    """Joins ``rank`` of a replica to the same ranks of the others in the quorum, through ``store``.

    ``generation`` counts the processes that this replica has had; a rank waits ``patience`` seconds for others.
    """

    def __init__(self, store: dist.Store, domains: Domains, rank: int, generation: int, patience: float):
        self.store, self.domains, self.generation = store, domains, generation
        self.replica, self.inside = domains.place(rank)
        self.patience = timedelta(seconds=patience)
        self.quorum: Quorum | None = None
        self.group: Any = None  # the ranks of this number in all replicas of the quorum
        self.open = False
        self.step = 0
        self.lost = ""  # why this step will not be committed

    # ---- a step

    def begin(self, trainer: Trainer) -> None:
        """Before a step: have a quorum, and the weights and the number of the step that it is at."""
        self.lost = ""
        if not self.open:
            known = (
                f"quorum/{self.quorum.number + 1}"
                if self.quorum
                else f"join/{self.replica}/{self.generation}"
            )
            self.quorum = Quorum.read(self.store.get(known))
            trainer.step_count, self.open = self.quorum.step, True
            self._connect()
            self._heal(trainer)
        self.step = trainer.step_count

    @property
    def members(self) -> tuple[int, ...]:
        assert self.quorum is not None
        return self.quorum.members

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """The sum over the replicas of the quorum, in place: the same bits on all of them."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        if len(self.members) > 1:
            self._try(lambda: self._wait(self.group.allreduce([tensor], options)))
        return tensor

    def commit(self, record: Callable[[], str]) -> bool:
        """Vote for the step, unless something went wrong in it, and hear whether it is committed."""
        at = f"{self._number}/{self.step}"
        if not self.lost:
            if self.inside == 0:
                self.store.set(f"record/{at}", record())
            if self.store.add(f"votes/{at}", 1) == len(self.members) * self.domains.inside.world_size:
                self._decide(at)
        verdict = self.store.get(f"verdict/{at}").decode()
        self.open = verdict == STAY
        if not self.open:
            self._hang_up()
        return verdict != DISCARD

    def _decide(self, at: str) -> None:
        """The last vote: move the register from this step to the next, unless the lighthouse was faster."""
        word = LEAVE if self.store.check([f"next/{self._number}"]) else STAY
        after = f"{self.step + 1}{'!' * (word == LEAVE)}"
        if self.store.compare_set(f"register/{self._number}", str(self.step), after).decode() == after:
            self.store.compare_set(f"verdict/{at}", "", word)

    @property
    def _number(self) -> int:
        assert self.quorum is not None
        return self.quorum.number

    # ---- peers

    def _connect(self) -> None:
        """Meet the same ranks of the other replicas. A collective of theirs, which a dead peer would hold up."""
        prefix = dist.PrefixStore(f"across/{self._number}/{self.inside}", self.store.clone())  # type: ignore[attr-defined]
        at, size = self.members.index(self.replica), len(self.members)
        if size > 1:
            connect = partial(dist.ProcessGroupGloo, prefix, at, size, self.patience)
            self.group = self._try(partial(self._aside, connect))

    def _heal(self, trainer: Trainer) -> None:
        """Send the state to those that come and have this replica for a source, or receive it."""
        assert self.quorum is not None
        for to, source in sorted(self.quorum.sources.items()):
            if source == self.replica:
                give = partial(healing.give, trainer, partial(self._carry, "send", to))
                self._try(partial(self._aside, give))
            elif to == self.replica:
                self._try(partial(self._aside, partial(self._take, trainer, source)))

    def _take(self, trainer: Trainer, source: int) -> None:
        start = time.perf_counter()
        count = healing.take(trainer, partial(self._carry, "recv", source))
        seconds = time.perf_counter() - start
        self.store.set(f"healed/{self._number}/{self.replica}/{self.inside}", f"{count} {seconds}")

    def _carry(self, verb: str, peer: int, piece: Tensor) -> None:
        getattr(self.group, verb)([piece], self.members.index(peer), 0).wait()

    def _aside(self, act: Callable[[], Any]) -> Any:
        """What ``act`` gives, done in a thread: gloo takes a short wait for a message for the end of the connection, and
        knows none for a meeting. As long as it goes on this one looks whether the quorum stands."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        while not wait([future], LOOK).done:
            self._look()
        return future.result()

    def _wait(self, work: Any) -> None:
        """Wait for a collective, or for the end of the quorum."""
        while not work.is_completed():
            with suppress(RuntimeError):  # it has not arrived yet, or never will
                work.wait(timedelta(seconds=LOOK))
                return
            self._look()
        work.wait()

    def _look(self) -> None:
        if self.store.check([f"closed/{self._number}"]):
            raise QuorumLost("the quorum has ended")

    def _try(self, act: Callable[[], Any]) -> Any:
        """Do it, unless this step is lost; should it fail, the step is. Marks tell the lighthouse how far ranks are."""
        if self.lost:
            return None
        self.store.add(f"marks/{self._number}/{self.replica}", 1)
        try:
            return act()
        except RuntimeError as error:
            self.lost = str(error) or type(error).__name__
            self._hang_up()
            if not isinstance(error, QuorumLost):
                self.store.set(f"lost/{self._number}", self.lost)
            return None

    def _hang_up(self) -> None:
        """Forget the group: its connections close with it, and peers that wait for this rank notice. gloo's ``abort``
        leaves them open; communicators of NCCL are to be aborted, since kernels that wait for a dead peer never end."""
        self.group = None


@torch.no_grad()
def add_up(tensors: list[Tensor], manager: Manager, most: int = healing.PIECE // 4) -> None:
    """Sum tensors over the replicas, in messages of at most ``most`` elements."""
    for lot in healing.pieces(tensors, most):
        vector = healing.together(lot)
        manager.all_reduce(vector)
        healing.apart(vector, lot)
