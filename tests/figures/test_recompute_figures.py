"""Figures of recomputation draw the numbers they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from playbook.figures import display
from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.model.transformer import Transformer
from playbook.shapes import load
from playbook_book.figures.recompute import (
    KINDS,
    Segments,
    held_over_step,
    memory_by_mode,
    peaks_over_segments,
    utilisation,
)
from playbook_book.instruments.block_tape import HeldActivations
from playbook_book.instruments.measured import SavedActivations
from playbook_book.segments import in_segments

MIB = 2**20
KEEPS = HeldActivations([[0, MIB, MIB, MIB, 0], [0, 0, 2 * MIB, 0, 0]], [0] * 5, [0] * 5, turn=2)
AGAIN = HeldActivations([[0, MIB, MIB, MIB, 0], [0] * 5], [0, 0, MIB, 0, 0], [0, 0, 0, MIB, 0], turn=2)


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_bands_are_stacked_to_the_peak_that_the_title_names():
    figure = held_over_step({"none": KEEPS, "full": AGAIN})
    upper = figure.axes[0].collections[1]
    assert upper.get_paths()[0].vertices[:, 1].max() == 3 * MIB
    assert to_hex(figure.axes[1].collections[-1].get_facecolor()[0]) == KINDS["again"]
    svg = display(figure, alt="x").svg
    for words in ("none: peak 3 MiB", "full: peak 2 MiB", "by the rest", "→ backward"):
        assert words in svg


def test_a_rest_of_nothing_is_not_in_the_legend():
    assert "by the rest" not in display(held_over_step({"none": KEEPS}), alt="x").svg


def test_best_segment_is_where_the_formula_is_least():
    case = Segments({1: 0, 2: 0, 4: 0}, layers=48, entrance=2, inside=24)
    assert case.best == 2
    assert case.formula(2) == 48 + 48 - 2
    assert case.formula(2) < min(case.formula(1.9), case.formula(2.1))


def test_formula_is_the_peak_that_is_measured_for_every_segment_size():
    shape = load("tiny").replace(layers=4, hidden=32, heads=2, kv_heads=2, head_dim=16, ffn=48)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    plain = Transformer(shape)
    with SavedActivations(plain, (tokens,)) as kept:
        plain.loss(tokens, tokens)
    entrance, inside, peaks = 4 * 16 * 32, kept.by_module(2)["blocks.1"], {}
    for size in (1, 2, 4):
        model = Transformer(shape)
        model.blocks = in_segments(model.blocks, size)
        with MemoryTimeline(model) as timeline:
            model.loss(tokens, tokens)[0].backward()
        peaks[size] = max(timeline.curves().bytes["activations"])
    case = Segments(peaks, 4, entrance, inside)
    assert peaks == {size: case.formula(size) for size in peaks}


def test_measured_peaks_are_drawn_in_units_of_all_inputs():
    figure = peaks_over_segments({"chain": Segments({1: 300, 2: 150, 4: 200}, 4, entrance=50, inside=50)})
    formula, dots, best = figure.axes[0].lines
    assert list(dots.get_ydata()) == [1.5, 0.75, 1.0]
    assert formula.get_ydata()[0] == pytest.approx(1.0)
    assert list(best.get_xdata()) == [2, 2]
    assert "blocks per segment" in display(figure, alt="x").svg


def test_a_bar_beyond_its_panel_is_cut_and_says_how_high_it_is():
    kinds = {"none": 9e11, "selective": 5e10, "full": 1e10}
    by_mode = {mode: {"parameters": 1e10, "activations": size} for mode, size in kinds.items()}
    figure = memory_by_mode({"small": {2048: by_mode}}, capacity=("80 GB device", 80e9))
    assert figure.axes[0].get_ylim()[1] == pytest.approx(92)  # the device is in view
    svg = display(figure, alt="x").svg
    for words in ("910↑", ">60<", ">20<", "80 GB device", "2k"):
        assert words in svg


def test_utilisation_bars_end_at_hfu():
    figure = utilisation({"none": (0.5, 0.5), "full": (0.4, 0.53)})
    needed, again = figure.axes[0].containers
    assert [b.get_width() for b in needed] == [0.5, 0.4]
    assert again[1].get_x() + again[1].get_width() == pytest.approx(0.53)
    assert "MFU 40%, HFU 53%" in display(figure, alt="x").svg
