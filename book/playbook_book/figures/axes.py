"""Axes of matplotlib with numbers as people read them, and ticks at round values *of that unit*: 512 MiB, 1 GiB,
1.5 GiB; never 0.93 GiB."""

from __future__ import annotations

import math
from typing import Any

from playbook.figures.units import BINARY, SECONDS, format_bytes, format_count, format_seconds


def format_tokens(tokens: float) -> str:
    """Sequence lengths: ``4096`` → ``4k`` (multiples of 1024 are thousands to everybody in the field)."""
    for size, suffix in ((1024**2, "M"), (1024, "k")):
        if tokens >= size and tokens % size == 0:
            return f"{int(tokens // size)}{suffix}"
    return format_count(tokens) if tokens >= 10_000 else f"{tokens:.4g}"


def bytes_axis(axis: Any, label: str | None = None) -> None:
    """Ticks of ``axis`` (``axes.yaxis`` or ``axes.xaxis``, values in bytes) at round binary sizes."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_locator(_round_in(BINARY))
    axis.set_major_formatter(FuncFormatter(lambda value, _: "0" if value == 0 else format_bytes(value)))
    _label(axis, label)


def seconds_axis(axis: Any, label: str | None = None) -> None:
    """Ticks of ``axis`` (values in seconds) at round times of the unit that suits the range."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_locator(_round_in(SECONDS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: "0" if value == 0 else format_seconds(value)))
    _label(axis, label)


def log_seconds_axis(axis: Any, times: Any, label: str | None = None) -> None:
    """A logarithmic axis over ``times`` (s), ticks at 1 µs … 10 s, 1 min, 10 min …; if few, at 2 and 5 times too."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    low, high = min(times), max(times)
    ticks = [10.0**power for power in range(-9, 2)] + [60.0, 600.0, 3600.0, 36000.0, 360000.0]
    if high / low < 1000:
        ticks = [tick * m for tick in ticks for m in (1, 2, 5) if (tick, m) != (10.0, 5)]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low / 1.5 <= tick <= high * 1.5]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    _label(axis, label)


def log_bytes_axis(axis: Any, sizes: Any, label: str | None = None) -> None:
    """A logarithmic (base 2) axis over ``sizes`` (bytes), with at most seven ticks at powers of two."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=2)
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = next(step for step in (1, 2, 5, 10, 20) if (high - low) // step < 7)
    axis.set_major_locator(FixedLocator([2.0**p for p in range(low, high + 1) if p % step == 0]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    _label(axis, label)


def count_axis(axis: Any, label: str | None = None) -> None:
    """Ticks of ``axis`` written 1k, 2M, 3B."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    _label(axis, label)


def tokens_axis(axis: Any, lengths: Any, label: str = "sequence length (tokens)") -> None:
    """A logarithmic (base 2) axis over ``lengths``, of axes that hold their data: a tick per power of 2, or two."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=2)
    low, high = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    step = 1 if high - low <= 8 else 2
    axis.set_major_locator(FixedLocator([2.0**p for p in range(low, high + 1, step)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_tokens(value)))
    _label(axis, label)


def _label(axis: Any, label: str | None) -> None:
    if label:
        axis.set_label_text(label)


def _round_in(units: tuple[tuple[float, str], ...]) -> Any:
    """A tick locator at round multiples of the largest unit that fits the range shown."""
    from matplotlib.ticker import MaxNLocator

    class RoundInUnit(MaxNLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            top = max(abs(vmin), abs(vmax))
            unit = next((size for size, _ in reversed(units) if top >= size), units[0][0])
            return [tick * unit for tick in super().tick_values(vmin / unit, vmax / unit)]

    return RoundInUnit(nbins=6, steps=[1, 2, 2.5, 4, 5, 10])
