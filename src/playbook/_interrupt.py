"""Ctrl-C: at once while there is nothing to put in order, and otherwise when everything is.

Python answers each Ctrl-C with an exception wherever the program happens to be. It gets lost where exceptions are
ignored, and imports have many such places: a run that was to be stopped would go on. It can separate two things that
belong together, such as a result and its line in the log. And the second one, from somebody impatient, hits the clean-up
that the first one has caused.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STATUS = 130  # what shells say of a command that Ctrl-C ended


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process, with one word. A signal that is ignored, or has a handler, stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again: there are results and logs to put in order."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(STATUS)


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
