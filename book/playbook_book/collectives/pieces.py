"""A plan cut into pieces, and when one rank may send, receive and add up each of them. Standard library only.

What a plan wants is a little less than "all of step 1, then all of step 2": a slice may go out as soon as what was to
arrive in it has arrived. So messages are cut into pieces, each waits only for the pieces whose slice it touches, and
while one is being added up the next ones are on their way. Receives are posted early: whoever sends to a rank that
is ready for it need not ask first.

Nothing of that depends on how fast anything turns out to be. It is worked out once for a plan and a rank, as a list of
actions, so that there is next to nothing left to do between one message and the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from playbook_book.collectives.plans import Message, Plan


class Do(Enum):
    """What a rank does with a piece."""

    RECEIVE = "post a receive"
    SEND = "post a send"
    FINISH = "wait until it has arrived, and combine it with what is there if the message says so"
    SENT = "wait until it has been sent"


@dataclass(eq=False, slots=True)
class Piece:
    """A part of a message: ``start:stop`` is where it is sent from, or received to, on this rank.

    A contribution arrives in a scratch buffer, ``slot``, from which it is added.
    """

    message: Message
    peer: int
    start: int
    stop: int
    sent: bool
    index: int = 0  # among all pieces
    slot: int | None = None

    def touches(self, other: Piece) -> bool:
        """Whether the two share an element."""
        return self.start < other.stop and other.start < self.stop


class PieceAction(NamedTuple):
    """One thing to do."""

    do: Do
    piece: Piece


@dataclass(frozen=True)
class Program:
    """All that one rank does for a plan, in order; ``slots`` scratch buffers of ``room`` elements are needed."""

    actions: tuple[PieceAction, ...]
    transcript: tuple[Message, ...]
    pieces: int
    slots: int
    room: int


@lru_cache(maxsize=256)
def program(
    plan: Plan,
    rank: int,
    *,
    piece: int | None = None,
    scratch: int = 0,
    ahead: int = 0,
    in_place: bool = True,
) -> Program:
    """What ``rank`` does for ``plan`` in pieces of at most ``piece`` elements.

    Receives are posted ``ahead`` pieces early, contributions as long as no more than ``scratch`` elements of them wait.
    Without ``piece`` messages stay whole, and all of a step are posted together. ``in_place``: the plan's source and
    target are one vector, so that what is still to be sent must not be overwritten.
    """
    if piece is None:
        piece, ahead = max(1, plan.elements), 0
    return _Compiler(plan, rank, piece, scratch, ahead, in_place).compile()


class _Compiler:
    """A rank's program, as far as it is written: which pieces are on their way."""

    def __init__(self, plan: Plan, rank: int, piece: int, scratch: int, ahead: int, in_place: bool):
        self.rank, self.piece, self.ahead, self.in_place = rank, piece, ahead, in_place
        self.scratch = scratch
        steps = plan.of_rank(rank)
        self.transcript = tuple(message for messages in steps for message in messages)
        self.waves = [wave for messages in steps for wave in self._waves(messages)]
        self.actions: list[PieceAction] = []
        self.posted: set[Piece] = set()
        self.sends: list[Piece] = []  # on their way, the oldest first
        self.receives: list[Piece] = []
        self.free: list[int] = []
        self.slots = 0
        self._waiting = 0  # elements of contributions on their way

    def compile(self) -> Program:
        """Write the program wave by wave: receives first, then sends, then the receives of the waves after it."""
        pieces = [piece for wave in self.waves for piece in wave]
        for index, piece in enumerate(pieces):
            piece.index = index
        for i, wave in enumerate(self.waves):
            due = sorted((p for p in wave if p not in self.posted), key=lambda piece: piece.sent)
            if self.ahead:
                for piece in due:
                    self._clear(piece, i)
                    self._post(piece)
                self._post_ahead(i)
            else:
                for piece in due:
                    self._clear(piece, i)
                for piece in due:
                    self._post(piece)
        for piece in list(self.receives):
            self._finish(piece)
        for piece in list(self.sends):
            self._sent(piece)
        room = max((p.stop - p.start for p in pieces if p.slot is not None), default=0)
        return Program(tuple(self.actions), self.transcript, len(pieces), self.slots, room)

    def _waves(self, messages: list[Message]) -> Iterator[list[Piece]]:
        """First pieces of all messages of a step, second pieces … : both ends of a message cut it alike."""
        longest = max(message.stop - message.start for message in messages)
        for offset in range(0, longest, self.piece):
            yield [self._cut(m, offset) for m in messages if offset < m.stop - m.start]

    def _cut(self, message: Message, offset: int) -> Piece:
        size = min(self.piece, message.stop - message.start - offset)
        if message.source == self.rank:
            start = message.start + offset
            return Piece(message, message.target, start, start + size, sent=True)
        start = message.into + offset
        return Piece(message, message.source, start, start + size, sent=False)

    def _clear(self, piece: Piece, wave: int) -> None:
        """Wait for what must be over before a piece can go: what still arrives cannot be sent, and what is still sent
        or arriving cannot be overwritten."""
        if not piece.sent and piece.message.reduce:
            self._make_room(piece, wave)
            return
        if piece.sent and not self.in_place:
            return
        step = piece.message.step
        for old in [old for old in self.receives if old.message.step < step and old.touches(piece)]:
            self._finish(old)
        if not piece.sent:
            self._finish_sends(piece)

    def _make_room(self, piece: Piece, wave: int) -> None:
        """Add up the oldest contributions until few enough wait: their buffers are used again while they are warm."""
        while self._waiting and not self._fits(piece):
            oldest = next(piece for piece in self.receives if piece.slot is not None)
            if self._yet_to_be_sent(oldest, wave):
                return
            self._finish(oldest)

    def _yet_to_be_sent(self, piece: Piece, wave: int) -> bool:
        """Whether a step that is not over still has to send what a piece would be added to, as it is."""
        step = piece.message.step
        same = takewhile(lambda pieces: pieces[0].message.step <= step, self.waves[wave:])
        return any(p.sent and p not in self.posted and p.touches(piece) for pieces in same for p in pieces)

    def _fits(self, piece: Piece) -> bool:
        return self._waiting + piece.stop - piece.start <= self.scratch

    def _post_ahead(self, wave: int) -> None:
        """Post receives before they are due, as long as nothing before them stands in the way."""
        step = self.waves[wave][0].message.step
        between: list[Piece] = []  # sends that come before, not posted yet
        for piece in (piece for later in self.waves[wave + 1 : wave + 1 + self.ahead] for piece in later):
            if piece.sent:
                between.append(piece)
            elif piece not in self.posted:
                if piece.message.reduce:
                    if not self._fits(piece):
                        return
                else:
                    recent = (old for old in self.sends if old.message.step >= step)
                    before = [*self.receives, *recent, *between] if self.in_place else self.receives
                    if any(old.touches(piece) for old in before):
                        return
                    self._finish_sends(piece)
                self._post(piece)

    def _post(self, piece: Piece) -> None:
        if not piece.sent and piece.message.reduce:
            if not self.free:
                self.free.append(self.slots)
                self.slots += 1
            piece.slot = self.free.pop()
            self._waiting += piece.stop - piece.start
        self.posted.add(piece)
        (self.sends if piece.sent else self.receives).append(piece)
        self.actions.append(PieceAction(Do.SEND if piece.sent else Do.RECEIVE, piece))

    def _finish(self, piece: Piece) -> None:
        if piece.slot is not None:
            self._finish_sends(piece)
            self.free.append(piece.slot)
            self._waiting -= piece.stop - piece.start
        self.receives.remove(piece)
        self.actions.append(PieceAction(Do.FINISH, piece))

    def _finish_sends(self, piece: Piece) -> None:
        """Wait until what a piece will overwrite has been sent."""
        for old in [old for old in self.sends if self.in_place and old.touches(piece)]:
            self._sent(old)

    def _sent(self, piece: Piece) -> None:
        self.sends.remove(piece)
        self.actions.append(PieceAction(Do.SENT, piece))
