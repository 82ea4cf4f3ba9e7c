"""The scale of the loss in float16, whose smallest number is 2^-24: what is smaller in a gradient becomes 0.

The loss is multiplied by a scale before backward, so that by the chain rule every gradient is; they are divided by it
before they are clipped (Micikevicius et al. 2017, arXiv 1710.03740, section 3.2). A scale that is too large shows: a
gradient overflows, and the norm of all of them is not finite. The norm is that of all ranks, so that all of them skip
the same steps, however a model is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playbook.errors import ConfigError

DYNAMIC = "dynamic"


@dataclass
class LossScale:
    """``value`` is the scale of the next step; with a ``window`` it is dynamic, without one it stays.

    A dynamic scale is halved by a step that overflows, and doubled by ``window`` steps in a row that do not: as
    torch.amp.GradScaler does it, whose first scale is 2^16 and whose window 2,000 steps.
    """

    value: float = 2.0**16
    window: int | None = 2000
    good_steps: int = 0

    @classmethod
    def named(cls, scale: float | str, initial: float, window: int) -> LossScale:
        """A scale that stays, or for "dynamic" one that begins at ``initial``."""
        return cls(initial, window) if scale == DYNAMIC else cls(float(scale), None)

    def update(self, norm: float) -> bool:
        """Whether a step whose gradients have this ``norm`` may be made; if not, it is to be skipped."""
        finite = math.isfinite(norm)
        if self.window is None:
            return finite
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good_steps == self.window:
            self.value, self.good_steps = self.value * 2, 0
        return finite


def check_scale(field: str, scale: object, other: str = "") -> None:
    """Raise ConfigError unless ``scale`` is a finite number above 0; ``other`` is what else would have been valid."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ConfigError(f"{field} is {scale!r}, but must be a finite number above 0{other}")
