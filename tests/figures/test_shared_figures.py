"""The figures that chapters share draw the numbers they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import PALETTE, display
from playbook_book.figures.memory import memory_bars, memory_over_sequence, memory_timeline
from playbook_book.figures.training import loss_curve, running_mean

MIB = 2**20
TIMES = [0.0, 0.01, 0.02, 0.03]
SERIES = {"activations": [0, 40 * MIB, 20 * MIB, 0], "parameters": [64 * MIB] * 4}


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def texts(figure) -> str:
    return display(figure, alt="x").svg


def test_timeline_stacks_states_below_what_comes_and_goes():
    figure = memory_timeline(TIMES, SERIES)
    lower, upper = figure.axes[0].collections
    assert to_hex(lower.get_facecolor()[0]) == PALETTE["parameters"]
    assert to_hex(upper.get_facecolor()[0]) == PALETTE["activations"]
    assert upper.get_paths()[0].vertices[:, 1].max() == 104 * MIB


def test_timeline_names_peak_phases_and_device():
    svg = texts(
        memory_timeline(TIMES, SERIES, phases=[("forward", 0, 0.01)], capacity=128 * MIB, title="Step")
    )
    for words in ("peak 104 MiB", "forward", "device: 128 MiB", "Step", "time in the step", "20 ms"):
        assert words in svg


def test_a_long_timeline_stays_light_and_keeps_its_peak():
    times = [i * 1e-5 for i in range(20_000)]
    values = [MIB] * len(times)
    values[12_345] = 9 * MIB
    svg = texts(memory_timeline(times, {"activations": values}))
    assert "peak 9 MiB" in svg
    assert len(svg) < 80_000


def test_timeline_refuses_ragged_series():
    with pytest.raises(ValueError, match="'gradients' has 1 values for 4 times"):
        memory_timeline(TIMES, {"gradients": [1]})


def test_bars_add_up_and_say_what_does_not_fit():
    figure = memory_bars(
        {"A": {"parameters": 60 * MIB, "odd": 50 * MIB}, "B": {"parameters": 1}}, capacity=100 * MIB
    )
    ends = {round(bar.get_x() + bar.get_width()) for bar in figure.axes[0].patches}
    assert 110 * MIB in ends
    svg = texts(figure)
    assert svg.count("does not fit") == 1
    assert "110 MiB, does not fit" in svg


def test_timeline_over_something_else_than_seconds():
    svg = texts(memory_timeline([0, 500, 1000, 1500], SERIES, xlabel="allocations"))
    assert "allocations" in svg
    assert "1.4k" in svg
    assert "time in the step" not in svg


def test_memory_over_sequence_stacks_one_panel_per_model():
    lengths, gb = [1024, 2048, 4096], 10**9
    models = {
        name: {"activations": [n * gb, 2 * n * gb, 4 * n * gb], "parameters": [16 * gb] * 3}
        for n, name in ((1, "small"), (10, "large"))
    }
    formula = {name: [100 * gb] * 3 for name in models}
    figure = memory_over_sequence(lengths, models, dashed=("formula", formula), capacity=("80 GB", 80 * gb))
    small, large = figure.axes
    assert small.get_ylim()[1] == pytest.approx(20 * 1.08)  # the stack, not the dashed line, sets the scale
    assert large.get_ylim()[1] == pytest.approx(56 * 1.08)
    svg = texts(figure)
    for words in ("small", "large", "formula", "80 GB", "4k", "memory (GB)"):
        assert words in svg
    with pytest.raises(ValueError, match="m: 'x' has 1 values for 3 lengths"):
        memory_over_sequence(lengths, {"m": {"x": [1]}})


def test_running_mean_is_centred():
    assert running_mean([1, 2, 3, 4, 5], 3) == [1.5, 2, 3, 4, 4.5]
    assert running_mean([3.0], 10) == [3.0]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        running_mean([1.0], 0)


def test_loss_curve_counts_tokens():
    figure = loss_curve({"small batch": [5, 4, 3], "big batch": [5, 3]}, tokens_per_step=1000)
    last = [line.get_xdata()[-1] for line in figure.axes[0].lines]
    assert last == [3000, 3000, 2000, 2000]
    assert "tokens seen" in texts(figure)
