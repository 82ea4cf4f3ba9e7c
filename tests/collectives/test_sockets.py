"""The collectives over TCP: the same results and transcripts, big messages, partial ones, and peers that go away."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import pytest

from playbook.collectives import CollectiveError
from playbook_book import collectives, rendezvous
from playbook_book.alarms import Alarms, PeerError
from playbook_book.collectives import merge
from playbook_book.collectives.plans import ALGORITHMS, Message, plan
from playbook_book.rendezvous import connect, free_port
from playbook_book.sockets import HEADER, SocketGroup

UFUNCS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
DTYPES = ("float32", "float64", "int64")


def in_threads(size: int, work: Callable[[SocketGroup], Any], timeout: float = 60.0) -> list[Any]:
    """What ``work(group)`` returns, or raises, in each of ``size`` ranks: threads of this process, real connections."""
    port, results = free_port(), [None] * size

    def run(rank: int) -> None:
        try:
            with connect(rank, size, port=port, timeout=timeout) as group:
                results[rank] = work(group)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    return results


def in_processes(size: int, work: Callable[..., Any], *args: Any) -> list[int | None]:
    """Exit codes of ``size`` processes that run ``work(rank, size, port, *args)``."""
    context, port = multiprocessing.get_context("fork"), free_port()
    processes = [context.Process(target=work, args=(rank, size, port, *args)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode is not None, "a rank hangs"
    return [process.exitcode for process in processes]


def whole(kind: str, vectors: list[np.ndarray], op: str, rank: int, root: int) -> np.ndarray | None:
    """What the collective gives a rank, from numpy alone; None where it gives nothing."""
    n = len(vectors)
    pieces = [np.array_split(v, n) for v in vectors]
    total = UFUNCS[op].reduce(np.stack(vectors))
    results: dict[str, np.ndarray | None] = {
        "broadcast": vectors[root],
        "reduce": total if rank == root else vectors[rank],
        "gather": np.concatenate([pieces[r][r] for r in range(n)]) if rank == root else None,
        "scatter": pieces[root][rank],
        "all_gather": np.concatenate([pieces[r][r] for r in range(n)]),
        "reduce_scatter": np.array_split(total, n)[rank],
        "all_reduce": total,
        "all_to_all": np.concatenate([pieces[r][rank] for r in range(n)]),
        "barrier": None,
    }
    return results[kind]


def call(
    kind: str, name: str, vectors: list[np.ndarray], op: str, root: int, group: SocketGroup
) -> tuple[Any, list]:
    n, rank, function = group.size, group.rank, getattr(collectives, kind)
    vector = vectors[rank].copy()
    chunk, elements = np.array_split(vector, n)[rank].copy(), len(vector)
    if kind == "barrier":
        return None, function(group, algorithm=name)
    if kind == "broadcast":
        return vector, function(vector, group, root, algorithm=name)
    if kind == "reduce":
        return vector, function(vector, group, root, op=op, algorithm=name)
    if kind == "all_reduce":
        return vector, function(vector, group, op=op, algorithm=name)
    if kind == "gather":
        output = np.empty_like(vector) if rank == root else None
        return output, function(output, chunk, group, root, elements=elements, algorithm=name)
    if kind == "scatter":
        data = vector if rank == root else None
        return chunk, function(chunk, data, group, root, elements=elements, algorithm=name)
    output = {"all_gather": vector.copy(), "reduce_scatter": chunk.copy(), "all_to_all": np.tile(chunk, n)}[
        kind
    ]
    output[:] = 77
    if kind == "reduce_scatter":
        return output, function(output, vector, group, op=op, algorithm=name)
    return output, function(output, chunk if kind == "all_gather" else vector, group, algorithm=name)


@pytest.mark.parametrize("n", range(1, 9))
def test_every_collective_equals_numpys_and_sends_what_its_plan_says(n):
    rng = random.Random(n)
    cases = [
        (kind, name, elements, rng.choice(DTYPES), rng.choice(("sum", "max", "min", "prod")), rng.randrange(n))
        for kind, algorithms in ALGORITHMS.items()
        for name in algorithms
        for elements in (0, 1, n - 1, n, 3 * n + 1, 321)
    ]  # fmt: skip

    def vectors(i: int, elements: int, dtype: str) -> list[np.ndarray]:
        values = np.random.default_rng(i).choice([-2, -1, 1, 2], (n, elements))
        return list(values.astype(dtype))

    def work(group: SocketGroup) -> list[Any]:
        return [
            call(kind, name, vectors(i, elements, dtype), op, root, group)
            for i, (kind, name, elements, dtype, op, root) in enumerate(cases)
        ]

    by_rank = in_threads(n, work)
    for result in by_rank:
        if isinstance(result, Exception):
            raise result
    for i, (kind, name, elements, dtype, op, root) in enumerate(cases):
        p = plan(
            kind, name, ranks=n, elements=elements, itemsize=np.dtype(dtype).itemsize,
            root=root if kind in ("broadcast", "reduce", "gather", "scatter") else 0,
        )  # fmt: skip
        assert merge(result[i][1] for result in by_rank) == sorted(p.messages), cases[i]
        for rank in range(n):
            expected = whole(kind, vectors(i, elements, dtype), op, rank, root)
            if expected is not None:
                np.testing.assert_array_equal(by_rank[rank][i][0], expected, err_msg=str(cases[i]))


def big(rank: int, size: int, port: int) -> None:
    with connect(rank, size, port=port, timeout=60) as group:
        # Recursive doubling: both partners send 64 MB to each other at the same time.
        for name in ("recursive_doubling", "ring"):
            x = np.full(16 << 20, rank + 1, np.float32)
            collectives.all_reduce(x, group, algorithm=name)
            assert x[0] == x[-1] == sum(range(1, size + 1))


@pytest.mark.parametrize("size", [2, 3])
def test_64_megabytes_both_ways_at_once(size):
    assert in_processes(size, big) == [0] * size


class Trickle:
    """A connection that takes and gives at most three bytes at a time, and is not ready every other time."""

    def __init__(self, connection: socket.socket):
        self.connection, self.calls = connection, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def _busy(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise BlockingIOError

    def sendmsg(self, parts: list[memoryview]) -> int:
        self._busy()
        return self.connection.send(b"".join(parts)[:3])

    def recvmsg_into(self, parts: list[memoryview]) -> tuple[int]:
        self._busy()
        return (self.connection.recv_into(next(part for part in parts if part)[:3]),)


def test_messages_that_come_a_few_bytes_at_a_time():
    def work(group: SocketGroup) -> np.ndarray:
        group._connections = {peer: Trickle(c) for peer, c in group._connections.items()}  # type: ignore[misc]
        x = np.arange(1000.0) * (group.rank + 1)
        collectives.all_reduce(x, group)
        return x

    for x in in_threads(3, work):
        np.testing.assert_array_equal(x, np.arange(1000.0) * 6)


def dies(rank: int, size: int, port: int, how: str, errors: Any) -> None:
    """Rank 1 goes away in the middle of an all-reduce of 32 MB: after it has sent some of it."""
    with connect(rank, size, port=port, timeout=600) as group:
        x = np.ones(4 << 20)
        if rank == 1:
            message = struct.pack(HEADER, 0, np.array_split(x, size)[0].nbytes) + bytes(1000)
            group._connections[2 % size].send(message)
            if how == "killed":
                os.kill(os.getpid(), 9)
            group.close()
            return
        with pytest.raises(PeerError) as caught:
            collectives.all_reduce(x, group)
        errors.put((rank, caught.value.peer, str(caught.value)))
        with pytest.raises(CollectiveError, match="is closed"):
            collectives.barrier(group)


@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_everyone_learns_which_peer_was_lost_in_the_middle(how, size):
    errors = multiprocessing.get_context("fork").Queue()
    codes = in_processes(size, dies, how, errors)
    assert codes == [-9 if how == "killed" and rank == 1 else 0 for rank in range(size)]
    found = sorted(errors.get(timeout=60) for _ in range(size - 1))
    assert [rank for rank, *_ in found] == [rank for rank in range(size) if rank != 1]
    for _, peer, sentence in found:
        assert peer == 1
        assert (
            "rank 1 is gone (" in sentence
        )  # whoever noticed it first, in its words; nobody waited for ten minutes


def test_a_silent_peer_is_named_when_the_time_is_over():
    silent = threading.Event()

    def work(group: SocketGroup) -> Any:
        if group.rank == 2:
            silent.wait(60)
            return None
        group.timeout = 0.5
        try:
            collectives.broadcast(np.ones(10), group, root=2)
        finally:
            silent.set()
        return None

    results = in_threads(3, work)
    about = [result for result in results if isinstance(result, PeerError)]
    assert about
    assert all(error.peer == 2 for error in about)
    # On a busy machine a rank that waits for half a second gets its turn later.
    sentence = re.compile(r"waited [\d.]+ s for rank 2: 0 of 80 bytes of step")
    assert any(sentence.search(str(error)) for error in about), about


def test_the_silent_one_is_found_behind_ranks_that_wait_for_it():
    """Around a ring, rank 0 waits for rank 3, which waits for rank 2, which waits for rank 1; rank 0 loses patience."""
    over = threading.Event()

    def work(group: SocketGroup) -> Any:
        if group.rank == 1:
            over.wait(60)
            return None
        group.timeout = 0.5 if group.rank == 0 else 600.0  # far more than `in_threads` allows
        try:
            return collectives.all_reduce(np.ones(4), group)
        finally:
            if group.rank == 0:
                over.set()

    results = in_threads(4, work)
    assert results[1] is None
    for rank in (0, 2, 3):
        assert isinstance(results[rank], PeerError)
        assert results[rank].peer == 1
        assert "s for rank 1: 0 of 8 bytes" in str(results[rank])


def test_who_was_elsewhere_learns_it_at_the_next_collective():
    given_up = threading.Barrier(2)

    def work(group: SocketGroup) -> Any:
        if group.rank == 0:
            return None  # leaves at once
        if group.rank == 1:
            try:
                return collectives.broadcast(np.ones(1), group)
            finally:
                given_up.wait(60)
        given_up.wait(60)
        return collectives.reduce(np.ones(1 << 20), group, root=1)

    for error in in_threads(3, work)[1:]:
        assert isinstance(error, PeerError)
        assert error.peer == 0
        assert "rank 0 is gone (it closed the connection)" in str(error)


def test_the_last_words_of_ranks_that_blame_each_other():
    ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    alarms, peers = Alarms(0, {1: ours[0], 2: ours[1]}), [Connection(line.detach()) for line in theirs]
    own = PeerError("rank 1 is gone", 1)
    peers[0].send_bytes(json.dumps([2, False, "alas"]).encode())
    alarms.hear(wait(alarms.open.values(), 60))
    assert str(alarms.news()) == "rank 1 has given up: alas"
    assert alarms.cause(own, patience=0.01).peer == 2  # silent, as far as we know
    peers[1].send_bytes(json.dumps([1, True, "woe"]).encode())
    assert alarms.cause(own, patience=10) is own  # 1 blames 2, and 2 blames 1
    alarms.say(PeerError("ü" * 5000, 1))
    assert json.loads(peers[1].recv_bytes()) == [1, False, "ü" * 300]
    alarms.close()
    for peer in peers:
        peer.close()


def test_ranks_that_disagree_are_told_so():
    def work(group: SocketGroup) -> Any:
        return collectives.all_reduce(np.ones(10 + 2 * group.rank), group)

    results = in_threads(2, work)
    assert all(isinstance(result, PeerError) for result in results)
    assert any(
        "out of step: it sent 48 bytes of step 0, expected 40 bytes of step 0" in str(r) for r in results
    )


def test_strangers_at_the_door_are_turned_away(monkeypatch):
    port, silent = free_port(), []
    monkeypatch.setattr(rendezvous, "_PATIENCE", 0.1)

    def knock() -> None:
        elsewhere = struct.pack("!8sIIBH", b"playbook", 9, 1, 2, 0)
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", elsewhere, b"", b"play", None):
            for _ in range(3000):
                try:
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=60)
                    if greeting is None:
                        silent.append(stranger)
                    else:
                        with stranger:
                            stranger.sendall(greeting)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)

    ranks: list[Any] = [None, None]

    def run(rank: int) -> None:
        with connect(rank, 2, port=port, timeout=60) as group:
            collectives.barrier(group)
            ranks[rank] = group.size

    first = threading.Thread(target=run, args=(0,), daemon=True)
    first.start()
    knock()
    run(1)
    first.join(60)
    assert ranks == [2, 2]
    with silent[0]:
        assert silent[0].recv(1) == b""


def test_who_never_comes_is_named():
    port = free_port()
    with pytest.raises(PeerError, match=r"rank 0 waited for rank 1, rank 2 to join"):
        connect(0, 3, port=port, timeout=0.3)
    with pytest.raises(PeerError, match=rf"rank 1 cannot reach rank 0 at 127.0.0.1:{port}: .*refused"):
        connect(1, 3, port=port, timeout=0.3)
    with pytest.raises(CollectiveError, match="rank must be 0 to 2, got 3"):
        connect(3, 3, port=port)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(CollectiveError, match=r"cannot listen at 127\.0\.0\.1"):
        connect(0, 2, port=taken.getsockname()[1])


def test_who_waits_with_rank_0_hears_at_once_that_it_gave_up():
    port, errors = free_port(), []

    def run(rank: int, timeout: float) -> None:
        with pytest.raises(PeerError) as caught:
            connect(rank, 3, port=port, timeout=timeout)
        errors.append(str(caught.value))

    threads = [threading.Thread(target=run, args=of, daemon=True) for of in ((0, 1.0), (1, 600.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    waited, told = sorted(errors, key=lambda error: "did not say" in error)
    assert "rank 2 to join, in vain" in waited
    assert told == "rank 0 did not say where the other ranks are"


def test_what_cannot_be_sent_in_place_is_refused():
    group = SocketGroup(0, {}, {})
    with pytest.raises(CollectiveError, match="must be contiguous"):
        collectives.all_reduce(np.ones((4, 2)).T, group)
    with pytest.raises(CollectiveError, match="avg needs floating-point numbers, got int64"):
        collectives.all_reduce(np.ones(4, np.int64), group, op="avg")


def test_no_torch_in_any_of_it():
    code = (
        "import sys; sys.modules['torch'] = None; import playbook_book.collectives, playbook_book.rendezvous"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_messages_print_as_sentences():
    message = Message(2, 0, 1, 4, 8, 4, 32, True)
    assert str(message) == "step 2: rank 0 → rank 1, [4:8] reduced into [4:8], 32 bytes"
