"""How much Python a call takes, counted: seconds depend on what else the machine does, calls do not."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any


def calls(function: Callable[..., Any], *args: Any) -> int:
    """Calls of functions, Python's own ones included, while ``function`` runs. Two million are about a second."""
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
