"""What this machine has, as far as the standard library knows."""

from __future__ import annotations

import os


def system_memory_bytes() -> int | None:
    """Bytes of main memory, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
