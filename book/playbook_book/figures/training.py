"""A curve that chapters share: the loss of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import colour, rc_parameters
from playbook_book.figures.axes import count_axis

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


def _title(axes: Any, title: str | None) -> None:
    if title:
        axes.set_title(title)
