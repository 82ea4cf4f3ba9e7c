"""A watched ring computes what a ring computes, and tells of each message when it was asked for and when it came."""

from __future__ import annotations

import torch
import torch.distributed as dist

from playbook import launch
from playbook.parallel.context import RankTokens, ring_forward
from playbook.parallel.mesh import Ring
from playbook_book.instruments.ring_trace import Interval, WatchedRing, early

RANKS = 3


def watched(overlap: bool) -> tuple[bool, list[Interval]]:
    torch.set_num_threads(1)
    with launch.process_group() as world:
        torch.manual_seed(world.rank)
        q, k, v = torch.randn(3, 1, 2, 8, 4)
        placement = RankTokens("zigzag", 8 * RANKS, RANKS)
        ring = WatchedRing(dist.group.WORLD, overlap)
        ring.begin()
        out, _ = ring_forward(q, k, v, ring, placement)
        plain, _ = ring_forward(q, k, v, Ring(dist.group.WORLD), placement)
        return torch.equal(out, plain), ring.spans


def test_messages_are_seen(ranks):
    for same, spans in ranks(watched, True, ranks=RANKS).values:
        messages = [s for s in spans if s.kind == "message"]
        waits = [s for s in spans if s.kind == "waiting"]
        assert same
        assert len(messages) == len(waits) == RANKS - 1
        assert all(s.start <= s.end for s in spans)
        for message, wait in zip(messages, waits, strict=True):
            assert message.start < wait.start, "asked for before anybody waits"


def test_early_is_there_before_anybody_waits():
    spans = [
        Interval("message", 0.0, 1.0),
        Interval("waiting", 2.0, 2.0),
        Interval("message", 3.0, 6.0),
        Interval("waiting", 4.0, 6.0),
    ]
    assert early(spans) == 1
    assert early([]) == 0
