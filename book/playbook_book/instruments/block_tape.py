"""What every block of a model holds during a step: from forward, and from the second forward pass in backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from playbook.instruments.memory_timeline import MemoryTimeline
from playbook_book.segments import RecomputedBlocks


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the model, also those in segments."""
    top: Any = model.blocks
    return [
        block for part in top for block in (part.blocks if isinstance(part, RecomputedBlocks) else [part])
    ]


def _kind() -> str:
    return "again" if torch._C._current_graph_task_id() != -1 else "forward"


@dataclass(frozen=True)
class HeldActivations:
    """Bytes of activations alive after each birth or death of any storage.

    ``kept[i]`` is what the forward pass of block ``i`` left, ``other`` what the rest of the model did, ``again`` what a
    second forward pass brought back. Backward begins at event ``turn``.
    """

    kept: list[list[int]]
    other: list[int]
    again: list[int]
    turn: int

    @property
    def peak(self) -> int:
        return max(sum(at) for at in zip(*self.kept, self.other, self.again, strict=True))


def held_activations(model: nn.Module, loss: Callable[[], Tensor]) -> HeldActivations:
    """Run ``loss().backward()`` and note which block's activations are alive when."""
    blocks = _blocks(model)
    with MemoryTimeline(model) as timeline:

        def marks(label: str) -> Callable[..., None]:
            return lambda *_: timeline.mark(label) if _kind() == "forward" else None

        handles = [block.register_forward_pre_hook(marks(str(i))) for i, block in enumerate(blocks)]
        handles.append(blocks[-1].register_forward_hook(marks("after")))
        value = loss()
        timeline.mark("backward")
        value.backward()
        del value
        for handle in handles:
            handle.remove()
    return _attributed(timeline, len(blocks))


def _attributed(timeline: MemoryTimeline, blocks: int) -> HeldActivations:
    """Every activation to the block during whose forward pass it was born, or to the second forward pass."""
    events = len(timeline.curves().total)
    rows = {label: [0] * events for label in [*map(str, range(blocks)), "before", "after", "backward"]}
    for a in timeline.allocations:
        if a.category == "activations":
            label = next((name for event, name in reversed(timeline.marks) if event < a.born), "before")
            for event in range(a.born, events if a.died is None else a.died):
                rows[label][event] += a.bytes
    other = [sum(at) for at in zip(rows["before"], rows["after"], strict=True)]
    turn = next(event for event, name in timeline.marks if name == "backward")
    return HeldActivations([rows[str(i)] for i in range(blocks)], other, rows["backward"], turn)
