"""Steps that something is wrong with: a loss or a gradient far from those before, or not a number at all.

After OLMo 2 (2025, section 3) a step is a spike when its loss or the norm of its gradients is more than six standard
deviations above the mean of the 128 steps before. It is never made. What happens then is a policy: ``skip`` goes on with
the next batch; ``rewind`` goes back to the newest checkpoint and passes over the batches since, as PaLM did (Chowdhery et
al. 2022, section 5.1); ``stop`` ends the run.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import deque
from typing import Any

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.training.saving import Checkpoints
from playbook.training.trainer import Trainer

POLICIES = ("skip", "rewind", "stop")
#: Steps that a new one is compared with, how many there must be, and how many standard deviations are a spike.
WINDOW, LEAST, FAR = 128, 16, 6.0
#: After so many spikes in a row no other batch will help.
IN_A_ROW = 10


class SpikeError(ConfigError):
    """A run was stopped at a spike."""


class SpikeGuard:
    """Asked by a trainer of every step (``trainer.Guard``), and one of its logs: one on each rank.

    Losses and norms are the same on all ranks, and so is the answer. ``saves`` makes the checkpoints of a rewinding run.
    """

    def __init__(self, policy: str, trainer: Trainer, saves: Checkpoints | None = None):
        if policy not in POLICIES:
            raise ConfigError(unknown("on_spike", policy, POLICIES))
        if policy == "rewind" and saves is None:
            raise ConfigError(
                "on_spike is 'rewind', but there is no checkpoint folder: give --checkpoint DIR"
            )
        self.policy, self.trainer, self.saves = policy, trainer, saves
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.norms: deque[float] = deque(maxlen=WINDOW)
        self.found, self.in_a_row = "", 0

    def accepts(self, loss: float, norm: float) -> bool:
        """Whether a step of this loss and gradient norm is no spike, and is now one of those before the next."""
        self.found = _far("loss", loss, self.losses) or _far("gradient norm", norm, self.norms)
        if self.found:
            return False
        self.losses.append(loss)
        self.norms.append(norm)
        self.in_a_row = 0
        return True

    def start(self, header: dict[str, Any]) -> None:
        """A run begins."""

    def step(self, record: dict[str, Any]) -> None:
        """Do what the policy says of a spike. Raises SpikeError where the run ends with it."""
        if not self.found:
            return
        spike = f"step {record['step']} was a spike and not made: {self.found}"
        self.found, self.in_a_row = "", self.in_a_row + 1
        if self.policy == "stop":
            raise SpikeError(f"{spike}; the weights are those before it")
        if self.in_a_row > IN_A_ROW:
            raise SpikeError(f"{spike}; it is the {self.in_a_row}th in a row, and other batches do not help")
        done = "goes on with the next batch"
        if self.policy == "rewind":
            assert self.saves is not None
            count = self.in_a_row
            done = (
                f"goes back to step {self.saves.rewind()}, and on with the batches after {record['step']}'s"
            )
            self.in_a_row = count  # the checkpoint is from before
        if self.trainer.mesh is None or self.trainer.mesh.rank == 0:
            print(f"{spike}; {done}", file=sys.stderr, flush=True)

    def close(self, outcome: str) -> None:
        """Nothing is open."""

    def state(self) -> dict[str, Any]:
        """What a run that goes on must know for the same answers."""
        return {"losses": list(self.losses), "norms": list(self.norms), "in_a_row": self.in_a_row}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what another guard knew."""
        self.losses.clear()
        self.losses.extend(state["losses"])
        self.norms.clear()
        self.norms.extend(state["norms"])
        self.in_a_row = state["in_a_row"]


def _far(what: str, value: float, before: deque[float]) -> str:
    """Why a value is a spike after those before; empty if it is none."""
    if not math.isfinite(value):
        return f"its {what} is {value}"
    if len(before) < LEAST:
        return ""
    mean, deviation = statistics.fmean(before), statistics.pstdev(before)
    if value <= mean + FAR * deviation:
        return ""
    return (
        f"its {what} is {value:.4g}, more than {FAR:.0f} standard deviations ({deviation:.2g}) above the mean of the "
        f"{len(before)} before, {mean:.4g}"
    )
