"""Who takes part in the next step: the launcher's side of live recovery. As torchft's Lighthouse.

It hosts the store in which ranks meet, and knows which processes live, since it has started them. A quorum ends when a
replica is lost, at once, or when a new one is ready, after the step that is under way. Its *register* has the number of
steps that are committed, with a "!" once it has ended: who moves it first decides, the last voter of a step or this.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from playbook.errors import PlaybookError
from playbook.launch.ranks import names
from playbook.recovery.domains import Domains, Quorum
from playbook.recovery.manager import DISCARD, LEAVE

#: Seconds that a broken connection may be ahead of the news that a process has died.
GRACE = 0.3
#: How often in a row a replica may be lost before it has made a step, and a quorum end without one.
IN_A_ROW = 5


class ReplicasLost(PlaybookError):
    """No replica is left that has the weights, or none can be kept alive."""


@dataclass
class Event:
    """What happened to a replica: it was ``lost``, or is ``back``; before which ``step``."""

    kind: str
    replica: int
    step: int
    why: str = ""
    bytes: int = 0
    seconds: float = 0.0
    missed: int = 0
    tokens: int = 0


@dataclass
class History:
    """What came of a run. ``members`` and ``records`` have an entry for each committed step; ``discarded`` counts steps
    that were taken again."""

    records: list[dict[str, Any]] = field(default_factory=list)
    members: list[tuple[int, ...]] = field(default_factory=list)
    quorums: list[Quorum] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    discarded: int = 0


class Lighthouse:
    """Forms quorums of the replicas of ``domains`` until ``steps`` are committed, each of ``batch`` tokens if all are
    there."""

    def __init__(self, domains: Domains, steps: int, batch: int, patience: float):
        self.domains, self.steps, self.batch, self.patience = domains, steps, batch, patience
        limit = timedelta(seconds=patience)
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
        self.history = History()
        self.quorum: Quorum | None = None
        self.joined: dict[int, int] = {}  # its members, with their generations
        self.step = 0  # committed steps
        self.alive = dict.fromkeys(range(domains.replicas), 0)  # generations of those that are not lost
        self.generations, self.failures = dict(self.alive), dict.fromkeys(self.alive, 0)
        self.healed = set(self.alive)  # have the weights of the step: at first all, from the seed
        self.endings, self.asked, self.ended = 0, False, True
        self.broken = 0.0  # since when a rank says that it lost a peer
        self.moved = time.monotonic()
        for replica in self.alive:
            self.store.set(f"generation/{replica}", "0")

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    # ---- what the launcher tells

    def lost(self, replica: int, why: str) -> None:
        """A process of the replica has died. Raises ReplicasLost where no other can give its successor weights."""
        if self.alive.pop(replica, None) is None or self.finished:
            return
        self.failures[replica] += 1
        if self.failures[replica] > IN_A_ROW:
            raise ReplicasLost(
                f"replica {replica} was lost {IN_A_ROW + 1} times before it had made a step: {why}"
            )
        member = self.quorum is not None and replica in self.quorum.members
        self.moved = time.monotonic()
        if member:
            self._close()
        if self.quorum and not self.finished:
            self.history.events.append(Event("lost", replica, self.step, why))
        if self.quorum is None and not self.step:
            return  # nobody has begun: its successor has the weights of the seed as well
        self.healed.discard(replica)
        if not self.healed and not self.finished:
            raise ReplicasLost(
                f"all {self.domains.replicas} replicas with the weights of step {self.step} are lost, the last by "
                f"{why}: live recovery needs one of them; start again, with more replicas or from a checkpoint"
            )

    def replaced(self, replica: int) -> None:
        """The successors of its processes are about to start."""
        self.generations[replica] += 1
        self.alive[replica] = self.generations[replica]
        self.store.set(f"generation/{replica}", str(self.generations[replica]))

    # ---- the quorum

    def look(self) -> Iterator[dict[str, Any]]:
        """Take note of what ranks have done, and form the next quorum if it is time. Gives records of committed steps."""
        if self.quorum:
            self._read_register()
            yield from self._records()
        if self.finished:
            return
        ready = self._ready()
        if self.quorum is None:
            if len(ready) == self.domains.replicas:
                self._form(ready)
            return
        new = [replica for replica in ready if replica not in self.quorum.members or self._is_new(replica)]
        if not self.ended and new and not self.asked:
            self.asked = True
            self.store.set(f"next/{self.quorum.number}", "1")
        self._look_for_breaks()
        if self.ended:
            self._form(ready)

    def _is_new(self, replica: int) -> bool:
        return self.joined.get(replica) != self.alive.get(replica)

    def _ready(self) -> list[int]:
        """The replicas all of whose processes are there and have built their model."""
        inside = self.domains.inside.world_size
        keys = {r: f"ready/{r}/{generation}" for r, generation in sorted(self.alive.items())}
        return [
            r for r, key in keys.items() if self.store.check([key]) and int(self.store.get(key)) == inside
        ]

    def _form(self, ready: list[int]) -> None:
        """The next quorum: all that are ready, of whom those without weights get them from one that has them."""
        number = self.quorum.number + 1 if self.quorum else 0
        has, needs = [r for r in ready if r in self.healed], [r for r in ready if r not in self.healed]
        if not has:
            return  # what remains is not ready yet
        sources = {replica: has[i % len(has)] for i, replica in enumerate(needs)}
        quorum = Quorum(number, self.step, tuple(ready), sources)
        self.store.set(f"register/{number}", str(self.step))
        self.store.set(f"quorum/{number}", quorum.to_json())
        before = self.joined
        self.joined = {replica: self.alive[replica] for replica in ready}
        for replica, generation in self.joined.items():
            if before.get(replica) != generation:
                self.store.set(f"join/{replica}/{generation}", quorum.to_json())
        self.quorum, self.asked, self.ended, self.broken = quorum, False, False, 0.0
        self.history.quorums.append(quorum)
        self.moved = time.monotonic()

    def _close(self) -> None:
        """End the quorum now: the step that is under way is discarded, unless its last vote came first."""
        assert self.quorum is not None
        if self.ended:
            return
        register = f"register/{self.quorum.number}"
        now = self.store.get(register).decode()
        while not now.endswith("!"):
            now = self.store.compare_set(register, now, f"{now}!").decode()
        self._read_register()
        if not self.finished:
            self.history.discarded += 1
            self.store.compare_set(f"verdict/{self.quorum.number}/{self.step}", "", DISCARD)
        self.store.set(f"closed/{self.quorum.number}", "1")
        self.endings += 1
        if self.endings > 2 * IN_A_ROW:
            raise ReplicasLost(
                f"{self.endings} quorums in a row ended before step {self.step} was committed: {self._why()}"
            )

    def _read_register(self) -> None:
        assert self.quorum is not None
        number, text = self.quorum.number, self.store.get(f"register/{self.quorum.number}").decode()
        step = int(text.rstrip("!"))
        if text.endswith("!") and not self.ended:
            self.ended = True
            if step > self.quorum.step:  # who moved it may have died before it could say so
                self.store.compare_set(f"verdict/{number}/{step - 1}", "", LEAVE)
        if step > self.step:
            self.step, self.endings, self.moved = step, 0, time.monotonic()
            self.healed |= {r for r in self.quorum.members if self.alive.get(r) == self.joined[r]}
            self.failures.update(dict.fromkeys(self.quorum.members, 0))

    def _records(self) -> Iterator[dict[str, Any]]:
        """Of the steps that were committed since the last look; what was said for their sake is forgotten."""
        assert self.quorum is not None
        number, done = self.quorum.number, self.history.records
        while len(done) < self.step:
            step = len(done)
            record = json.loads(self.store.get(f"record/{number}/{step}"))
            done.append(record)
            self.history.members.append(self.quorum.members)
            if step == self.quorum.step:
                self._tell_of_those_that_came()
            for key in ("record", "votes"):
                self.store.delete_key(f"{key}/{number}/{step}")
            if step - 2 >= self.quorum.step:  # every rank of the quorum has read it: it has voted since
                self.store.delete_key(f"verdict/{number}/{step - 2}")
            yield record

    def _tell_of_those_that_came(self) -> None:
        assert self.quorum is not None
        each = self.batch // self.domains.replicas
        for replica in self.quorum.sources:
            keys = [
                f"healed/{self.quorum.number}/{replica}/{i}" for i in range(self.domains.inside.world_size)
            ]
            told = [self.store.get(key).decode().split() for key in keys]
            since = next(
                e.step for e in reversed(self.history.events) if (e.kind, e.replica) == ("lost", replica)
            )
            missed = sum(replica not in some for some in self.history.members[since : self.quorum.step])
            came = Event("back", replica, self.quorum.step, missed=missed, tokens=missed * each)
            came.bytes, came.seconds = sum(int(n) for n, _ in told), max(float(s) for _, s in told)
            came.why = str(self.quorum.sources[replica])
            self.history.events.append(came)

    # ---- what else can go wrong

    def _why(self) -> str:
        assert self.quorum is not None
        key = f"lost/{self.quorum.number}"
        return self.store.get(key).decode() if self.store.check([key]) else "no rank says why"

    def _look_for_breaks(self) -> None:
        """A connection has broken and nobody has died: the same replicas meet once more."""
        assert self.quorum is not None
        if self.ended or not self.store.check([f"lost/{self.quorum.number}"]):
            return
        self.broken = self.broken or time.monotonic()
        if time.monotonic() > self.broken + GRACE:
            self._close()

    def hung(self) -> list[int]:
        """The replicas that keep the others waiting, if nothing has moved for too long. Raises ReplicasLost if that is
        everybody, or nobody knows."""
        if time.monotonic() < self.moved + self.patience or self.finished:
            return []
        self.moved = time.monotonic()
        if self.quorum is None or self.ended:
            return [replica for replica in self.alive if replica not in self._ready()]
        keys = {replica: f"marks/{self.quorum.number}/{replica}" for replica in self.quorum.members}
        marks = {r: int(self.store.get(key)) if self.store.check([key]) else 0 for r, key in keys.items()}
        late = [replica for replica, count in marks.items() if count < max(marks.values())]
        if not late:
            ranks = names(rank for replica in marks for rank in self.domains.ranks(replica))
            raise ReplicasLost(
                f"step {self.step} has not ended after {self.patience:.0f} s on {ranks}, none ahead of others"
            )
        return late
