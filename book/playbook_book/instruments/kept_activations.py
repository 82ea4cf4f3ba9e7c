"""What a rank of a pipeline keeps for backward as its step goes on: a running count, and so its peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from playbook.model.linear import Group, Linear
from playbook.parallel.pipeline import Pipeline, Step
from playbook.schedules.actions import Action

if TYPE_CHECKING:
    from playbook.model.linear import Taken


class KeptActivations:
    """Counts what ``pipeline`` keeps after each of its actions, while the ``with`` block runs; each storage once.

    That is what autograd has saved in F and, from B to W, both factors of the weight gradients that are deferred. A
    storage counts for as long as anybody has it. Parameters, buffers and what a step is given are left out, and so are
    messages before they are used.

        with KeptActivations(engine.pipeline) as kept:
            engine.accumulate(...)
        kept.peak, kept.after  # bytes; [(action, bytes), …]
    """

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline
        self.after: list[tuple[Action, int]] = []
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._skip: dict[
            int, torch.UntypedStorage
        ] = {}  # held, so that none comes to the address of one that is gone

    @property
    def peak(self) -> int:
        """The most bytes that were kept after any action."""
        return max((held for _, held in self.after), default=0)

    def __enter__(self) -> KeptActivations:
        pipeline, deferred = self.pipeline, self.pipeline.deferred
        self._before: tuple[Any, Any, Any] = pipeline.run, pipeline.after, deferred.take
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self._hooks.__enter__()
        pipeline.run, pipeline.after, deferred.take = self._run, self._look, self._take  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        self.pipeline.run, self.pipeline.after, self.pipeline.deferred.take = self._before  # type: ignore[method-assign]
        self._hooks.__exit__(*error)

    def _run(self, step: Step) -> None:
        given = [*step.inputs, *step.targets, step.scale, step.seed, step.loss]
        given += [where for where in step.positions if isinstance(where, torch.Tensor)]
        model = self.pipeline.model
        self._parameters = [*model.parameters()]
        self._skip = {_key(t): t.untyped_storage() for t in [*given, *self._parameters, *model.buffers()]}
        self._before[0](step)

    def _look(self, action: Action) -> None:
        self._live = {key: (ref, size) for key, (ref, size) in self._live.items() if not ref.expired()}
        self.after.append((action, sum(size for _, size in self._live.values())))
        self._before[1](action)

    def _pack(self, t: Tensor) -> Tensor:
        self._note(t)
        return t.detach()  # without its graph: a saved output must not keep its own node alive

    def _take(self, layer: Linear | Group, dy: Tensor, x: Callable[[], Taken]) -> Tensor | None:
        if self.pipeline.deferred.collecting:
            self._note(dy)  # x was saved in F, or when backward computed it again
        return self._before[2](layer, dy, x)

    def _note(self, t: Tensor) -> None:
        storage = t.untyped_storage()
        if (key := _key(t)) in self._skip or key in self._live:
            return
        if any(_key(p) == key for p in self._parameters):  # ZeRO-3 has just gathered it
            self._skip[key] = storage
            return
        # While there is a weak reference, no other storage can come to the same address.
        self._live[key] = StorageWeakRef(storage), storage.nbytes()


def _key(t: Tensor) -> int:
    return t.untyped_storage()._cdata
