"""A ring whose messages are watched: when each was asked for, when it was there, and how long anybody waited for it.

    ring = WatchedRing(group)
    ring_forward(q, k, v, ring, placement)
    ring.spans

For tensors in CPU memory. The profiler tells when a message of Gloo was asked for and when someone has waited for it,
not when it came. So a thread looks at its last number: NaN until then.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.parallel.mesh import Ring

LOOK = 2e-4  # seconds between two looks at a message


@dataclass(frozen=True)
class Interval:
    """``kind`` is compute, message or waiting; times are seconds of ``time.perf_counter``, one clock for a machine."""

    kind: str
    start: float
    end: float


class WatchedRing(Ring):
    """A ring that keeps ``spans``: what is neither asking for a message nor waiting for one is computing.

    With ``overlap=False`` it waits for each message right after asking for it: the naive twin. Messages must be of floats
    and end in a finite one.
    """

    def __init__(self, group: dist.ProcessGroup, overlap: bool = True):
        super().__init__(group)
        self.overlap = overlap
        self.spans: list[Interval] = []
        self._since = time.perf_counter()
        self._watchers: list[threading.Thread] = []

    def begin(self) -> None:
        """Forget what was; computing begins now."""
        self.spans.clear()
        self._since = time.perf_counter()

    def pass_on(self, tensor: Tensor) -> Tensor:
        coming = torch.full_like(tensor, float("nan"))
        asked = time.perf_counter()
        self.spans.append(Interval("compute", self._since, asked))
        self._works += dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, self._next, self.group),
                dist.P2POp(dist.irecv, coming, self._before, self.group),
            ]
        )
        watcher = threading.Thread(target=self._watch, args=(coming.view(-1)[-1:].numpy(), asked))
        watcher.start()
        self._watchers.append(watcher)
        self._since = time.perf_counter()
        if not self.overlap:
            self.arrive()
        return coming

    def _watch(self, last: Any, asked: float) -> None:
        while last[0] != last[0]:  # NaN
            time.sleep(LOOK)
        self.spans.append(Interval("message", asked, time.perf_counter()))

    def arrive(self) -> None:
        start = time.perf_counter()
        self.spans.append(Interval("compute", self._since, start))
        waited = bool(self._works)
        super().arrive()
        self._since = time.perf_counter()
        if waited:
            self.spans.append(Interval("waiting", start, self._since))
        for watcher in self._watchers:
            watcher.join()
        self._watchers.clear()


def early(spans: list[Interval]) -> int:
    """Messages that were there before anybody waited for them."""
    messages = sorted((span for span in spans if span.kind == "message"), key=lambda span: span.start)
    waits = sorted((span for span in spans if span.kind == "waiting"), key=lambda span: span.start)
    return sum(message.end <= wait.start for message, wait in zip(messages, waits, strict=True))
