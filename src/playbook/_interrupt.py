"""Ctrl-C before there is anything to put in order: leave at once.

Python answers Ctrl-C with an exception, which gets lost where exceptions are ignored; imports have many such places, and
a run that was to be stopped would go on.
"""

from __future__ import annotations

import os
import signal
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
