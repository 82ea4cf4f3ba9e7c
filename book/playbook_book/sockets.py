"""Collectives from scratch: plans carried out over TCP connections, numpy arrays in, numpy arrays out. No torch.

    with connect(rank, size, port=29400) as group:
        all_reduce(gradients, group)

TCP carries a stream of bytes and knows no messages: each one is a header (step, length) and its payload. And both
ends of a connection may be sending 64 MB to each other, more than the system buffers: a rank that first sent all and
then received all would wait for ever for a rank that does the same. So every step is a loop over all messages that
sends what can be sent and receives what has come, until all are done.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from multiprocessing.connection import Connection

import numpy as np

from playbook.collectives import CollectiveError
from playbook_book.alarms import Alarms, PeerError
from playbook_book.collectives.plans import Message, Plan
from playbook_book.collectives.transport import Transcript, Transport

#: Step, bytes of payload. 16 bytes, since a payload that is not aligned takes longer to copy.
HEADER = "!QQ"
_HEADER_BYTES = struct.calcsize(HEADER)
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
        self._connections, self._alarms = connections, Alarms(rank, lines)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, messages: list[Message], source: np.ndarray, target: np.ndarray, op: str) -> Transcript:
        """All that this rank sends and receives at one step; contributions are added when all is sent."""
        transfers, contributions = [], []
        for m in messages:
            if m.source == self.rank:
                transfers.append(_Transfer(m, source[m.start : m.stop], sent=True))
                continue
            landing = target[m.into : m.into + m.stop - m.start]
            arriving = np.empty_like(landing) if m.reduce else landing
            transfers.append(_Transfer(m, arriving, sent=False))
            if m.reduce:
                contributions.append((landing, arriving))
        try:
            self._exchange(transfers)
        except PeerError as error:
            raise self._give_up(error) from error.__cause__
        for landing, arriving in contributions:
            _REDUCE[op](landing, arriving, out=landing)
        return [transfer.message._replace(bytes=transfer.payload_moved) for transfer in transfers]

    def _exchange(self, transfers: list[_Transfer]) -> None:
        """Send and receive all of these at once, those of one peer in turn; PeerError on bad news or after too long."""
        # What is sent goes first: a peer that is out of step learns it even if this rank gives up in the same pass.
        transfers = sorted(transfers, key=lambda transfer: not transfer.sent)
        quiet_since = time.monotonic()
        while transfers:
            moved, blocked = False, set[tuple[int, bool]]()
            for transfer in transfers:
                if (transfer.peer, transfer.sent) not in blocked:
                    moved |= transfer.advance(self._connections[transfer.peer])
                    if transfer.left:
                        blocked.add((transfer.peer, transfer.sent))
            transfers = [transfer for transfer in transfers if transfer.left]
            now = time.monotonic()
            if moved:
                quiet_since = now
            elif self._alarms.words or now >= quiet_since + self.timeout:
                raise self._alarms.news() or self._silent(transfers, now - quiet_since)
            else:
                readers: list[socket.socket | Connection] = list(self._alarms.open.values())
                readers += [self._connections[peer] for peer, sent in blocked if not sent]
                writers = [self._connections[peer] for peer, sent in blocked if sent]
                ready, _, _ = select.select(readers, writers, [], quiet_since + self.timeout - now)
                self._alarms.hear(ready)

    def _silent(self, waiting: list[_Transfer], waited: float) -> PeerError:
        """Who was waited for in vain, and all that others have said: perhaps that they waited for this rank."""
        # A peer from which something is expected says more than one that takes nothing.
        transfer = min(waiting, key=lambda transfer: transfer.sent)
        peer, progress = transfer.peer, transfer.progress()
        reason = f"rank {self.rank} waited {round(waited, 1):g} s for rank {peer}: {progress}"
        sentence = "; ".join([reason, *map(str, self._alarms.words.values())])
        return PeerError(sentence, peer, reason=reason, silent=True)

    def _give_up(self, error: PeerError) -> PeerError:
        """Tell the others which rank was lost, close, and return the error about the rank that was lost first."""
        self._alarms.say(error)
        cause = self._alarms.cause(error, min(_PATIENCE, self.timeout))
        self.close()
        return cause


class _Transfer:
    """A message to or from ``peer``; as much of it moves at a time as the system has room or data for."""

    def __init__(self, message: Message, array: np.ndarray, *, sent: bool):
        self.message, self.sent = message, sent
        self.peer = message.target if sent else message.source
        self._payload = memoryview(array.data).cast("B")
        self._header = memoryview(bytearray(struct.pack(HEADER, message.step, len(self._payload))))
        self._moved = 0

    @property
    def left(self) -> int:
        return _HEADER_BYTES + len(self._payload) - self._moved

    @property
    def payload_moved(self) -> int:
        return max(0, self._moved - _HEADER_BYTES)

    def advance(self, connection: socket.socket) -> bool:
        """Move what can be moved now; whether that was anything. PeerError when the peer is gone or out of step."""
        before = self._moved
        while self.left:
            # The header and the start of the payload in one packet.
            parts = [self._header[self._moved :], self._payload[self.payload_moved :]]
            try:
                count = connection.sendmsg(parts) if self.sent else connection.recvmsg_into(parts)[0]
            except BlockingIOError:
                break
            except OSError as error:
                raise self._gone((error.strerror or str(error)).lower()) from error
            if count == 0:
                raise self._gone("it closed the connection")
            self._moved += count
            if not self.sent and self._moved - count < _HEADER_BYTES <= self._moved:
                self._check_header()
        return self._moved > before

    def progress(self) -> str:
        """How far this message has come, in words."""
        how = "were sent to it" if self.sent else "had come from it"
        return f"{self.payload_moved} of {len(self._payload)} bytes of step {self.message.step} {how}"

    def _check_header(self) -> None:
        step, size = struct.unpack(HEADER, self._header)
        if (step, size) != (self.message.step, len(self._payload)):
            raise PeerError(
                f"rank {self.peer} is out of step: it sent {size} bytes of step {step}, expected {len(self._payload)} "
                f"bytes of step {self.message.step}; all ranks must call the same collectives with the same sizes",
                self.peer,
            )

    def _gone(self, reason: str) -> PeerError:
        return PeerError(f"rank {self.peer} is gone ({reason}): {self.progress()}", self.peer)
