"""Zero bubble drawn: a pass and the messages beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from playbook.figures.style import PALETTE, WIDTH, rc_parameters
from playbook_book.figures.axes import seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.instruments.interval import Interval


def pass_and_messages(panels: Mapping[str, Iterable[Interval]]) -> Figure:
    """Products and the messages beside them on one rank: a row of computing and waiting, a row of messages.

    ``panels`` maps a title to the spans of `instruments.pair_trace`.
    """
    import matplotlib.pyplot as plt

    looks = {
        "compute": (0, PALETTE["compute"], 0.6),
        "message": (1, PALETTE["communication"], 0.75),
        "waiting": (0, PALETTE["idle"], 0.35),
    }
    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(panels), 1, sharex=True, figsize=(WIDTH, 0.7 + 0.78 * len(panels)), squeeze=False
        )
        for axes, (title, spans) in zip(column[:, 0], panels.items(), strict=True):
            for span in spans:
                row, hue, strength = looks[span.kind]
                axes.barh(
                    row,
                    span.end - span.start,
                    0.72,
                    span.start,
                    color=(hue, strength),
                    edgecolor=hue,
                    linewidth=0.6,
                )
            axes.set_yticks([0, 1], ["this rank", "messages"], fontsize=9)
            axes.set_ylim(1.5, -0.5)
            axes.set_title(title, fontsize=10)
            axes.grid(False, axis="y")
        column[-1, 0].set_xlim(left=0)
        seconds_axis(column[-1, 0].xaxis, "time")
        handles = [plt.Rectangle((0, 0), 1, 1, color=(hue, strength)) for _, hue, strength in looks.values()]
        figure.legend(
            handles,
            ["multiplying", "message on its way", "waiting for it"],
            loc="outside lower center",
            ncols=3,
        )
    return figure
