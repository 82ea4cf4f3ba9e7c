"""Figures of overlap: a pass is as long as the longer of both, and techniques stand where their numbers are."""

from __future__ import annotations

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from playbook.figures import PALETTE
from playbook_book.figures.overlap import intensities, passes, prefetched


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


@given(st.floats(0.01, 10), st.integers(1, 12))
def test_a_pass_takes_the_longer_of_both_after_its_first_message(ratio, blocks):
    spans = prefetched(ratio, blocks)
    end = max(span.end for span in spans)
    assert end == pytest.approx(ratio + (blocks - 1) * max(1.0, ratio) + 1)
    for lane in ("compute", "network"):
        own = sorted((s for s in spans if s.lane == lane), key=lambda s: s.block)
        assert [s.block for s in own] == list(range(blocks))
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(own))
    arrived = {s.block: s.end for s in spans if s.lane == "network"}
    begun = {s.block: s.start for s in spans if s.lane == "compute"}
    assert all(arrived[block] <= begun[block] + 1e-9 for block in begun)
    # Two blocks in memory at most: a message starts when the block before it does, or later.
    sent = {s.block: s.start for s in spans if s.lane == "network"}
    assert all(sent[block] >= begun[block - 1] - 1e-9 for block in range(1, blocks))


def test_panels_draw_the_spans_and_hatch_what_waits():
    panels = passes([0.5, 2], blocks=3).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["ratio 0.5", "ratio 2"]
    for axes, ratio, waits in zip(panels, (0.5, 2), ([0.5], [2, 1, 1]), strict=True):
        drawn = [(bar.get_x(), bar.get_width()) for bar in axes.patches if not bar.get_hatch()]
        assert sorted(drawn) == sorted((s.start, s.end - s.start) for s in prefetched(ratio, 3))
        assert [bar.get_width() for bar in axes.patches if bar.get_hatch()] == pytest.approx(waits)
        assert sorted(text.get_text() for text in axes.texts) == ["0", "0", "1", "1", "2", "2"]


def test_techniques_and_machines_stand_at_their_numbers():
    axes = intensities(
        {"TP": ("tp", 1e3, 4e3), "DP": ("dp", 1e3, 1e5)},
        {"NVLink": {"A": 500.0, "B": 900.0}, "network": {"A": 6000.0, "B": 9000.0}},
    ).axes[0]
    bars = [line for line in axes.lines if line.get_linewidth() == 7]
    assert [(to_hex(line.get_color()), list(line.get_xdata())) for line in bars] == [
        (PALETTE["tp"], [1e3, 4e3]),
        (PALETTE["dp"], [1e3, 1e5]),
    ]
    lines = {line.get_label(): line.get_xdata()[0] for line in axes.lines if line.get_label()[0] != "_"}
    assert lines == {"A, NVLink": 500, "B, NVLink": 900, "A, network": 6000, "B, network": 9000}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["TP", "DP"]
    assert axes.get_xscale() == "log"
