"""Who was lost: a second connection to every rank, on which nothing travels but why a rank gives up.

When one rank dies in the middle of a collective, its neighbours notice first and close their connections; their
neighbours see *them* go, and so on around the ring: in the end everyone has lost somebody, and most blame the wrong
one. A last word on the same connection would not help: it would have to wait behind the 64 MB that are being sent,
and TCP throws it away when the other side closes with unread data. A line of its own is always free. So whoever gives
up first says on it whom it lost and why; and whoever loses a rank looks there for what that rank had to say, and
blames the last one of the chain, which said nothing. A rank that was only waited for too long may itself be waiting:
it answers by saying for whom. No torch.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Collection
from multiprocessing.connection import Connection, wait

#: Letters of a reason, and bytes of a word with one: what fits into a packet and is sent without waiting.
_LONGEST, _WORD = 300, 1400


class PeerError(ConnectionError):
    """A rank that is gone, silent, or out of step; ``peer`` is the rank it is about.

    ``reason`` is what the rank that noticed said: the sentence itself, where that is this rank. ``silent``: nothing is
    known but that it was waited for in vain.
    """

    def __init__(self, sentence: str, peer: int, *, reason: str | None = None, silent: bool = False):
        super().__init__(sentence)
        self.peer, self.reason, self.silent = peer, reason or sentence, silent


class Alarms:
    """One rank's lines to all others; it says one word on them at most, and hears one from each at most.

    ``words`` are those that were heard, by the rank that said them; ``open`` the lines that may still bring one.
    """

    def __init__(self, rank: int, lines: dict[int, socket.socket]):
        self.rank, self.words = rank, dict[int, PeerError]()
        for line in lines.values():
            line.setblocking(True)
        self._lines = {peer: Connection(line.detach()) for peer, line in lines.items()}
        self.open = dict(self._lines)

    def hear(self, ready: Collection[object]) -> None:
        """Take in what was said on those of the lines that are ready to be read."""
        for peer in [peer for peer, line in self.open.items() if line in ready]:
            with contextlib.suppress(OSError, EOFError, ValueError):  # a line that is closed says nothing
                lost, silent, reason = json.loads(self.open[peer].recv_bytes(_WORD))
                told = f"rank {peer} has given up: {reason}"
                self.words[peer] = PeerError(told, lost, reason=reason, silent=silent)
            del self.open[peer]

    def news(self) -> PeerError | None:
        """The error of a rank that has heard for certain that another one is lost; None as long as it has not."""
        certain = (word for word in self.words.values() if word.peer != self.rank and not word.silent)
        return next(certain, None)

    def say(self, error: PeerError) -> None:
        """The last word to all others: what ``error`` is about, and what it says."""
        word = json.dumps([error.peer, error.silent, error.reason[:_LONGEST]], ensure_ascii=False).encode()
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.send_bytes(word)

    def cause(self, error: PeerError, patience: float) -> PeerError:
        """The error at the end of the chain: about the rank that was lost by the rank … that this one has lost.

        Waits ``patience`` seconds at most for a rank that says nothing and whose line is still open.
        """
        deadline = time.monotonic() + patience
        self.hear(wait(self.open.values(), 0))
        while True:
            last = self._follow(error)
            left = deadline - time.monotonic()
            if last.peer not in self.open or left <= 0:
                return last
            self.hear(wait(self.open.values(), left))

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self.open.clear()

    def _follow(self, error: PeerError) -> PeerError:
        seen, last = {self.rank}, error
        while last.peer in self.words and last.peer not in seen:
            seen.add(last.peer)
            last = self.words[last.peer]
        return error if last.peer in seen else last  # ranks that blame each other in a circle: all are there
