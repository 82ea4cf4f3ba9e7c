"""Two passes of a rank side by side: while the rows of one travel to experts and back, the other computes.

That is what DualPipe pairs a forward pass of one micro-batch with the backward pass of another for (DeepSeek-V3, arXiv
2412.19437, section 3.2.1). Only one of both computes at any time, and it hands over where it would wait for rows: so
every rank of a group begins its messages in the same order, whatever the network does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from threading import Semaphore

import torch
from torch.utils import _python_dispatch

from playbook.model.recompute import rng_state, set_rng_state


class Turns:
    """Lets two functions take turns, the first in this thread, the second in one of its own.

    Instruments may set ``trace``: it gets (who, start, end) of each turn, who being 0 or 1, in seconds of
    ``time.perf_counter``.
    """

    def __init__(self, device: str = "cpu"):
        self.device = device
        self.trace: list[tuple[int, float, float]] | None = None
        self._pool = ThreadPoolExecutor(1, "beside")  # has no thread before it is used
        self._gates = Semaphore(0), Semaphore(0)
        self._going = [False, False]
        self._now, self._since = 0, 0.0

    @property
    def now(self) -> int | None:
        """Whose turn it is; None where nothing runs side by side."""
        return self._now if any(self._going) else None

    def run(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Both, to their ends. If one raises, the other goes on alone before that is raised here."""
        self._now, self._going, self._since = 0, [True, True], time.perf_counter()
        stream = torch.cuda.current_stream() if self.device == "cuda" else None

        watching = _python_dispatch._get_current_dispatch_mode_stack()  # instruments see one thread each

        def beside() -> None:
            self._gates[1].acquire()
            for mode in watching:
                _python_dispatch._push_mode(mode)
            with torch.cuda.stream(stream) if stream else nullcontext():
                try:
                    second()
                finally:
                    for _ in watching:
                        _python_dispatch._pop_mode()
                    self._leave()

        other = self._pool.submit(beside)
        try:
            first()
        finally:
            random = rng_state(self.device)
            self._leave()
            wait([other])
            set_rng_state(random)  # what the second drew, it drew again (recomputation)
        other.result()

    def hand_over(self) -> None:
        """Let the other one compute until it hands over in turn, or ends; called by whoever is about to wait."""
        me, other = self._now, 1 - self._now
        if not self._going[other]:
            return
        random = rng_state(self.device)
        self._give_to(other)
        self._gates[me].acquire()
        set_rng_state(random)

    def _leave(self) -> None:
        me, other = self._now, 1 - self._now
        self._going[me] = False
        if self._going[other]:
            self._give_to(other)
        else:
            self._note()

    def _give_to(self, other: int) -> None:
        self._note()
        self._now = other
        self._gates[other].release()

    def _note(self) -> None:
        if self.trace is not None:
            self.trace.append((self._now, self._since, time.perf_counter()))
        self._since = time.perf_counter()
