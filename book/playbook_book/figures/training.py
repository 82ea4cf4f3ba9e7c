"""Curves that chapters share: the loss of a run, and quantities over the sequence length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import colour, rc_parameters
from playbook.figures.units import bytes_axis, count_axis, tokens_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the ``window`` values centred on each one; fewer at the ends, so nothing lags or is lost.

    Raises ``ValueError`` for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    half = window // 2
    around = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in around]


def loss_curve(
    runs: Sequence[float] | Mapping[str, Sequence[float]],
    *,
    window: int | None = None,
    tokens_per_step: int | None = None,
    title: str | None = None,
) -> Figure:
    """Training loss per step: every value faint, its running mean on top.

    ``runs`` is one list of losses, or name → losses; the mean runs over ``window`` steps (a twentieth of the
    run when None). With ``tokens_per_step`` the x axis counts tokens seen,
    the fair axis when runs differ in batch size.
    """
    import matplotlib.pyplot as plt

    named = runs if isinstance(runs, Mapping) else {"loss": runs}
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        for i, (name, losses) in enumerate(named.items()):
            steps = [(n + 1) * (tokens_per_step or 1) for n in range(len(losses))]
            hue = colour(name, i)
            axes.plot(steps, losses, color=hue, alpha=0.35, linewidth=0.8)
            axes.plot(steps, running_mean(losses, window or max(1, len(losses) // 20)), color=hue, label=name)
        axes.set_ylabel("loss (nats per token)")
        count_axis(axes.xaxis, "tokens seen" if tokens_per_step else "step")
        axes.margins(x=0.01)
        if len(named) > 1:
            axes.legend()
        _title(axes, title)
    return figure


def lines_over_sequence(
    lengths: Sequence[int],
    series: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    in_bytes: bool = False,
    title: str | None = None,
) -> Figure:
    """One line per entry of ``series`` over sequence length, on a base-2 logarithmic x axis.

    ``lengths`` are tokens (positive). Lines end in their name, so that no legend has to be matched by colour;
    ``in_bytes`` writes the y axis in binary sizes. Raises ``ValueError`` when a series has another length.
    """
    import matplotlib.pyplot as plt

    for name, values in series.items():
        if len(values) != len(lengths):
            raise ValueError(f"series {name!r} has {len(values)} values for {len(lengths)} lengths")
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        for i, (name, values) in enumerate(series.items()):
            axes.plot(lengths, values, marker="o", markersize=4, color=colour(name, i), label=name)
        axes.set_ylabel(ylabel)
        axes.set_ylim(bottom=0)
        tokens_axis(axes.xaxis, lengths)
        if in_bytes:
            bytes_axis(axes.yaxis)
        _name_ends(axes, list(series.items()), lengths)
        _title(axes, title)
    return figure


def _name_ends(axes: Any, entries: list[tuple[str, Sequence[float]]], lengths: Sequence[int]) -> None:
    """Each line's name at its right end, pushed apart where ends crowd."""
    gap = 0.075 * axes.get_ylim()[1]
    below = float("-inf")
    for name, values in sorted(entries, key=lambda entry: entry[1][-1]):
        at = max(values[-1], below + gap)
        below = at
        axes.annotate(
            f" {name}",
            (lengths[-1], at),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
            fontsize=rc_parameters()["legend.fontsize"],
        )


def _title(axes: Any, title: str | None) -> None:
    if title:
        axes.set_title(title)
