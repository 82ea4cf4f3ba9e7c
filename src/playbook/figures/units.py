"""Numbers as people read them: bytes in powers of two, counts in thousands, times from ns to hours."""

from __future__ import annotations

import itertools
import math

BINARY = tuple((1024.0**power, unit) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
BYTES = tuple((1000.0**power, unit) for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB")))
DECIMAL = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T"))
SECONDS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))


def _rounded(value: float, digits: int) -> str:
    """About ``digits`` significant digits (whole numbers keep all theirs), no exponent, no trailing zeros."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, units: tuple[tuple[float, str], ...], digits: int) -> tuple[str, str]:
    """``value`` as digits and unit: the largest unit that leaves at least 1 *after rounding*.

    Rounding comes first so that 1023.9 KiB, which would print as 1024 KiB, is written 1 MiB.
    """
    size, unit = units[0]
    for (small, _), (large, name) in itertools.pairwise(units):
        if float(_rounded(abs(value) / small, digits)) * small >= large:
            size, unit = large, name
    return _rounded(value / size, digits).replace("-", "−"), unit


def format_bytes(size: float, digits: int = 3) -> str:
    """``1536`` → ``1.5 KiB``: binary multiples, as memory is allocated."""
    return " ".join(_scaled(size, BINARY, digits))


def format_size(size: float, digits: int = 3) -> str:
    """``1500`` → ``1.5 kB``: decimal multiples, as links send and datasheets count."""
    return " ".join(_scaled(size, BYTES, digits))


def format_count(count: float, digits: int = 3) -> str:
    """``1_300_000_000`` → ``1.3B``: parameters, tokens, operations."""
    return "".join(_scaled(count, DECIMAL, digits))


def format_seconds(seconds: float, digits: int = 3) -> str:
    """``0.00312`` → ``3.12 ms``."""
    return "0 s" if seconds == 0 else " ".join(_scaled(seconds, SECONDS, digits))
