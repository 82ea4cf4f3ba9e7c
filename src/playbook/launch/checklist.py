"""A cluster looked over before a long run: what its ranks have, how fast each computes, how fast they talk.

Ranks go through the parts of the list together. Each says when it begins and when it has done its own part of one, in the
store of the process group; where the first rank waits too long, it can therefore name who keeps the others waiting.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from playbook.launch.facts import by_node, facts_of
from playbook.launch.group import World, process_group
from playbook.launch.ranks import names
from playbook.launch.verdicts import judge

#: Seconds beyond the time-out after which a collective itself gives up.
_LATER = 60.0
_ROUNDS = 15  # of pairs: among more than 16 nodes each meets so many others
_REPEATS = 7
_MiB = 2**20


def examine_cluster(
    folder: str = ".",
    timeout: float = 60.0,
    work: Callable[[World], None] | None = None,
    now: Callable[[World], float] = lambda world: time.time(),
    mib: int | None = None,
) -> dict[str, Any]:
    """Go through the list as one of torchrun's ranks, or alone. Every rank returns the same ``{"checks": …}``.

    ``folder`` should be one that all nodes share. ``timeout`` is the seconds for each part of the list: who then keeps
    the others waiting is named on stderr, and the first rank ends with status 1. ``work`` is what is timed on each rank
    (a matrix product), ``now`` its clock, ``mib`` the size of what is reduced (256 MiB on GPUs, else 8).
    """
    with process_group(timeout + _LATER) as world, _Together(world, timeout) as together:
        facts = together.all("what ranks have", lambda: facts_of(world))
        nodes = by_node(facts)
        measured: dict[str, Any] = {
            "facts": facts,
            "shared": together.all("the shared folder", lambda: _sees(world, Path(folder), together)),
            "clocks": _clocks(world, together, nodes, now),
            "seconds": together.all("computing", lambda: _seconds(world, work or _product(world))),
        }
        size = (mib or (256 if world.device.type == "cuda" else 8)) * _MiB
        everyone = list(range(world.size))
        speeds = together.all("all-reduce", lambda: _bus_bandwidth(world, everyone, None, size))
        measured["all_reduce"] = speeds[0]
        teams = nodes if len(nodes) > 1 else [[rank] for rank in everyone]
        measured["pairs"] = _pairs(world, together, teams, size)
        return judge(measured, nodes, teams)


class _Together:
    """Parts of the list, gone through by all ranks; the first rank watches how far each is."""

    def __init__(self, world: World, timeout: float):
        self.world, self.timeout = world, timeout
        # What is said about measurements travels beside what is measured.
        self.control = dist.new_group(backend="gloo") if world.backend == "nccl" else None
        self.part, self.begun = "", time.monotonic()
        self.store = dist.distributed_c10d._get_default_store()
        self.ended = threading.Event()
        # A connection of its own: this one may be waiting for an answer.
        own = self.store.clone()  # type: ignore[attr-defined]
        self.watcher = threading.Thread(target=self._watch, args=(own,), daemon=True)

    def __enter__(self) -> _Together:
        if self.world.rank == 0:
            self.watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()

    def all(self, part: str, act: Callable[[], Any]) -> list[Any]:
        """What ``act`` gives on each rank."""
        self.begun, self.part = time.monotonic(), part
        self.store.set(f"checklist/{part}/{self.world.rank}/begun", "1")
        value = act()
        self.store.set(f"checklist/{part}/{self.world.rank}/done", "1")
        return self.gather(value)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on all."""
        values: list[Any] = [None] * self.world.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def _watch(self, store: Any) -> None:
        while not self.ended.wait(0.1):
            part, begun = self.part, self.begun
            if not part or time.monotonic() - begun < self.timeout:
                continue
            late = {
                word: [r for r in range(self.world.size) if not store.check([f"checklist/{part}/{r}/{word}"])]
                for word in ("begun", "done")
            }
            word = "begun" if late["begun"] else "done"
            if late[word] and part == self.part:
                whom = f"{names(late[word])} {'has' if len(late[word]) == 1 else 'have'}"
                print(
                    f"playbook doctor: {whom} not {word} with {part!r} after {self.timeout:.0f} s, and the others wait",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)


def _sees(world: World, folder: Path, together: _Together) -> bool | str:
    """Whether this rank reads what the first has written, or why that could not write."""
    word, problem = uuid.uuid4().hex, None
    path = folder / f".playbook-doctor-{word}"
    if world.rank == 0:
        try:
            path.write_text(word)
        except OSError as error:
            problem = f"{folder} cannot be written ({error.strerror})"
    path, word, problem = together.gather((path, word, problem))[0]
    end, seen = time.monotonic() + 5.0, False
    while (
        not (problem or seen) and time.monotonic() < end
    ):  # network file systems show new files a little later
        seen = path.exists() and path.read_text() == word
        time.sleep(0.0 if seen else 0.1)
    together.gather(None)
    if world.rank == 0:
        path.unlink(missing_ok=True)
    return problem or seen


