"""How the function behind a widget answers: with its outputs, or with the control to change, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playbook.errors import PlaybookError


def answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` gives or, where it refuses, ``{"error": {"field", "message"}}``."""
    try:
        return work()
    except PlaybookError as error:
        return {"error": {"field": field_of(str(error)), "message": str(error)}}


def field_of(message: str) -> str:
    """The control that a refusal is about: messages start with its name, or with "unknown" and its name."""
    found = re.match(r"(?:unknown )?([\w.]+)", message)
    return found[1].lower() if found else ""
