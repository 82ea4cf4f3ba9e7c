"""What the ranks of a pipeline send each other: activations forward, their gradients backward.

From one rank to another messages go in the order in which the schedule has the sender make them, and the receiver, which
knows the schedule as well, takes them in that order: it asks for the next ones ahead of time. Nobody ever waits for a
message of its own to be taken. So ranks cannot block one another, unless the actions of the schedule wait for each other
in a circle (``schedules.validate`` tells).
"""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.parallel.mesh import Mesh
from playbook.schedules.messages import Message, Messages

#: Messages that a rank asks for ahead of time, from each other rank: their memory is there before they are.
AHEAD = 1
#: Numbers of a header: a dtype, the number of dims, and up to six of these.
_HEADER = 8
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Channel:
    """Messages between this rank and ``peer`` (a global rank), over one process group for either direction.

    Shapes are negotiated once: the first message between two stages, for samples of one size, is announced by a header.
    """

    def __init__(
        self, peer: int, outward: dist.ProcessGroup, inward: dist.ProcessGroup, device: torch.device
    ):
        self.peer, self.outward, self.inward, self.device = peer, outward, inward, device
        self._told: set[tuple[int, torch.Size]] = set()
        self._known: dict[tuple[int, torch.Size], tuple[torch.Size, torch.dtype]] = {}

    def connect(self, first: bool) -> None:
        """A word each way, the end that is ``first`` beginning. Both ends call it, before their first step.

        NCCL connects two ranks at the first send and receive between them, and holds both hosts up until the other one
        has come as far (NVIDIA/nccl issue 783); a collective connects other channels. In a step that would be a wait for
        a message to be taken: two ranks that send to each other first, as in DualPipe, would stand still for good; and so
        would a circle of ranks, as breadth first.
        """
        word = torch.zeros(1, device=self.device)
        for sends in (first, not first):
            if sends:
                dist.send(word, self.peer, self.outward)
            else:
                dist.recv(word, self.peer, self.inward)

    def begin(self, coming: Messages, sizes: list[torch.Size]) -> None:
        """Before a step: what the peer will send. ``sizes`` are those of the tokens (b, s) of each micro-batch."""
        self._sizes, self._taken = sizes, coming.taken
        self._expected = deque(coming.messages)
        self._coming: deque[tuple[Message, Tensor, dist.Work]] = deque()
        self._arrived: dict[Message, Tensor] = {}
        self._leaving: deque[tuple[int, dist.Work]] = deque()
        self._count = 0
        self._ask()

    def send(self, what: Message, tensor: Tensor) -> None:
        """Start to send ``tensor``, which must not be written to any more."""
        self._count += 1
        spec = self._spec(what)
        if spec not in self._told:
            self._told.add(spec)
            numbers = [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
            self._start(torch.tensor(numbers + [0] * (_HEADER - len(numbers)), device=self.device))
        self._start(tensor.contiguous())

    def _start(self, tensor: Tensor) -> None:
        work = dist.isend(tensor, self.peer, self.outward)
        assert work is not None
        self._leaving.append((self._count, work))

    def receive(self, what: Message) -> Tensor:
        """Wait for a message, and for those that come before it."""
        while what not in self._arrived:
            if not self._coming:
                self._ask(wait=True)
            found, tensor, work = self._coming.popleft()
            work.wait()
            self._arrived[found] = tensor
            self._let_go(self._taken[found])
            self._ask()
        return self._arrived.pop(what)

    def finish(self) -> None:
        """After a step: wait until all messages are out."""
        self._let_go(self._count)

    def _ask(self, wait: bool = False) -> None:
        """Get ready for the next messages. One whose shape is not known yet has a header, to be waited for."""
        while self._expected and len(self._coming) < AHEAD:
            spec = self._spec(self._expected[0])
            if spec not in self._known:
                if not wait or self._coming:
                    return
                self._known[spec] = self._header()
            shape, dtype = self._known[spec]
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
            work = dist.irecv(tensor, self.peer, self.inward)
            assert work is not None
            self._coming.append((self._expected.popleft(), tensor, work))

    def _header(self) -> tuple[torch.Size, torch.dtype]:
        header = torch.zeros(_HEADER, dtype=torch.int64, device=self.device)
        dist.recv(header, self.peer, self.inward)
        dtype, dims, *shape = header.tolist()
        return torch.Size(shape[:dims]), _DTYPES[dtype]

    def _let_go(self, count: int) -> None:
        """The first ``count`` messages have been received over there: their memory is free."""
        while self._leaving and self._leaving[0][0] <= count:
            self._leaving.popleft()[1].wait()

    def _spec(self, what: Message) -> tuple[int, torch.Size]:
        """Between which stages it goes, for samples of which size: a gradient is like the activation it belongs to."""
        after = what.stage if what.op == "F" else what.stage - 1
        return after, self._sizes[what.microbatch]


def open_channel(pair: tuple[int, int], mesh: Mesh) -> Channel | None:
    """A channel between two places of the pipeline; None on ranks at others. All ranks must open all, in one order.

    Under NCCL messages of one group go one after another, whoever they are for; so each direction gets a group of two.
    Of pairs that are opened in one order the first that is not connected yet has both its ends there: none waits forever.
    """
    here, device = mesh.index("pp"), torch.device(mesh.device)
    directions: list[dist.ProcessGroup | None] = [mesh.group("pp")] * 2
    if mesh.device == "cuda":
        lines = mesh.layout.groups("pp")
        directions = [mesh.subgroup((line[pair[0]], line[pair[1]]) for line in lines) for _ in range(2)]
    outward, inward = directions if here == pair[0] else reversed(directions)
    if here not in pair or outward is None or inward is None:
        return None
    channel = Channel(mesh.ranks("pp")[sum(pair) - here], outward, inward, device)
    if mesh.device == "cuda":
        channel.connect(first=here == pair[0])
    return channel
