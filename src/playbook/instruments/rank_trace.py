"""A training step of one of many ranks as a trace of two lanes: what it computed, and what the collectives did meanwhile.

    trace = record_step(trainer.step, trainer.model)      # on every rank
    hidden(trace)                                          # overlap.py asks it questions

``torch.profiler`` sees thousands of operators; here they become a few spans. On the lane "compute" lie the passes, inside
them the blocks of the model, an instant for each gradient that is complete, and waiting ("wait"). On the lane
"communication" lies every collective from when it began to move data until it was done. Without a device, Gloo's threads
say so; with one, NCCL's kernels do, and compute is kernels, too.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from playbook.instruments.measure import synchronize
from playbook.instruments.profiled_step import ProfiledStep
from playbook.instruments.trace import Event, Lane, Trace


def record_step(step: Callable[[], object], model: nn.Module) -> Trace:
    """Run ``step()`` once and return what this rank did in it; a collective, if there are other ranks.

    Time 0 (µs) is when the first rank began, by the clocks of their machines, so that traces of ranks fit together. The
    spans "block 0", … are those of ``model.blocks``; "embedding" and "head" those of the modules of these names.
    """
    device = next(model.parameters()).device
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with _spans(model), _waits(), profile(activities=activities, record_shapes=True) as found:
        step()
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        profiled = ProfiledStep(json.loads(path.read_bytes()))
    return profiled.trace(origin=_agree(profiled.began, device))


def _agree(began: int, device: torch.device) -> int:
    """The earliest of all ranks' beginnings (ns)."""
    if not dist.is_initialized():
        return began
    first = torch.tensor([began], dtype=torch.int64, device=device)
    dist.all_reduce(first, dist.ReduceOp.MIN)
    return int(first.item())


@contextmanager
def _spans(model: nn.Module) -> Iterator[None]:
    """A profiler span around each forward pass of the parts of ``model``.

    The hooks come after those that are there already: what an engine does before a block (waiting for its weights) and
    after it is no part of the block.
    """
    named = {name: m for name, m in model.named_children() if name in ("embedding", "head")}
    named |= {f"block {i}": block for i, block in enumerate(getattr(model, "blocks", ()))}
    running: list[Any] = []

    def begin(name: str, *_: Any) -> None:
        running.append(record_function(f"forward of {name}"))
        running[-1].__enter__()

    def end(*_: Any) -> None:
        running.pop().__exit__(None, None, None)

    with ExitStack() as stack:
        for name, module in named.items():
            stack.callback(module.register_forward_pre_hook(partial(begin, name)).remove)
            stack.callback(module.register_forward_hook(end, prepend=True).remove)
        yield


@contextmanager
def _waits() -> Iterator[None]:
    """A profiler span around every wait for a collective: PyTorch itself does not tell when a thread only waits."""
    original = dist.Work.wait

    def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
        with record_function("wait"):
            return original(work, *args, **kwargs)

    setattr(dist.Work, "wait", wait)  # noqa: B010 - a method of a class of C++
    try:
        yield
    finally:
        setattr(dist.Work, "wait", original)  # noqa: B010


def together(traces: list[Trace]) -> Trace:
    """The traces of all ranks on their common time axis; lanes are called "rank 0 · compute" and so on."""
    firsts = list(itertools.accumulate((len(trace.lanes) for trace in traces), initial=0))
    lanes = [
        Lane(f"rank {rank} · {lane.name}", lane.kind)
        for rank, trace in enumerate(traces)
        for lane in trace.lanes
    ]
    events = [
        Event(e.name, e.lane + first, e.start, e.duration, e.category, e.args)
        for first, trace in zip(firsts, traces, strict=False)
        for e in trace.events
    ]
    return Trace(lanes, events)
