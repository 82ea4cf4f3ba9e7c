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
import selectors
import socket
import struct
import time
from dataclasses import dataclass

from playbook.collectives.wire import PeerError

_HEAD = struct.Struct("!I?H")  # the rank that was lost, whether it was only silent, bytes of the reason
_LONGEST = 1000


@dataclass(frozen=True)
class Word:
    """A rank's last word: which rank it has lost, whether that is certain or it was only silent, and the reason."""

    lost: int
    silent: bool
    reason: str


class Alarms:
    """One rank's lines to all others; it says one word on them at most, and hears one from each at most."""

    def __init__(self, rank: int, lines: dict[int, socket.socket]):
        self.rank = rank
        self.words: dict[int, Word] = {}
        self._lines = lines
        self._heard = {peer: bytearray() for peer in lines}
        self._open = set(lines)
        for line in lines.values():
            line.setblocking(False)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Have ``selector`` wake up when there is something to hear."""
        for peer in self._open:
            selector.register(self._lines[peer], selectors.EVENT_READ)

    def hear(self) -> None:
        """Take in what has been said so far."""
        for peer in sorted(self._open):
            try:
                part = self._lines[peer].recv(_HEAD.size + _LONGEST)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            heard = self._heard[peer]
            heard += part
            if len(heard) >= _HEAD.size:
                lost, silent, size = _HEAD.unpack_from(heard)
                if len(heard) == _HEAD.size + size:
                    self.words[peer] = Word(lost, silent, heard[_HEAD.size :].decode(errors="replace"))
            if not part or peer in self.words:
                self._open.discard(peer)

    def news(self) -> PeerError | None:
        """The error of a rank that has heard for certain that another one is lost; None as long as it has not."""
        certain = ((p, w) for p, w in self.words.items() if w.lost != self.rank and not w.silent)
        return next((_told(p, w) for p, w in certain), None)

    def rumours(self) -> str:
        """All that was heard, in one sentence."""
        return "; ".join(str(_told(peer, word)) for peer, word in self.words.items())

    def say(self, error: PeerError) -> None:
        """The last word to all others: what ``error`` is about, and what it says."""
        reason = error.reason.encode()[:_LONGEST]
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.send(_HEAD.pack(error.peer, error.silent, len(reason)) + reason)

    def cause(self, error: PeerError, patience: float) -> PeerError:
        """The error at the end of the chain: about the rank that was lost by the rank … that this one has lost.

        Waits ``patience`` seconds at most for a rank that says nothing and whose line is still open.
        """
        deadline = time.monotonic() + patience
        while True:
            self.hear()
            last = self._follow(error)
            if last.peer not in self._open or not self._listen(deadline - time.monotonic()):
                return last

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._open.clear()

    def _follow(self, error: PeerError) -> PeerError:
        seen, last = {self.rank}, error
        while last.peer in self.words and last.peer not in seen:
            seen.add(last.peer)
            last = _told(last.peer, self.words[last.peer])
        return error if last.peer in seen else last  # ranks that blame each other in a circle: all are there

    def _listen(self, seconds: float) -> bool:
        """Wait until somebody says something, or leaves; False when the time is over."""
        with selectors.DefaultSelector() as selector:
            self.watch(selector)
            return seconds > 0 and bool(selector.select(seconds))


def _told(peer: int, word: Word) -> PeerError:
    return PeerError(
        f"rank {peer} has given up: {word.reason}", word.lost, reason=word.reason, silent=word.silent
    )