def _clocks(
    world: World, together: _Together, nodes: list[list[int]], now: Callable[[World], float]
) -> list[tuple[float, float] | None]:
    """Seconds by which a clock is ahead of the first rank's, and within how many: of the first rank of each node."""
    found: list[tuple[float, float] | None] = [None] * world.size
    for other in [ranks[0] for ranks in nodes[1:]] if len(nodes) > 1 else range(1, world.size):
        answers = together.all(f"the clock of rank {other}", partial(_ask, world, together, other, now))
        found[other] = answers[0]
    return found


def _ask(
    world: World, together: _Together, other: int, now: Callable[[World], float]
) -> tuple[float, float] | None:
    """The first rank asks another one for its time, which lies between question and answer (Cristian 1989).

    The shortest of many round trips counts.
    """
    if world.rank not in (0, other):
        return None
    stamp, trips = torch.zeros(1, dtype=torch.float64), []
    for _ in range(20):
        if world.rank == other:
            dist.recv(stamp, 0, group=together.control)
            stamp[0] = now(world)
            dist.send(stamp, 0, group=together.control)
        else:
            asked = now(world)
            dist.send(stamp, other, group=together.control)
            dist.recv(stamp, other, group=together.control)
            answered = now(world)
            trips.append((answered - asked, stamp.item() - (asked + answered) / 2))
    if world.rank == other:
        return None
    trip, offset = min(trips)
    return offset, trip / 2


def _product(world: World) -> Callable[[World], None]:
    n = 8192 if world.device.type == "cuda" else 384
    kind = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    a = torch.randn(n, n, device=world.device, dtype=kind)

    def work(world: World) -> None:
        for _ in range(10):
            a @ a

    return work


def _seconds(world: World, work: Callable[[World], None]) -> float:
    """The median time of the work: of the GPU, or of this process's own time on CPU cores, which others may share."""
    clock = time.perf_counter if world.device.type == "cuda" else time.process_time
    times = []
    for _ in range(_REPEATS + 2):
        _wait_for(world)
        begin = clock()
        work(world)
        _wait_for(world)
        times.append(clock() - begin)
    return statistics.median(times[2:])  # the first ones warm up


def _bus_bandwidth(world: World, ranks: list[int], group: Any, size: int) -> float | None:
    """Bytes per second that each rank's link carries in a ring all-reduce of ``size`` bytes: 2(n − 1)/n · size/t."""
    n = len(ranks)
    if n == 1:
        return None
    x, times = torch.zeros(size // 4, device=world.device), []
    for _ in range(_REPEATS + 2):
        dist.all_reduce(x[:1], group=group)
        _wait_for(world)
        begin = time.perf_counter()
        dist.all_reduce(x, group=group)
        _wait_for(world)
        times.append(time.perf_counter() - begin)
    return 2 * (n - 1) / n * size / statistics.median(times[2:])


def _pairs(
    world: World, together: _Together, teams: list[list[int]], size: int
) -> dict[tuple[int, int], float]:
    """Bandwidth of all-reduces among the ranks of two teams, by team.

    Teams are paired as in a round-robin tournament, all pairs of a round at once.
    """

    def meet(pairs: list[tuple[int, int]]) -> float | None:
        found = None
        members = [sorted(teams[a] + teams[b]) for a, b in pairs]
        # All ranks make all groups: NCCL splits them from the group of all, in which every rank has to take part.
        groups = [dist.new_group(ranks) for ranks in members]
        for ranks, group in zip(members, groups, strict=True):
            if world.rank in ranks:
                found = _bus_bandwidth(world, ranks, group, size)
                dist.destroy_process_group(group)
        return found

    found = {}
    for number, pairs in enumerate(rounds(len(teams))[:_ROUNDS]):
        values = together.all(f"all-reduce of pairs, round {number}", partial(meet, pairs))
        found.update({(a, b): values[teams[a][0]] for a, b in pairs})
    return found


def rounds(teams: int) -> list[list[tuple[int, int]]]:
    """A round-robin tournament: every two teams meet once, and in a round each has at most one opponent."""
    places: list[int | None] = [*range(teams), *([None] if teams % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        pairs = zip(places, reversed(places[len(places) // 2 :]), strict=False)
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def _wait_for(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
