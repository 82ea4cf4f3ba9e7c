"""How ranks find each other: from one address that all know, or a list of them, to two connections between any two.

Everything has a time limit, and who is missing when it is over is named. No torch.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence

from playbook._checks import check_int
from playbook.collectives.plans import CollectiveError
from playbook.collectives.sockets import SocketGroup
from playbook.collectives.wire import PeerError

Address = tuple[str, int]
_HELLO = struct.Struct(
    "!8sIIHB"
)  # greeting, rank, size, port at which the rank listens, which connection this is
_GREETING = b"playbook"
_LENGTH = struct.Struct("!I")
#: The two connections between two ranks: for messages, and for the news of a rank that was lost.
_MESSAGES, _ALARM = range(2)
_KINDS = (_MESSAGES, _ALARM)
#: Seconds that a connection has to say who it is; what says nothing, or something else, is none of ours.
_PATIENCE = 5.0


def connect(
    rank: int, size: int, *, port: int, host: str = "127.0.0.1", timeout: float = 30.0
) -> SocketGroup:
    """Meet at ``host:port``, where rank 0 listens, and return the group once every rank is connected to every other.

    Rank 0 learns from each rank where it listens, and sends the list to all. Raises :class:`PeerError` naming a rank
    that has not come within ``timeout`` seconds, which is also the group's.
    """
    _check(rank, size)
    deadline = time.monotonic() + timeout
    if rank == 0:
        with _listen((host, port)) as listener:
            others = _accept(listener, 0, size, range(1, size), deadline)
        addresses = [(host, port), *(others[peer][1] for peer in range(1, size))]
        for connections, _ in others.values():
            _send_addresses(connections[_MESSAGES], addresses)
        return _group(0, {peer: connections for peer, (connections, _) in others.items()}, timeout)
    first = _reach((host, port), rank, 0, deadline)
    with _listen((first.getsockname()[0], 0)) as listener:
        _greet(first, rank, size, _MESSAGES, port=listener.getsockname()[1])
        second = _call((host, port), rank, 0, size, _ALARM, deadline)
        addresses = _receive_addresses(first, deadline)
        return _mesh(rank, addresses, listener, {0: [first, second]}, deadline, timeout)


def connect_hosts(rank: int, hosts: Sequence[Address], *, timeout: float = 30.0) -> SocketGroup:
    """The group of the ranks that listen at ``hosts``, rank r at the r-th (host, port): no rank is special.

    Raises :class:`PeerError` naming a rank that cannot be reached, or has not come, within ``timeout`` seconds.
    """
    _check(rank, len(hosts))
    with _listen(hosts[rank]) as listener:
        return _mesh(rank, list(hosts), listener, {}, time.monotonic() + timeout, timeout)


def free_port(host: str = "127.0.0.1") -> int:
    """A port at which nothing listens just now."""
    with _listen((host, 0)) as listener:
        return listener.getsockname()[1]


def _check(rank: int, size: int) -> None:
    check_int("size", size, CollectiveError)
    if check_int("rank", rank, CollectiveError, least=0) >= size:
        raise CollectiveError(f"rank must be 0 to {size - 1}, got {rank}")


def _mesh(
    rank: int,
    addresses: list[Address],
    listener: socket.socket,
    known: dict[int, list[socket.socket]],
    deadline: float,
    timeout: float,
) -> SocketGroup:
    """Connect to every lower rank, be reached by every higher one."""
    size, connections = len(addresses), dict(known)
    for peer in range(rank):
        if peer not in connections:
            connections[peer] = [_call(addresses[peer], rank, peer, size, kind, deadline) for kind in _KINDS]
    others = _accept(listener, rank, size, range(rank + 1, size), deadline)
    return _group(rank, connections | {peer: both for peer, (both, _) in others.items()}, timeout)


def _group(rank: int, connections: dict[int, list[socket.socket]], timeout: float) -> SocketGroup:
    messages, alarms = ({peer: both[kind] for peer, both in connections.items()} for kind in _KINDS)
    return SocketGroup(rank, messages, alarms, timeout)


def _listen(address: Address) -> socket.socket:
    try:
        return socket.create_server(address, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CollectiveError(f"cannot listen at {address[0]}:{address[1]} ({reason})") from error


def _reach(address: Address, rank: int, peer: int, deadline: float) -> socket.socket:
    """A connection to a rank that may not listen yet: try until the time is over."""
    while True:
        try:
            return socket.create_connection(address, timeout=max(0.05, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() >= deadline:
                where = f"rank {peer} at {address[0]}:{address[1]}"
                raise PeerError(f"rank {rank} cannot reach {where}: {str(error).lower()}", peer) from error
            time.sleep(0.02)


def _call(address: Address, rank: int, peer: int, size: int, kind: int, deadline: float) -> socket.socket:
    """A connection of one kind to a rank."""
    connection = _reach(address, rank, peer, deadline)
    _greet(connection, rank, size, kind)
    return connection


def _accept(
    listener: socket.socket, rank: int, size: int, expected: range, deadline: float
) -> dict[int, tuple[list[socket.socket], Address]]:
    """The connections of each expected rank, and where it listens. Whatever else knocks is shown the door."""
    arrived: dict[tuple[int, int], tuple[socket.socket, Address]] = {}
    while len(arrived) < len(expected) * len(_KINDS):
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection, (host, *_) = listener.accept()
        except TimeoutError:
            missing = [peer for peer in expected if any((peer, kind) not in arrived for kind in _KINDS)]
            names = ", ".join(f"rank {peer}" for peer in missing)
            raise PeerError(f"rank {rank} waited for {names} to join, in vain", missing[0]) from None
        peer, kind, port = _introduction(connection, size)
        if peer in expected and kind in _KINDS and (peer, kind) not in arrived:
            arrived[peer, kind] = connection, (host, port)
        else:
            connection.close()
    return {
        peer: ([arrived[peer, kind][0] for kind in _KINDS], arrived[peer, _MESSAGES][1]) for peer in expected
    }


def _greet(connection: socket.socket, rank: int, size: int, kind: int, port: int = 0) -> None:
    connection.sendall(_HELLO.pack(_GREETING, rank, size, port, kind))


def _introduction(connection: socket.socket, size: int) -> tuple[int, int, int]:
    """Rank of who has connected, kind of the connection, and port at which it listens; rank −1 for a stranger."""
    connection.settimeout(_PATIENCE)
    try:
        greeting, rank, theirs, port, kind = _HELLO.unpack(_receive(connection, _HELLO.size))
    except OSError:
        return -1, 0, 0
    return (rank, kind, port) if (greeting, theirs) == (_GREETING, size) else (-1, 0, 0)


def _send_addresses(connection: socket.socket, addresses: list[Address]) -> None:
    text = json.dumps(addresses).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)


def _receive_addresses(connection: socket.socket, deadline: float) -> list[Address]:
    connection.settimeout(max(0.05, deadline - time.monotonic()))
    try:
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
        return [(host, port) for host, port in json.loads(_receive(connection, length))]
    except OSError as error:
        raise PeerError(f"rank 0 did not say where the other ranks are: {error}", 0) from error


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; raises ConnectionError when the other side closes first."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)
