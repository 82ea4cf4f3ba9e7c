"""Plans carried out over a ``torch.distributed`` process group, with nothing of it but sends and receives.

On a CPU messages go in pieces, as ``pieces.py`` says. On GPUs they stay whole, and those of a step are posted
together: NCCL carries out one after the other, so that a receive which waits alone could wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.collectives import CollectiveError
from playbook_book.collectives.pieces import Do, Piece, Program, program
from playbook_book.collectives.plans import Plan
from playbook_book.collectives.transport import Transcript, Transport

#: Bytes of a piece, bytes of contributions that may wait to be added, and how many pieces early a receive is posted:
#: what was fastest over gloo. Each message costs it some 100 µs of processor time, whatever its length, so pieces are
#: long; contributions that wait should fit into the cache; and a rank to which a receive has not been posted yet must
#: be asked first, which is one more message.
PIECE = 4 << 20
SCRATCH = 4 << 20
AHEAD = 2
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
        pieces: dict[str, int] = {}
        if not source.is_cuda:
            size = source.element_size()
            pieces = {"piece": max(1, PIECE // size), "scratch": SCRATCH // size, "ahead": AHEAD}
        todo = program(plan, self.rank, in_place=source is target, **pieces)
        run = _Run(self.group, todo, source, target, _REDUCE[op])
        if source.is_cuda:
            run.together()
        else:
            run.one_by_one()
        return list(todo.transcript)

    def _device(self) -> torch.device:
        return torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")


class _Run:
    """A program in the middle of being carried out."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        todo: Program,
        source: Tensor,
        target: Tensor,
        reduce: Callable[..., Tensor],
    ):
        self.group, self.actions, self.reduce = group, todo.actions, reduce
        self.source, self.target = source, target
        self.scratch = target.new_empty(todo.slots, todo.room)
        self.works: list[Any] = [None] * todo.pieces

    def one_by_one(self) -> None:
        """Post each send and receive by itself."""
        send, receive, works = self.group.send, self.group.recv, self.works
        for do, piece in self.actions:
            if do is Do.SEND:
                works[piece.index] = send([self.source[piece.start : piece.stop]], piece.peer, 0)
            elif do is Do.RECEIVE:
                works[piece.index] = receive([self.buffer(piece)], piece.peer, 0)
            else:
                self.finish(do, piece)

    def together(self) -> None:
        """Post what stands together in the program as one batch, as NCCL needs it: it runs one after the other."""
        for posts, actions in groupby(self.actions, key=lambda action: action.do in (Do.SEND, Do.RECEIVE)):
            if not posts:
                for action in actions:
                    self.finish(*action)
                continue
            batch = [piece for _, piece in actions]
            works = dist.batch_isend_irecv([self.operation(piece) for piece in batch])
            for i, piece in enumerate(batch):
                self.works[piece.index] = works[min(i, len(works) - 1)]  # NCCL gives one for all

    def operation(self, piece: Piece) -> dist.P2POp:
        call, tensor = (
            (dist.isend, self.source[piece.start : piece.stop])
            if piece.sent
            else (dist.irecv, self.buffer(piece))
        )
        return dist.P2POp(call, tensor, group=self.group, group_peer=piece.peer)

    def buffer(self, piece: Piece) -> Tensor:
        """Where a piece is received."""
        if piece.slot is None:
            return self.target[piece.start : piece.stop]
        return self.scratch[piece.slot, : piece.stop - piece.start]

    def finish(self, do: Do, piece: Piece) -> None:
        self.works[piece.index].wait()
        if do is Do.FINISH and piece.slot is not None:
            landing = self.target[piece.start : piece.stop]
            self.reduce(landing, self.buffer(piece), out=landing)
