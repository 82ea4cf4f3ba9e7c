"""Collectives from scratch: plans carried out over TCP connections, numpy arrays in, numpy arrays out. No torch.

    with connect(rank, size, port=29400) as group:
        all_reduce(gradients, group)

Both ends of a connection may be sending 64 MB to each other, more than the system buffers: a rank that first sent all
and then received all would wait for ever for a rank that does the same. So every step is a loop over all connections
that sends what can be sent and receives what has come, until both are done.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from types import TracebackType
from typing import Any

import numpy as np

from playbook.collectives.alarms import Alarms
from playbook.collectives.plans import CollectiveError, Message, Plan
from playbook.collectives.transport import Transcript, Transport
from playbook.collectives.wire import Incoming, Outgoing, PeerError

#: Seconds that a rank which gives up waits for what the rank that it has lost may still have to say.
_PATIENCE = 1.0
_REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class SocketGroup(Transport):
    """``size`` ranks, each with two TCP connections to every other, as ``rendezvous.connect`` makes them.

    ``connections`` carry the messages, ``lines`` nothing but the news of a rank that was lost (``alarms.py``).
    ``timeout`` is how many seconds a rank waits while nothing arrives and nothing can be sent. A peer that is gone,
    silent or out of step is a :class:`PeerError` that names it, on every rank that is in a collective or comes to one;
    the group is closed then.
    """

    def __init__(
        self,
        rank: int,
        connections: dict[int, socket.socket],
        lines: dict[int, socket.socket],
        timeout: float = 30.0,
    ):
        self.rank, self.size, self.timeout = rank, len(connections) + 1, timeout
        self._connections = connections
        self._alarms = Alarms(rank, lines)
        self._open = True
        for connection in connections.values():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def flat(self, data: np.ndarray) -> np.ndarray:
        if not data.flags.c_contiguous:
            raise CollectiveError(f"an array must be contiguous, got strides {data.strides}: pass a copy")
        return data.reshape(-1)

    def empty(self, like: np.ndarray | None, elements: int) -> np.ndarray:
        return np.empty(elements, dtype=np.uint8 if like is None else like.dtype)

    def itemsize(self, flat: np.ndarray) -> int:
        return flat.itemsize

    def divide(self, flat: np.ndarray, by: int) -> None:
        if not np.issubdtype(flat.dtype, np.floating):
            raise CollectiveError(f"op avg needs floating-point numbers, got {flat.dtype}")
        flat /= by

    def execute(self, plan: Plan, source: np.ndarray, target: np.ndarray, op: str) -> Transcript:
        if not self._open:
            raise CollectiveError(f"the group of rank {self.rank} is closed")
        transcript: Transcript = []
        for messages in plan.of_rank(self.rank):
            transcript += self._step(messages, source, target, op)
        return transcript

    def close(self) -> None:
        """Close all connections; ranks that still expect something from this one get a PeerError."""
        self._open = False
        for connection in self._connections.values():
            connection.close()
        self._alarms.close()

    def __enter__(self) -> SocketGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(
        self, messages: list[Message], source: np.ndarray, target: np.ndarray, op: str
    ) -> list[Message]:
        """All that this rank sends and receives at one step; contributions are added when all is sent."""
        outgoing = [Outgoing(m, _bytes(source[m.start : m.stop])) for m in messages if m.source == self.rank]
        incoming, contributions = [], []
        for m in messages:
            if m.target == self.rank:
                landing = target[m.into : m.into + m.stop - m.start]
                arriving = np.empty_like(landing) if m.reduce else landing
                incoming.append(Incoming(m, _bytes(arriving)))
                if m.reduce:
                    contributions.append((landing, arriving))
        try:
            self._exchange(outgoing, incoming)
        except PeerError as error:
            raise self._give_up(error) from error.__cause__
        for landing, arriving in contributions:
            _REDUCE[op](landing, arriving, out=landing)
        counted = {o.message: o.payload_bytes for o in outgoing} | {
            i.message: i.payload_bytes for i in incoming
        }
        return [m._replace(bytes=counted[m]) for m in messages]

    def _exchange(self, outgoing: list[Outgoing], incoming: list[Incoming]) -> None:
        """Send and receive all of these at once, those of one peer in turn."""
        queues: dict[tuple[int, int], deque[Any]] = {}
        for event, messages in ((selectors.EVENT_WRITE, outgoing), (selectors.EVENT_READ, incoming)):
            for message in messages:
                queues.setdefault((message.peer, event), deque()).append(message)
        quiet_since = time.monotonic()
        while queues:
            moved = [self._advance(key, queues) for key in list(queues)]
            if any(moved):
                quiet_since = time.monotonic()
            else:
                self._wait(queues, quiet_since)

    def _advance(self, key: tuple[int, int], queues: dict[tuple[int, int], deque[Any]]) -> bool:
        """Move on the first message of a queue; whether that did anything."""
        queue = queues[key]
        moved = queue[0].advance(self._connections[key[0]])
        if queue[0].done:
            queue.popleft()
            if not queue:
                del queues[key]
        return moved

    def _wait(self, queues: dict[tuple[int, int], deque[Any]], quiet_since: float) -> None:
        """Sleep until a connection is ready for what is queued; PeerError on bad news, and when it takes too long."""
        events: dict[int, int] = {}
        for peer, event in queues:
            events[peer] = events.get(peer, 0) | event
        with selectors.DefaultSelector() as selector:
            for peer, wanted in events.items():
                selector.register(self._connections[peer], wanted)
            self._alarms.watch(selector)
            left = quiet_since + self.timeout - time.monotonic()
            ready = selector.select(0.0 if self._alarms.words else max(0.0, left))
        self._alarms.hear()
        if ready and not self._alarms.words:
            return
        moved = [self._advance(key, queues) for key in list(queues)]  # what has arrived by now may say more
        if not queues or (any(moved) and not self._alarms.words):
            return
        raise self._alarms.news() or self._silent(queues, time.monotonic() - quiet_since)

    def _silent(self, queues: dict[tuple[int, int], deque[Any]], waited: float) -> PeerError:
        # A peer from which something is expected says more than one that takes nothing.
        peer, event = max(queues, key=lambda key: key[1] == selectors.EVENT_READ)
        progress = queues[peer, event][0].progress()
        reason = f"rank {self.rank} waited {round(waited, 1):g} s for rank {peer}: {progress}"
        rumours = self._alarms.rumours()
        return PeerError(f"{reason}; {rumours}" if rumours else reason, peer, reason=reason, silent=True)

    def _give_up(self, error: PeerError) -> PeerError:
        """Tell the others which rank was lost, close, and return the error about the rank that was lost first."""
        self._alarms.say(error)
        cause = self._alarms.cause(error, min(_PATIENCE, self.timeout))
        self.close()
        return cause


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(array.data).cast("B")
