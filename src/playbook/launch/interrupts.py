"""Ctrl-C, taken note of at once and obeyed when everything is in order.

Python answers each Ctrl-C with an exception wherever the program happens to be. The second one, from somebody
impatient, hits the clean-up that the first one has caused, and what was to be ended goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C raises nothing; it yields a function that tells whether it came.

    Whoever learns of it raises ``KeyboardInterrupt``. Afterwards the handler of before is called, once. Python's own
    raises ``KeyboardInterrupt``.
    """
    before = signal.getsignal(signal.SIGINT)
    # Other threads have no handlers, and what the system does by itself needs no help.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    noted: list[tuple[Any, Any]] = []
    ended_early = False
    signal.signal(signal.SIGINT, lambda number, frame: noted.append((number, frame)))
    try:
        yield lambda: bool(noted)
    except KeyboardInterrupt:
        ended_early = True
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        before(*noted[0])
    if ended_early:
        raise KeyboardInterrupt
