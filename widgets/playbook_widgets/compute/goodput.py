"""The goodput widget: one pure function from how often a run fails and saves to what its time goes to.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``: ``{"gpus": 16384, "save": 60}``. The shares and intervals are ``estimates.goodput``'s.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playbook._checks import typed_int
from playbook.errors import ConfigError
from playbook_widgets.compute.intervals import Goodput, best_interval, cluster_mtbf, daly, goodput, young
from playbook_widgets.compute.refusals import answered

#: What a control shows when nothing is set; times in seconds, the mean time between failures of one GPU in hours: Llama
#: 3 405B was interrupted 419 times in 54 days on 16,384 (arXiv 2407.21783, section 3.3.4).
DEFAULTS: dict[str, int] = {"gpus": 16384, "mtbf": 50_677, "save": 60, "restart": 600, "every": 3600}
#: The least and the most of each number.
LIMITS = {
    "gpus": (1, 1_000_000),
    "mtbf": (100, 10_000_000),
    "save": (1, 7200),
    "restart": (0, 86_400),
    "every": (1, 604_800),
}
#: The parts of the time, in the order in which they are drawn.
PARTS = {
    "useful": "training that stays",
    "saving": "standing still to save",
    "lost": "training that is lost",
    "restarting": "starting again",
}
#: Intervals of the curve, two for each doubling.
CURVE = [2 ** (k / 2) for k in range(4, 39)]


@dataclass(frozen=True)
class GoodputSetting:
    """What a flat mapping of controls comes to: all in seconds, ``mtbf`` that of the whole run."""

    gpus: int
    mtbf: float
    save: int
    restart: int
    every: int

    def at(self, interval: float) -> Goodput:
        return goodput(interval, self.save, self.restart, self.mtbf)


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(*read(inputs)))


def read(inputs: Mapping[str, Any]) -> tuple[GoodputSetting, dict[str, int]]:
    """The setting that a flat mapping means, and its numbers; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the goodput widget")
    given = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    values = {
        name: typed_int(name, given[name], ConfigError, least=least, most=most)
        for name, (least, most) in LIMITS.items()
    }
    mtbf = cluster_mtbf(3600 * values["mtbf"], values["gpus"])
    return GoodputSetting(values["gpus"], mtbf, values["save"], values["restart"], values["every"]), values


def describe(setting: GoodputSetting, values: Mapping[str, int]) -> dict[str, Any]:
    """All that the page shows: the parts of the time, the curve over intervals, and what they come to in words."""
    now = setting.at(setting.every)
    best = best_interval(setting.save, setting.mtbf)
    marks = {
        "exact": best,
        "Daly": daly(setting.save, setting.mtbf),
        "Young": young(setting.save, setting.mtbf),
    }
    return {
        "values": dict(values),
        "parts": [{"name": name, "share": getattr(now, name), "text": PARTS[name]} for name in PARTS],
        "curve": [[interval, setting.at(interval).useful] for interval in CURVE],
        "chosen": [setting.every, now.useful],
        "marks": [
            {
                "name": name,
                "interval": interval,
                "useful": setting.at(interval).useful,
                "text": span(interval),
            }
            for name, interval in marks.items()
        ],
        "answer": _answer(setting, now, best),
        "machine": (
            f"{_gpus(setting.gpus)}: a failure every {span(setting.mtbf)} on average. The best interval: exactly "
            f"{span(best)}, by Daly {span(marks['Daly'])}, by Young {span(marks['Young'])}."
        ),
    }


def _answer(setting: GoodputSetting, now: Goodput, best: float) -> str:
    most = setting.at(best).useful
    said = f"A checkpoint every {span(setting.every)}: {now.useful:.1%} of the time is useful. "
    if most - now.useful < 0.001:
        said += "No other interval does better by a tenth of a per cent."
    else:
        said += f"The best interval is {span(best)}: {most:.1%}."
    idle = round((1 - now.useful) * setting.gpus)
    if idle > 1:
        said += f" What is lost is the work of {idle:,} GPUs."
    return said


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count:,} GPUs"


def span(seconds: float) -> str:
    """A time as one says it, to two or three digits: "4.2 min"."""
    for size, unit in ((365.25 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.995 * size or (unit in ("h", "min") and seconds >= size):
            return f"{seconds / size:.3g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s"
