"""What subcommands share: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """A line for people, on stderr, at once."""
    print(text, file=sys.stderr, flush=True)
