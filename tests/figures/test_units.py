import matplotlib.pyplot as plt
import pytest

from playbook.figures import units
from playbook_book.figures.axes import (
    bytes_axis,
    format_tokens,
    log_bytes_axis,
    log_seconds_axis,
    seconds_axis,
    tokens_axis,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1023.9 * 1024, "1 MiB"),
        (1023 * 1024, "1023 KiB"),
        (80 * 2**30, "80 GiB"),
        (101.26 * 2**30, "101 GiB"),
        (-3 * 2**20, "−3 MiB"),
        (5000 * 2**50, "5000 PiB"),
    ],
)
def test_bytes(size, text):
    assert units.format_bytes(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (31_406_250_000, "31.4 GB"), (999_999, "1 MB"), (5e18, "5000 PB")],
)
def test_sizes_as_datasheets_count_them(size, text):
    assert units.format_size(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (12, "12"),
        (999, "999"),
        (999_999, "1M"),
        (1.3e9, "1.3B"),
        (8_030_261_248, "8.03B"),
        (15e12, "15T"),
    ],
)
def test_counts(count, text):
    assert units.format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3.12e-3, "3.12 ms"), (999.9e-6, "1 ms"), (1e-10, "0.1 ns"), (90, "1.5 min"), (7200, "2 h")],
)
def test_seconds(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("tokens", "text"), [(512, "512"), (4096, "4k"), (2**20, "1M"), (1000, "1000"), (30000, "30k")]
)
def test_tokens(tokens, text):
    assert format_tokens(tokens) == text


def ticks(axis) -> list[str]:
    axis.figure.canvas.draw()
    return [label.get_text() for label in axis.get_ticklabels()]


def test_byte_ticks_are_round_in_their_unit():
    figure, axes = plt.subplots()
    axes.plot([0, 1], [0, 3 * 2**30])
    bytes_axis(axes.yaxis, "memory")
    shown = ticks(axes.yaxis)
    assert {"1 GiB", "2 GiB", "3 GiB"} <= set(shown)
    assert axes.get_ylabel() == "memory"
    plt.close(figure)


def test_second_ticks_are_round_in_their_unit():
    figure, axes = plt.subplots()
    axes.plot([0, 0.012], [0, 1])
    seconds_axis(axes.xaxis)
    assert {"5 ms", "10 ms"} <= set(ticks(axes.xaxis)) or {"4 ms", "8 ms"} <= set(ticks(axes.xaxis))
    plt.close(figure)


def test_token_ticks_are_powers_of_two():
    figure, axes = plt.subplots()
    axes.plot([1024, 8192], [0, 1])
    tokens_axis(axes.xaxis, [1024, 8192])
    assert ticks(axes.xaxis) == ["1k", "2k", "4k", "8k"]
    plt.close(figure)


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ([1e-5, 0.03], ["10 µs", "100 µs", "1 ms", "10 ms"]),
        ([5, 5115], ["10 s", "1 min", "10 min", "1 h"]),
        ([0.0002, 0.003], ["200 µs", "500 µs", "1 ms", "2 ms"]),
    ],
)
def test_logarithmic_time_has_few_round_ticks(times, shown):
    figure, axes = plt.subplots()
    axes.plot([0, 1], times)
    log_seconds_axis(axes.yaxis, times, "time")
    assert ticks(axes.yaxis) == shown
    assert axes.get_yscale() == "log"
    plt.close(figure)


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([2**10, 2**22], ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"]),
        ([2**10, 2**30], ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"]),
    ],
)
def test_logarithmic_size_has_ticks_at_powers_of_two(sizes, shown):
    figure, axes = plt.subplots()
    axes.plot(sizes, [0, 1])
    log_bytes_axis(axes.xaxis, sizes)
    assert ticks(axes.xaxis) == shown
    plt.close(figure)
