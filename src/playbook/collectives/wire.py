"""Messages on a TCP connection: framed, sent and received a part at a time, on sockets that never block.

TCP carries a stream of bytes and knows no messages. Each one is a header (mark, step, length) and its payload;
the system takes or gives as much of it at a time as it has room or data for, and what is left waits for the next
turn. No torch.
"""

from __future__ import annotations

import socket
import struct

from playbook.collectives.plans import Message

HEADER = struct.Struct("!4sIQ")  # DATA, step, bytes of payload
DATA = b"DATA"
#: The system is offered no more than this at once; other connections get their turn in between.
_AT_ONCE = 1 << 20


class PeerError(ConnectionError):
    """A rank that is gone, silent, or out of step; ``peer`` is the rank it is about.

    ``reason`` is what the rank that noticed said: the sentence itself, where that is this rank. ``silent``: nothing is
    known but that it was waited for in vain.
    """

    def __init__(self, sentence: str, peer: int, *, reason: str | None = None, silent: bool = False):
        super().__init__(sentence)
        self.peer, self.reason, self.silent = peer, reason or sentence, silent


class Outgoing:
    """A message on its way out to ``peer``."""

    def __init__(self, message: Message, payload: memoryview):
        self.message, self.peer = message, message.target
        self.sent = 0
        self._header = memoryview(HEADER.pack(DATA, message.step, len(payload)))
        self._payload = payload
        self.total = HEADER.size + len(payload)

    @property
    def done(self) -> bool:
        return self.sent == self.total

    def advance(self, connection: socket.socket) -> bool:
        """Send as much as the system takes now; returns whether it took any. Raises PeerError when the peer is gone."""
        moved = False
        while not self.done:
            if self.sent < HEADER.size:
                # The header and the start of the payload in one packet.
                parts = [self._header[self.sent :], self._payload[:_AT_ONCE]]
            else:
                parts = [self._payload[self.sent - HEADER.size :][:_AT_ONCE]]
            try:
                self.sent += connection.sendmsg(parts)
            except BlockingIOError:
                return moved
            except OSError as error:
                raise self._gone(error) from error
            moved = True
        return moved

    @property
    def payload_bytes(self) -> int:
        """Bytes of payload sent so far."""
        return max(0, self.sent - HEADER.size)

    def _gone(self, error: OSError) -> PeerError:
        reason = (error.strerror or str(error)).lower()
        return PeerError(f"rank {self.peer} is gone ({reason}): {self.progress()}", self.peer)

    def progress(self) -> str:
        """How far this message has come, in words."""
        return (
            f"{self.payload_bytes} of {len(self._payload)} bytes of step {self.message.step} were sent to it"
        )


class Incoming:
    """A message that is expected from ``peer``; its payload goes into ``payload``."""

    def __init__(self, message: Message, payload: memoryview):
        self.message, self.peer = message, message.source
        self.received = 0
        self._header = memoryview(bytearray(HEADER.size))
        self._payload = payload
        self.total = HEADER.size + len(payload)

    @property
    def done(self) -> bool:
        return self.received == self.total

    def advance(self, connection: socket.socket) -> bool:
        """Take what has arrived; returns whether anything had. Raises PeerError when the peer is gone or out of step."""
        moved = False
        while not self.done:
            in_header = self.received < HEADER.size
            into = (
                self._header[self.received :]
                if in_header
                else self._payload[self.received - HEADER.size :][:_AT_ONCE]
            )
            try:
                count = connection.recv_into(into)
            except BlockingIOError:
                return moved
            except OSError as error:
                raise self._gone((error.strerror or str(error)).lower()) from error
            if count == 0:
                raise self._gone("it closed the connection")
            self.received, moved = self.received + count, True
            if in_header and self.received == HEADER.size:
                self._check_header()
        return moved

    def _check_header(self) -> None:
        kind, step, size = HEADER.unpack(self._header)
        if (kind, step, size) != (DATA, self.message.step, len(self._payload)):
            raise PeerError(
                f"rank {self.peer} is out of step: it sent {size} bytes of step {step}, expected {len(self._payload)} "
                f"bytes of step {self.message.step}; all ranks must call the same collectives with the same sizes",
                self.peer,
            )

    @property
    def payload_bytes(self) -> int:
        """Bytes of payload received so far."""
        return max(0, self.received - HEADER.size)

    def _gone(self, reason: str) -> PeerError:
        return PeerError(f"rank {self.peer} is gone ({reason}): {self.progress()}", self.peer)

    def progress(self) -> str:
        """How far this message has come, in words."""
        return (
            f"{self.payload_bytes} of {len(self._payload)} bytes of step {self.message.step} had come from it"
        )
