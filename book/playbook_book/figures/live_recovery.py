"""Live recovery drawn: what ranks do around a death, losses beside those of other runs, lost time over GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters
from playbook_book.figures.axes import seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.instruments.replica_spans import Deed

#: What is drawn of a rank: hue, strength, and what it is called.
LOOKS = {
    "starts": (PALETTE["launch"], 0.55, "new process starts"),
    "meets": (PALETTE["memory"], 0.8, "next quorum"),
    "heals": (PALETTE["communication"], 1.0, "receives the state"),
    "step": (PALETTE["compute"], 0.35, "step, committed"),
    "discarded": (PALETTE["idle"], 0.9, "step, discarded"),
}
HIGH = 0.7  # of a bar, in rows


def around_a_death(
    deeds: Sequence[Deed], replica_of: Mapping[int, int], before: float, after: float
) -> Figure:
    """A row for each rank, from so many seconds before a death to ``after`` seconds beyond the first step of who comes.

    Numbers in bars are steps.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    (death,) = (deed for deed in deeds if deed.kind == "dies")
    back = max(deed.end for deed in deeds if deed.kind == "heals")
    low, high = death.end - before, back + after
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.6 + 0.42 * len(replica_of)))
        for deed in deeds:
            look = "discarded" if deed.kind == "dies" else deed.kind
            hue, alpha, _ = LOOKS[look]
            start, end = max(deed.start, low), min(deed.end, high)
            if start >= end:
                continue
            axes.barh(
                -deed.rank, end - start, HIGH, start - death.end, color=hue, alpha=alpha, edgecolor="none"
            )
            axes.plot(
                [start - death.end] * 2,
                [-deed.rank - HIGH / 2, -deed.rank + HIGH / 2],
                color=INK,
                linewidth=0.5,
            )
            if deed.kind == "step" and end - start > 0.03 * (high - low):
                middle = (start + end) / 2 - death.end
                axes.text(middle, -deed.rank, str(deed.step), ha="center", va="center", fontsize=8)
        axes.plot(0, -death.rank, marker="x", color=INK, markersize=9, markeredgewidth=2.2, clip_on=False)
        axes.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        names = [f"rank {rank} (replica {replica})" for rank, replica in sorted(replica_of.items())]
        axes.set_yticks([-rank for rank in sorted(replica_of)], names)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(low - death.end, high - death.end)
        seconds_axis(axes.xaxis, "time since the death")
        handles = [Patch(color=hue, alpha=alpha, label=text) for hue, alpha, text in LOOKS.values()]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def beside(
    losses: Sequence[float], others: Mapping[str, Sequence[float]], members: Sequence[int], most: int
) -> Figure:
    """Losses of a run, and by how much those of others differ; above shaded steps fewer than ``most`` replicas stood."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(WIDTH, 3.9))
        upper.plot(range(len(losses)), losses, color=PALETTE["compute"], label="this run")
        for hue, (name, other) in zip(CYCLE[1:], others.items(), strict=False):
            upper.plot(range(len(other)), other, color=hue, linestyle="--", linewidth=1.2, label=name)
            off = [max(abs(a - b), 1e-9) for a, b in zip(losses, other, strict=True)]
            lower.plot(range(len(off)), off, color=hue, label=name)
        for axes in (upper, lower):
            for step, count in enumerate(members):
                if count < most:
                    axes.axvspan(step - 0.5, step + 0.5, color=PALETTE["idle"], alpha=0.3, linewidth=0)
        upper.set_ylabel("loss")
        upper.legend()
        lower.set(yscale="log", xlabel="step", ylabel="difference")
    return figure


def lost_by_gpus(
    curves: Mapping[str, Sequence[tuple[int, float]]], dots: Mapping[str, Sequence[tuple[int, float]]]
) -> Figure:
    """Shares of the time that are lost over numbers of GPUs, of useful ones: lines by a formula, dots simulated."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        for hue, (name, points) in zip(CYCLE, curves.items(), strict=False):
            axes.plot(*zip(*((n, 1 - share) for n, share in points), strict=True), color=hue, label=name)
            if name in dots:
                simulated = ((n, 1 - share) for n, share in dots[name])
                axes.plot(*zip(*simulated, strict=True), "o", color=hue, markersize=4.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks([gpus for gpus, _ in next(iter(curves.values()))][::2])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1024:g}k"))
        axes.set(yscale="log", ylim=(5e-4, 1), xlabel="GPUs (k: 1,024)", ylabel="lost share of the time")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        figure.legend(loc="outside lower center", ncols=2)
    return figure
