"""How ranks find each other: from one address that all know to two connections between any two.

Everything has a time limit, and who is missing when it is over is named. No torch.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator

from playbook._checks import check_int
from playbook.collectives import CollectiveError
from playbook.launch.processes import free_port as free_port
from playbook_book.alarms import PeerError
from playbook_book.sockets import SocketGroup

Address = tuple[str, int]
_GREETING = b"playbook"
_HELLO = "!8sIIBH"  # greeting, size, rank, what the connection is for, where the rank listens
#: What a connection is for: messages; the news of a rank that was lost; to ask where the others listen.
_MESSAGES, _ALARM, _ASK = range(3)
#: Seconds that a connection has to say who it is; what says nothing, or something else, is none of ours.
_PATIENCE = 5.0


def connect(
    rank: int, size: int, *, port: int, host: str = "127.0.0.1", timeout: float = 30.0
) -> SocketGroup:
    """Meet at ``host:port``, where rank 0 listens, and return the group once every rank is connected to every other.

    Rank 0 learns from each rank where it listens, and sends the list to all; then each connects to those below it, and
    is reached by those above. Raises :class:`PeerError` naming a rank that has not come within ``timeout`` seconds,
    which is also the group's, and :class:`CollectiveError` where rank 0 cannot listen at the port.
    """
    check_int("size", size, CollectiveError)
    if check_int("rank", rank, CollectiveError, least=0) >= size:
        raise CollectiveError(f"rank must be 0 to {size - 1}, got {rank}")
    deadline = time.monotonic() + timeout
    messages, alarms = dict[int, socket.socket](), dict[int, socket.socket]()
    with contextlib.ExitStack() as meeting, contextlib.ExitStack() as opened:
        if rank == 0:
            listener = meeting.enter_context(_listen((host, port)))
            hosts = _tell((host, port), listener, size, deadline)
        else:
            question = meeting.enter_context(_reach((host, port), rank, 0, deadline))
            listener = meeting.enter_context(_listen((question.getsockname()[0], 0)))
            hosts = _ask(question, rank, size, listener.getsockname()[1], deadline)
        for peer in range(rank):
            for kind, link in ((_MESSAGES, messages), (_ALARM, alarms)):
                hello = struct.pack(_HELLO, _GREETING, size, rank, kind, 0)
                link[peer] = opened.enter_context(_reach(hosts[peer], rank, peer, deadline, hello))
        for peer, kind, _, connection in _accept(listener, rank, size, [_MESSAGES, _ALARM], deadline):
            (messages if kind == _MESSAGES else alarms)[peer] = opened.enter_context(connection)
        opened.pop_all()
    return SocketGroup(rank, messages, alarms, timeout)


def _tell(mine: Address, listener: socket.socket, size: int, deadline: float) -> list[Address]:
    """Where all ranks listen, once they have come to rank 0, which tells them as well."""
    with contextlib.ExitStack() as opened:
        asking = {}
        for peer, _, address, connection in _accept(listener, 0, size, [_ASK], deadline):
            asking[peer] = address, opened.enter_context(connection)
        hosts = [mine, *(asking[peer][0] for peer in range(1, size))]
        for _, connection in asking.values():
            with contextlib.suppress(OSError):  # a rank that has left meanwhile will be missed
                connection.sendall(json.dumps(hosts).encode())
    return hosts


def _ask(question: socket.socket, rank: int, size: int, port: int, deadline: float) -> list[Address]:
    """Where all ranks listen, as rank 0 says; this one does at ``port``."""
    try:
        question.sendall(struct.pack(_HELLO, _GREETING, size, rank, _ASK, port))
        return [(host, port) for host, port in json.loads(_receive(question, 1 << 20, deadline))]
    except (OSError, ValueError) as error:
        raise PeerError("rank 0 did not say where the other ranks are", 0) from error


def _listen(address: Address) -> socket.socket:
    try:
        return socket.create_server(address, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CollectiveError(f"cannot listen at {address[0]}:{address[1]} ({reason})") from error


def _reach(address: Address, rank: int, peer: int, deadline: float, hello: bytes = b"") -> socket.socket:
    """A connection to a rank that may not listen yet: try until the time is over."""
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(0.05, deadline - time.monotonic()))
            connection.sendall(hello)
            return connection
        except OSError as error:
            if time.monotonic() >= deadline:
                where = f"rank {peer} at {address[0]}:{address[1]}"
                raise PeerError(f"rank {rank} cannot reach {where}: {str(error).lower()}", peer) from error
            time.sleep(0.02)


def _accept(
    listener: socket.socket, rank: int, size: int, kinds: list[int], deadline: float
) -> Iterator[tuple[int, int, Address, socket.socket]]:
    """A connection of each kind from every higher rank: the rank, the kind, where the rank listens, the connection.

    Whatever else knocks is shown the door.
    """
    missing = {(peer, kind) for peer in range(rank + 1, size) for kind in kinds}
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            late = sorted({peer for peer, _ in missing})
            names = ", ".join(f"rank {peer}" for peer in late)
            raise PeerError(f"rank {rank} waited for {names} to join, in vain", late[0])
        listener.settimeout(left)
        try:
            connection, (host, *_) = listener.accept()
        except TimeoutError:
            continue
        hello = _receive(connection, struct.calcsize(_HELLO), min(deadline, time.monotonic() + _PATIENCE))
        greeting, theirs, peer, kind, port = struct.unpack(_HELLO, hello.ljust(struct.calcsize(_HELLO)))
        if (greeting, theirs) == (_GREETING, size) and (peer, kind) in missing:
            missing.remove((peer, kind))
            yield peer, kind, (host, port), connection
        else:
            connection.close()


def _receive(connection: socket.socket, most: int, deadline: float) -> bytes:
    """So many bytes; fewer where the other side closes first or the time is over."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < most and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            part = connection.recv(most - len(data))
            if not part:
                break
            data += part
    return data
