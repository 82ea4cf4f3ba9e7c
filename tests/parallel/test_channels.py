"""Channels under NCCL's rule for a first message, which no CPU has: the order in which they call it, walked through.

NCCL connects two ranks when the first send and the first receive between them meet, and until then neither host goes on.
What each rank calls is written down by the real `Channel`, on a transport that only notes the calls.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from playbook.parallel import channels
from playbook.parallel.channels import Channel
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import NAMES, make
from playbook.schedules.messages import Messages, message, receiver


class Call(NamedTuple):
    """A send or a receive begins, or a receive is waited for: the ``number``-th of ``direction``, a (source, target)."""

    what: str
    direction: tuple[int, int]
    number: int


class Notes:
    """``torch.distributed`` as one rank sees it: notes calls, and lets every message arrive at once."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: Counter[tuple[str, tuple[int, int]]] = Counter()

    def isend(self, tensor: torch.Tensor, peer: int, group: tuple[int, int]) -> SimpleNamespace:
        self._note("send", group)
        return SimpleNamespace(wait=lambda: None)  # under NCCL only the device waits

    def irecv(self, tensor: torch.Tensor, peer: int, group: tuple[int, int]) -> SimpleNamespace:
        number = self._note("receive", group)
        return SimpleNamespace(wait=lambda: self.calls.append(Call("wait", group, number)))

    def send(self, tensor: torch.Tensor, peer: int, group: tuple[int, int]) -> None:
        self.isend(tensor, peer, group)

    def recv(self, tensor: torch.Tensor, peer: int, group: tuple[int, int]) -> None:
        self.irecv(tensor, peer, group).wait()
        if tensor.dtype == torch.int64:  # a header: fp32, one dim, of one element
            tensor[1:3] = 1

    def _note(self, what: str, group: tuple[int, int]) -> int:
        number = self.counts[what, group]
        self.counts[what, group] += 1
        self.calls.append(Call(what, group, number))
        return number


def calls_of(schedule: Schedule, rank: int, connected: bool, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What a rank calls for two steps, as `Pipeline.run` goes through them, after connecting its channels or not."""
    notes = Notes()
    monkeypatch.setattr(channels, "dist", notes)
    hops = {frozenset(hop) for way in schedule.placement for hop in pairwise(way)}
    opened = {}
    for pair in sorted(sorted(hop) for hop in hops if len(hop) == 2):
        if rank in pair:
            peer = sum(pair) - rank
            opened[peer] = Channel(peer, (rank, peer), (peer, rank), torch.device("cpu"))  # type: ignore[arg-type]
            if connected:
                opened[peer].connect(first=rank == pair[0])
    for _ in range(2):
        for peer, channel in opened.items():
            channel.begin(Messages.of(schedule, peer, rank), [torch.Size((1, 1))] * schedule.microbatches)
        for action in schedule.ranks[rank]:
            for need in schedule.needs(action):
                source = schedule.rank_of(need.stage, need.microbatch)
                if source != rank:
                    opened[source].receive(message(need))
            target = receiver(schedule, action)
            if target not in (None, rank):
                opened[target].send(message(action), torch.zeros(1))
        for channel in opened.values():
            channel.finish()
    return notes.calls


def stuck(ranks: list[list[Call]]) -> dict[int, Call]:
    """Where ranks stand still for good, if a first send and its receive wait for one another; empty if all get through.

    A receive is waited for until its send has begun.
    """
    begun: set[Call] = set()
    at = [0] * len(ranks)
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(ranks):
            while at[rank] < len(calls) and goes_on(calls[at[rank]], begun):
                at[rank] += 1
                moved = True
    return {rank: calls[at[rank]] for rank, calls in enumerate(ranks) if at[rank] < len(calls)}


def goes_on(call: Call, begun: set[Call]) -> bool:
    """Does the host go on after this call, now? It has begun at any rate."""
    if call.what == "wait":
        return call._replace(what="send") in begun
    begun.add(call)
    other = "receive" if call.what == "send" else "send"
    return call.number > 0 or call._replace(what=other) in begun


CASES = [(name, ranks) for name in NAMES for ranks in (2, 4, 8)]


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_connected_channels_never_stand_still(name, ranks, monkeypatch):
    schedule = make(name, ranks, 2 * ranks, vpp=2 if name in ("interleaved", "breadth-first") else 1)
    assert stuck([calls_of(schedule, rank, True, monkeypatch) for rank in range(ranks)]) == {}


@pytest.mark.parametrize(
    ("name", "ranks"), [("dualpipe", 2), ("dualpipe", 4), ("dualpipe", 8), ("breadth-first", 4)]
)
def test_without_connecting_some_schedules_stand_still_at_a_first_send(name, ranks, monkeypatch):
    """The reason for connecting, and the sign that the walk can tell. In DualPipe both ends of a pair send first; breadth
    first, the first rank sends a gradient back to the last one, which waits for activations that were to follow."""
    schedule = make(name, ranks, 2 * ranks, vpp=2 if name == "breadth-first" else 1)
    found = stuck([calls_of(schedule, rank, False, monkeypatch) for rank in range(ranks)])
    assert len(found) == ranks
    assert any(call.what == "send" and call.number == 0 for call in found.values())


def test_a_straight_pipeline_passes_unconnected(monkeypatch):
    """A rank that only waits for its neighbour posts the receive that the neighbour's send needs."""
    for name in ("afab", "1f1b", "zb-h1"):
        schedule = make(name, 4, 8)
        assert stuck([calls_of(schedule, rank, False, monkeypatch) for rank in range(4)]) == {}
