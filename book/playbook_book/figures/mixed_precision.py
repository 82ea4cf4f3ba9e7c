"""Number formats drawn, gradients against what FP16 can hold, and a dynamic loss scale over a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, WIDTH, rc_parameters
from playbook.precision.formats import Format

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {"sign": PALETTE["temporary"], "exponent": PALETTE["gradients"], "mantissa": PALETTE["parameters"]}


def title(form: Format) -> str:
    """What a format is called on the page."""
    return form.title.removeprefix("FP8 ") or form.name.upper()


def bits(formats: Sequence[Format]) -> Figure:
    """A row of boxes for each format: sign, exponent, mantissa; exponents begin below each other."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.5 + 0.38 * len(formats)))
        for row, form in enumerate(formats):
            kinds = ["sign"] + ["exponent"] * form.exponent + ["mantissa"] * form.mantissa
            for place, kind in enumerate(kinds):
                box = Rectangle((place + 0.06, row + 0.18), 0.88, 0.64, color=PARTS[kind], linewidth=0)
                axes.add_patch(box)
        axes.set(xlim=(0, max(form.bits for form in formats)), ylim=(len(formats), 0), xticks=[])
        axes.set_yticks([row + 0.5 for row in range(len(formats))], [title(form) for form in formats])
        _bare(axes)
        handles = [Patch(color=hue, label=kind) for kind, hue in PARTS.items()]
        axes.legend(handles=handles, loc="lower right")
    return figure


def ranges(formats: Sequence[Format]) -> Figure:
    """From the smallest positive number to the largest, as powers of two; subnormal numbers are pale."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.75 + 0.38 * len(formats)))
        for row, form in enumerate(formats):
            low, normal, high = (math.log2(x) for x in (form.min_positive, form.min_normal, form.max))
            axes.barh(row, high - normal, 0.55, normal, color=PARTS["exponent"])
            axes.barh(row, normal - low, 0.55, low, color=(PARTS["exponent"], 0.4))
            axes.text(high, row, f" {form.max:.3g}", va="center", fontsize=9)
            axes.text(low, row, f"{form.min_positive:.2g} ", va="center", ha="right", fontsize=9)
        axes.set_yticks(range(len(formats)), [title(form) for form in formats])
        axes.set(xlim=(-190, 165), ylim=(len(formats) - 0.5, -0.5), xlabel="power of two")
        axes.set_xticks(range(-144, 145, 48))
        _bare(axes)
        axes.grid(True, axis="x")
    return figure


def _bare(axes: Any) -> None:
    axes.grid(False, axis="y")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def resolution(xs: Sequence[float], rounded: Mapping[str, Sequence[float]]) -> Figure:
    """Numbers over what they are rounded to, a panel for each format."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        columns = 2
        rows = -(-len(rounded) // columns)
        figure, panels = plt.subplots(
            rows, columns, figsize=(WIDTH, 1.9 * rows), sharex=True, sharey=True, squeeze=False
        )
        for axes, (name, ys) in zip(panels.flat, rounded.items(), strict=False):
            axes.plot(xs, ys, ".", markersize=1.2, color=PARTS["mantissa"], rasterized=True)
            axes.set_title(f"{name}: {len(set(ys)):,} numbers")
        for axes in panels[-1]:
            axes.set_xlabel("number")
        for row in panels:
            row[0].set_ylabel("rounded to")
    return figure


def gradients(exponents: Sequence[float], shift: int) -> Figure:
    """How many gradients have which power of two, as they are and scaled by 2^``shift``, over FP16's range."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        bins = [0.5 * i for i in range(-120, 41)]
        looks = (("as they are", 0, PALETTE["idle"]), (f"times $2^{{{shift}}}$", shift, PALETTE["gradients"]))
        for name, by, hue in looks:
            axes.hist([e + by for e in exponents], bins, color=(hue, 0.75), label=name)
        axes.axvspan(-14, 15.999, color=PALETTE["parameters"], alpha=0.16, linewidth=0)
        axes.axvspan(-24, -14, color=PALETTE["parameters"], alpha=0.07, linewidth=0)
        top = axes.get_ylim()[1]
        axes.set_ylim(0, 1.2 * top)
        axes.text(1, 1.12 * top, "normal in FP16", ha="center", fontsize=9)
        axes.text(-19, 1.12 * top, "subnormal", ha="center", fontsize=9)
        axes.text(-42, 1.12 * top, "rounded to zero", ha="center", fontsize=9)
        axes.set(xlim=(-58, 18), xlabel="power of two", yticks=[], ylabel="gradients")
        axes.legend(loc="center left")
    return figure


def scales(values: Sequence[float], skipped: Sequence[bool]) -> Figure:
    """The loss scale of each step; steps that were skipped are marked."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.4))
        powers = [math.log2(value) for value in values]
        axes.step(range(len(powers)), powers, where="post", color=PALETTE["parameters"])
        marked = [step for step, over in enumerate(skipped) if over]
        axes.plot(
            marked,
            [powers[step] for step in marked],
            "x",
            color=PALETTE["gradients"],
            label="skipped",
            markeredgewidth=1.8,
        )
        axes.set(
            xlabel="step", ylabel="loss scale, power of two", ylim=(min(powers) - 0.6, max(powers) + 0.6)
        )
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        if marked:
            axes.legend()
    return figure


def falls(falls: Mapping[str, float], reference: float) -> Figure:
    """How far each run's loss fell, as a share of ``reference``, the fall in fp32."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.8 + 0.34 * len(falls)))
        shares = [100 * fall / reference for fall in falls.values()]
        for row, share in enumerate(shares):
            axes.barh(row, share, 0.6, color=PALETTE["parameters"] if share > 95 else PALETTE["gradients"])
            axes.text(max(share, 0), row, f" {share:.0f} %", va="center")
        axes.set_yticks(range(len(falls)), list(falls))
        axes.set(
            ylim=(len(falls) - 0.5, -0.5),
            xlim=(min(0, *shares) - 2, 118),
            xlabel="fall of the loss, share of fp32's, %",
        )
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        axes.tick_params(axis="y", length=0)
    return figure
