"""What the steps of a trainer cost: the most memory that this rank ever had, and the bytes that it sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.instruments.memory_timeline import peak_bytes
from playbook.training.trainer import Trainer


class StepCosts:
    """Watches the steps of ``trainer`` from now on.

    ``peak_bytes`` is the most that this rank ever had, ``bytes_sent`` what it sent in one step, by axis of the mesh; of
    a method whose steps differ (``decentralized/methods.py``) on average over all steps until now.
    On CUDA every step is watched, for that is free there; elsewhere the second alone (the first has no optimizer state
    yet, unless it comes after a checkpoint, and every later one is like the second).
    """

    def __init__(self, trainer: Trainer):
        self.trainer, self.peak_bytes = trainer, 0
        self._counted: dict[str, int] = {}
        self._first, self._before = trainer.step_count, sum(self._own())
        self.second = min(trainer.step_count + 1, trainer.config.steps - 1)
        trainer.around = self._around

    def _own(self) -> list[int]:
        """What networks of replicas that send less have counted."""
        return [one.network.sent[0] for one in self.trainer.engine.sets if hasattr(one, "network")]

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Bytes that this rank sent in one step, by axis."""
        own, steps = self._own(), self.trainer.step_count - self._first
        return {"dp": round((sum(own) - self._before) / steps)} if own and steps else self._counted

    @contextmanager
    def _around(self, step: int) -> Iterator[None]:
        trainer, engine = self.trainer, self.trainer.engine
        second = step == self.second
        if not (trainer.device.type == "cuda" or second):
            yield
            return
        axes = traffic_groups(engine)
        count = CountBytes(axes)
        tracked = peak_bytes(trainer.model, trainer.optimizer, engine.tensors())
        with tracked as peak, count if second and axes else nullcontext():
            yield
        self.peak_bytes = max(self.peak_bytes, peak.bytes)
        if second and axes:
            self._counted = {axis: count[axis].total.sent for axis in axes if count[axis].total.calls}
