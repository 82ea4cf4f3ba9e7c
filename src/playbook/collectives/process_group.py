"""Plans carried out over a ``torch.distributed`` process group, with nothing of it but isend and irecv.

What the plan wants is a little less than "all of step 1, then all of step 2": a slice may go out as soon as what was
to arrive in it has arrived. So messages travel in pieces of at most ``PIECE`` bytes, each waits only for the pieces
whose slice it touches, and while one piece is being added up the next ones are on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.collectives.functions import Transcript, Transport
from playbook.collectives.plans import CollectiveError, Message, Plan

#: Bytes of a piece. On a CPU, pieces that fit into its cache are added up while they are warm there; on GPUs, where
#: receives queue on a stream, a message is one piece.
PIECE = 1 << 20
_REDUCE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


class ProcessGroupTransport(Transport):
    """Tensors over a process group, which decides the device: gloo carries CPU tensors, NCCL those of GPUs.

    A rank that does not answer within the group's timeout, or is gone, is a ``RuntimeError`` of the group.
    """

    def __init__(self, group: dist.ProcessGroup):
        if not isinstance(group, dist.ProcessGroup):
            raise CollectiveError(f"group must be a process group that this rank is in, got {group!r}")
        self.group, self.rank, self.size = group, group.rank(), group.size()

    def flat(self, data: Tensor) -> Tensor:
        if not data.is_contiguous():
            raise CollectiveError(f"a tensor must be contiguous, got strides {data.stride()}: pass a copy")
        return data.detach().view(-1)

    def empty(self, like: Tensor | None, elements: int) -> Tensor:
        if like is None:
            return torch.empty(elements, dtype=torch.uint8, device=self._device())
        return torch.empty(elements, dtype=like.dtype, device=like.device)

    def itemsize(self, flat: Tensor) -> int:
        return flat.element_size()

    def divide(self, flat: Tensor, by: int) -> None:
        if not flat.is_floating_point():
            raise CollectiveError(f"op avg needs floating-point numbers, got {flat.dtype}")
        flat.div_(by)

    def execute(self, plan: Plan, source: Tensor, target: Tensor, op: str) -> Transcript:
        run = _Run(self.group, source, target, op)
        for messages in plan.of_rank(self.rank):
            run.step(messages)
        return run.finish()

    def _device(self) -> torch.device:
        return torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")


@dataclass(eq=False)
class _Piece:
    """A part of a message on its way: ``slice`` is where it is sent from, or received to, on this rank."""

    message: Message
    start: int
    stop: int
    slice: Tensor
    sent: bool
    scratch: Tensor | None = None  # where a contribution waits to be added
    work: Any = None

    def touches(self, other: _Piece) -> bool:
        return self.start < other.stop and other.start < self.stop


class _Run:
    """One rank's part of one plan, in the middle of being carried out."""

    def __init__(self, group: dist.ProcessGroup, source: Tensor, target: Tensor, op: str):
        self.group, self.rank = group, group.rank()
        self.source, self.target = source, target
        self.reduce = _REDUCE[op]
        self.in_place = source is target
        on_gpu = source.is_cuda
        self.piece = max(1, source.numel() if on_gpu else PIECE // source.element_size())
        self.sends: list[_Piece] = []
        self.receives: list[_Piece] = []
        self.spare: list[Tensor] = []
        self.moved: dict[Message, int] = {}  # in the order of the plan; bytes as they are counted

    def step(self, messages: list[Message]) -> None:
        """Post what this rank sends and receives at one step, once the slices are ready."""
        earlier = list(self.receives)
        self.moved.update(dict.fromkeys(messages, 0))
        for wave in self._waves(messages):
            for piece in wave:
                # What is still arriving cannot be sent, and what is still being sent cannot be overwritten.
                if self.in_place or not piece.sent:
                    self._finish_receives([old for old in earlier if old.touches(piece)])
                if not piece.sent and piece.scratch is None:
                    self._finish_sends(piece)
            self._post(wave)

    def finish(self) -> Transcript:
        """Wait for what is on its way; returns what was sent and received."""
        self._finish_receives(list(self.receives))
        for piece in self.sends:
            piece.work.wait()
        return [message._replace(bytes=count) for message, count in self.moved.items()]

    def _waves(self, messages: list[Message]) -> Iterator[list[_Piece]]:
        """First pieces of all messages, second pieces … : both ends of a message cut it, and count it, alike."""
        longest = max(message.stop - message.start for message in messages)
        for offset in range(0, longest, self.piece):
            yield [
                self._cut(message, offset) for message in messages if offset < message.stop - message.start
            ]

    def _cut(self, message: Message, offset: int) -> _Piece:
        size = min(self.piece, message.stop - message.start - offset)
        sent = message.source == self.rank
        start = (message.start if sent else message.into) + offset
        slice = (self.source if sent else self.target)[start : start + size]
        scratch = self._scratch(size) if message.reduce and not sent else None
        return _Piece(message, start, start + size, slice, sent, scratch)

    def _scratch(self, size: int) -> Tensor:
        if self.spare and len(self.spare[-1]) == size:
            return self.spare.pop()
        return torch.empty_like(self.target[:size])

    def _post(self, wave: list[_Piece]) -> None:
        ops = [self._operation(piece) for piece in wave]
        works = dist.batch_isend_irecv(ops)
        if len(works) < len(ops):
            works = works * len(ops)  # NCCL answers with one work for the whole batch
        for piece, work in zip(wave, works, strict=False):
            piece.work = work
            (self.sends if piece.sent else self.receives).append(piece)
            self.moved[piece.message] += piece.slice.numel() * piece.slice.element_size()

    def _operation(self, piece: _Piece) -> dist.P2POp:
        if piece.sent:
            return dist.P2POp(dist.isend, piece.slice, group=self.group, group_peer=piece.message.target)
        buffer = piece.slice if piece.scratch is None else piece.scratch
        return dist.P2POp(dist.irecv, buffer, group=self.group, group_peer=piece.message.source)

    def _finish_receives(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            if piece not in self.receives:
                continue
            self.receives.remove(piece)
            piece.work.wait()
            if piece.scratch is not None:
                self._finish_sends(piece)
                self.reduce(piece.slice, piece.scratch, out=piece.slice)
                self.spare.append(piece.scratch)

    def _finish_sends(self, piece: _Piece) -> None:
        for old in [old for old in self.sends if self.in_place and old.touches(piece)]:
            old.work.wait()
            self.sends.remove(old)
