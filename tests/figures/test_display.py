"""`display`: one SVG element of the page, the same bytes every time, never without words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import matplotlib.pyplot as plt
import pytest

from playbook.figures import PALETTE, display, use
from playbook.figures.style import INK, PAPER


def draw(height: float = 3.0):
    with matplotlib.rc_context():
        use()
        figure, axes = plt.subplots()
        axes.plot([0, 1, 2], [1, height, 2], marker="o", label="a & b", color=PALETTE["compute"])
        axes.fill_between([0, 1], [1, 1], edgecolor=PAPER, linewidth=1)
        axes.set(xlabel=r"time, $\alpha$ (ms)", ylabel="memory (GiB)", title="Bold title")
        axes.legend()
        return figure


def markup(**kw) -> str:
    return display(draw(), alt="A line that rises to 3 and falls to 2.", **kw)._repr_html_()


def test_is_one_well_formed_figure_with_words():
    root = ElementTree.fromstring(markup(caption="Less < more & so on."))
    assert root.tag == "figure"
    svg, caption = list(root)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "A line that rises to 3 and falls to 2."
    assert caption.text == "Less < more & so on."
    texts = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "memory (GiB)" in texts
    assert "Bold title" in texts


def test_same_figure_same_bytes_in_another_process():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import conftest, test_display; "
        "sys.stdout.write(test_display.markup())"
    )
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert there == markup() == markup()


def test_follows_the_theme_and_the_font_of_the_page():
    html = markup()
    assert INK not in html
    assert PAPER not in html
    assert "#000000" not in html
    assert "var(--pst-color-background" in html
    assert PALETTE["compute"] in html
    for style in re.findall(r"<text style=\"([^\"]*)\"", html):
        assert "DejaVu" not in style
        assert "font-size" in style


def test_styles_nothing_outside_itself():
    assert "<style" not in markup()


def test_ids_belong_to_the_figure():
    one = display(draw(3.0), alt="one")._repr_html_()
    two = display(draw(4.0), alt="two")._repr_html_()
    ids = [re.findall(r'\sid="([^"]+)"', text) for text in (one, two)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for text, own in zip((one, two), ids, strict=True):
        assert len(own) == len(set(own))
        assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)) <= {(i, "") for i in own} | {
            ("", i) for i in own
        }


def test_fits_a_narrow_page():
    svg = re.search(r"<svg[^>]*>", markup()).group()
    assert "viewBox" in svg
    assert "max-width:100%" in svg
    assert not re.search(r'\sheight="', svg)


def test_closes_the_figure():
    before = plt.get_fignums()
    markup()
    assert plt.get_fignums() == before


def test_older_shorthand_for_fonts_is_understood():
    from playbook.figures.inline import _follow_page

    text = "<text style=\"font: 700 10px 'DejaVu Sans', sans-serif; text-anchor: middle\">x</text>"
    assert (
        _follow_page(text) == '<text style="font-size: 10px; font-weight: 700; text-anchor: middle">x</text>'
    )


@pytest.mark.parametrize("alt", ["", "   ", None, 3])
def test_words_are_required(alt):
    with pytest.raises(ValueError, match="what the figure shows"):
        display(draw(), alt=alt)
    plt.close("all")


def test_only_figures_are_drawn():
    with pytest.raises(TypeError, match="matplotlib figure"):
        display([1, 2], alt="a list")
