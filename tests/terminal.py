"""Signals as in a terminal, whatever the tests were started under."""

from __future__ import annotations

import signal


def listen() -> None:
    """``preexec_fn`` of a process that a test asks to end: it obeys, as one that a user started does.

    What is ignored is inherited: SIGHUP under ``nohup``, SIGINT in a job that a script put into the background.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
