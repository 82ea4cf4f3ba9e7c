"""Figures of a step, of text and of batch sizes draw the numbers they are given."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from torch import nn

from playbook.figures import PALETTE, display
from playbook_book.batches import RUNS
from playbook_book.figures.batches import batch_schedules, tokens_against_steps
from playbook_book.figures.step import step_flow
from playbook_book.figures.text import shifted_tokens
from playbook_book.instruments.by_hand import Box


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def texts(figure) -> list[str]:
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def test_step_flow_numbers_passes_in_their_order_and_times_them():
    row = [
        Box(name, (nn.Linear(10, 7),), nn.Identity(), 0.01, 0.02) for name in ("embedding", "block 1", "head")
    ]
    figure = step_flow(row, optimizer_s=0.01)
    shown = texts(figure)
    assert [t for t in shown if t[:2] in ("F ", "B ")] == ["F 1", "B 6", "F 2", "B 5", "F 3", "B 4"]
    assert shown.count("77") == 3  # gradients: 10 · 7 weights and 7 biases each
    assert {"forward 30%", "backward 60%", "optimizer 10%"} <= set(shown)
    bars = figure.axes[1].patches
    assert [round(bar.get_x(), 3) for bar in bars] == [0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.09]
    assert to_hex(bars[0].get_facecolor()) == PALETTE["F"]
    assert to_hex(bars[3].get_facecolor()) == PALETTE["B"]
    assert to_hex(bars[6].get_facecolor()) == PALETTE["optimizer"]


def test_shifted_tokens_shows_what_is_invisible():
    shown = texts(shifted_tokens("a b\n", " b\nc"))
    assert shown[:8] == ["a", "␣", "b", "⏎", "␣", "b", "⏎", "c"]
    with pytest.raises(ValueError, match="3 characters, targets 2"):
        shifted_tokens("abc", "ab")


def test_batch_schedules_end_where_the_runs_end():
    figure = batch_schedules(RUNS)
    lines = figure.axes[0].lines
    for i, run in enumerate(RUNS.values()):
        seen, batch = lines[2 * i].get_data()
        assert seen[-1] == pytest.approx(run.tokens)
        assert batch[-1] == pytest.approx(run.last_batch)
        assert batch[0] >= run.stages[0].batch * 0.99
    assert set(RUNS) <= set(texts(figure))


def test_tokens_and_steps_stretch_the_same_losses():
    figure = tokens_against_steps({"4": [3.0, 2.0], "8": [3.0]}, {"4": 100, "8": 200})
    left, right = figure.axes
    assert list(left.lines[0].get_xdata()) == [100, 200]
    assert list(right.lines[0].get_xdata()) == [1, 2]
    assert list(left.lines[1].get_xdata()) == [200]
    assert display(figure, alt="x").svg
