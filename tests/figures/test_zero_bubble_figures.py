"""A pass and the messages beside it, drawn as they were recorded."""

import matplotlib.pyplot as plt

from playbook.figures import display
from playbook_book.figures.zero_bubble import pass_and_messages
from playbook_book.instruments.interval import Interval


def test_bars_are_the_spans() -> None:
    spans = [Interval("compute", 0.0, 2.0), Interval("message", 0.5, 1.5)]
    figure = pass_and_messages({"x": spans})
    assert [(b.get_x(), b.get_width()) for b in figure.axes[0].patches] == [(0, 2), (0.5, 1)]
    assert "multiplying" in display(figure, alt="x").svg
    plt.close("all")
