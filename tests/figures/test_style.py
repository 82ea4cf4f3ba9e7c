"""The palette is told apart by every reader and read on both pages; one source feeds Python and CSS."""

from __future__ import annotations

import itertools
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from colour_vision import VISIONS, contrast, difference, lab

from playbook.figures import PALETTE, colour, css_variables, use
from playbook.figures.style import DARK_PAGE, INK, LIGHT_PAGE, SETS


def test_difference_is_ciede2000():
    """Pairs 1, 7, 17 and 25 of Sharma, Wu & Dalal 2005, table 1."""
    pairs = [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ]
    for a, b, expected in pairs:
        assert difference(np.array(a, float), np.array(b, float)) == pytest.approx(expected, abs=2e-4)


def test_every_colour_is_shown_together_with_others():
    """What is in no set is never told apart from anything."""
    assert set().union(*SETS.values()) == set(PALETTE)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("members", SETS.values(), ids=SETS.keys())
def test_colours_shown_together_are_told_apart(members, vision):
    for a, b in itertools.combinations(members, 2):
        apart = difference(lab(PALETTE[a], vision), lab(PALETTE[b], vision))
        assert apart >= 12, f"{a} and {b} look alike under {vision}: ΔE {apart:.1f}"


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
@pytest.mark.parametrize("name", PALETTE)
def test_colours_read_on_both_pages(name, page):
    assert contrast(PALETTE[name], page) >= 3


def test_css_says_what_python_says():
    css = css_variables()
    assert css.startswith(":root {")
    for name, value in PALETTE.items():
        assert f"--pb-{name}: {value};" in css
    assert css_variables(".pb-widget").startswith(".pb-widget {")


def test_palette_needs_no_matplotlib():
    code = "import sys, playbook.figures; assert not {'matplotlib', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_colour_of_a_name_without_a_concept_comes_from_the_cycle():
    assert colour("optimizer", 3) == PALETTE["optimizer"]
    assert colour("run A", 0) != colour("run B", 1)
    assert colour("run A", 0) == colour("run G", 6)


def test_use_sets_the_style():
    with matplotlib.rc_context():
        use()
        figure, axes = plt.subplots()
        assert axes.xaxis.label.get_color() == INK
        assert not axes.spines["top"].get_visible()
        plt.close(figure)
