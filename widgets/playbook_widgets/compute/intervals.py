"""How often to save a checkpoint, and what share of the time is then useful: goodput.

Failures come at random, at a constant rate: the time from one to the next is exponentially distributed with mean
``mtbf``. A run works for ``interval`` seconds, stands still for ``save`` seconds while its state is saved, and so on. A
failure takes what was done since the last save, and ``restart`` seconds until training goes on from there; it may come
while a state is saved, or during a restart. The interval that loses least: Young 1974 (first order), Daly 2006 (higher
order), and exactly, from Daly's complete cost function, whose parts :func:`goodput` tells. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playbook._checks import check_positive
from playbook.errors import ConfigError

#: Beyond that many mean times between failures hardly any interval ends without one: e^700 is the largest float.
_HOPELESS = 700.0


@dataclass(frozen=True)
class Goodput:
    """Shares of the time, which add up to 1: training that stays, standing still, training done again, starting again."""

    useful: float
    saving: float
    lost: float
    restarting: float


def cluster_mtbf(device_mtbf: float, devices: int) -> float:
    """Mean time between failures of a run that any one of its ``devices`` ends, in the unit of ``device_mtbf``."""
    return _positive("device_mtbf", device_mtbf) / _positive("devices", devices)


def young(save: float, mtbf: float) -> float:
    """Young's interval, √(2·save·mtbf), from the end of a save to the start of the next; all in seconds."""
    return math.sqrt(2 * _positive("save", save) * _positive("mtbf", mtbf))


def daly(save: float, mtbf: float) -> float:
    """Daly's interval: Young's with two terms more, less the save; ``mtbf`` where a save takes twice that or longer."""
    x = _positive("save", save) / (2 * _positive("mtbf", mtbf))
    if x >= 1:
        return mtbf
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - save


def best_interval(save: float, mtbf: float) -> float:
    """The interval of the highest goodput, in seconds. A restart costs the same whatever it is, and is not asked for.

    With x = interval / mtbf and d = save / mtbf, the derivative of the goodput is zero where (1 − x)·e^(x + d) = 1.
    """
    d = _positive("save", save) / _positive("mtbf", mtbf)
    low, high = 0.0, 1.0
    while True:
        x = (low + high) / 2
        if x in (low, high):
            return x * mtbf
        low, high = (x, high) if math.log1p(-x) + x + d > 0 else (low, x)


def goodput(interval: float, save: float, restart: float, mtbf: float) -> Goodput:
    """Expected shares of the time, all arguments in seconds; ``restart`` may be 0.

    To get through s = interval + save seconds without a failure takes n = e^(s/mtbf) − 1 failed attempts on average, and
    mtbf·n seconds of trying; each failure costs mtbf·(e^(restart/mtbf) − 1) of starting again. So starting again takes
    the share 1 − e^(−restart/mtbf), whatever the interval is.
    """
    interval, save, mtbf = (
        _positive(name, value) for name, value in (("interval", interval), ("save", save), ("mtbf", mtbf))
    )
    trying = math.exp(-_positive("restart", restart) / mtbf) if restart else 1.0
    tried = (interval + save) / mtbf
    if tried > _HOPELESS:
        return Goodput(0.0, 0.0, trying, 1 - trying)
    attempt = trying * tried / max(tried, math.expm1(tried))  # the share of attempts that succeed
    useful = attempt * interval / (interval + save)
    return Goodput(useful, attempt - useful, trying - attempt, 1 - trying)


def _positive(name: str, value: float) -> float:
    return check_positive(name, value, ConfigError)
