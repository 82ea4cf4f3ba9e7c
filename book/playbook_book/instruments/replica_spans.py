"""What ranks of a run with live recovery do when, on one clock: each writes a line for what it has done."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

#: Steps that survivors take alone, then wait for who comes back: their steps are faster than a process starts.
ALONE = 4


@dataclass(frozen=True)
class Deed:
    """What a process of ``rank`` did from ``start`` to ``end`` (seconds): "starts", "meets" others in a quorum, "heals",
    a "step" that was committed, a "discarded" one, or "dies"."""

    rank: int
    kind: str
    start: float
    end: float
    step: int


def watched(folder: str, victim: tuple[int, int] | None = None, step: int = -1) -> Any:
    """What `recovery.run.Live` calls in each rank: note what it does in ``folder``. The first process of the ``victim``
    (replica, number inside) dies of SIGKILL when it has the gradients of a ``step`` and has not voted."""
    return partial(_watch, folder, victim, step)


def deeds(folder: str) -> list[Deed]:
    """All that was noted, from the first start on."""
    lines = [line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.read_text().splitlines()]
    found = [Deed(**json.loads(line)) for line in lines]
    zero = min(deed.start for deed in found)
    return [Deed(d.rank, d.kind, d.start - zero, d.end - zero, d.step) for d in found]


def _watch(folder: str, victim: tuple[int, int] | None, step: int, trainer: Any) -> None:
    manager, rank = trainer.manager, int(os.environ["RANK"])
    begin, commit, began = manager.begin, manager.commit, [_born()]
    file = open(Path(folder, f"{rank}-{os.getpid()}.jsonl"), "w", buffering=1)  # noqa: SIM115 (open until the rank ends)

    def note(kind: str) -> None:
        now = time.time()
        deed = {"rank": rank, "kind": kind, "start": began[0], "end": now, "step": manager.step}
        file.write(json.dumps(deed) + "\n")
        began[0] = now

    def begins(trainer: Any) -> None:
        was = manager.open
        if manager.quorum is None:
            note("starts")
        begin(trainer)
        quorum, late = manager.quorum, time.time() + 30
        if len(quorum.members) < manager.domains.replicas and trainer.step_count == quorum.step + ALONE - 1:
            while not manager.store.check([f"next/{quorum.number}"]) and time.time() < late:
                time.sleep(0.005)
            began[0] = time.time()
        if not was:
            note("heals" if manager.replica in manager.quorum.sources else "meets")

    def commits(record: Any) -> bool:
        if (manager.replica, manager.inside) == victim and manager.step == step and manager.generation == 0:
            note("dies")
            os.kill(os.getpid(), signal.SIGKILL)
        done = commit(record)
        note("step" if done else "discarded")
        return done

    manager.begin, manager.commit = begins, commits


def _born() -> float:
    """When this process was forked, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
