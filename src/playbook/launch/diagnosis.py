"""From what is left of a failed launch to one sentence: which rank failed first, and why."""

from __future__ import annotations

import linecache
import re
import signal
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbook.launch.job import Job
from playbook.launch.ranks import RankError, names

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+),? in (?P<function>.+)')
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
_TORCH_SOURCE = re.compile(r"\[/\S+:\d+\] ")  # where in torch's C++ an exception was made
_LIBRARIES = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
_PLUMBING = {"wrapper", "_wrapper", "inner"}  # decorators of torch.distributed around each collective


@dataclass(frozen=True)
class Evidence:
    """What was seen of a launch that did not end well."""

    errors: dict[int, dict[str, Any]]  # exceptions, the first one first
    exits: dict[int, int]  # how ranks ended, in that order
    stacks: dict[int, str]  # where the others were
    late: bool  # the time was up


@dataclass(frozen=True)
class CallSite:
    """Where a rank is: the line of the user's code, and the collective that it waits in, if any."""

    file: str
    line: int
    collective: str | None

    @property
    def text(self) -> str:
        source = linecache.getline(self.file, self.line).strip()
        return f"line {self.line} of {Path(self.file).name}" + (f", `{source}`" if source else "")


def explain(job: Job, seen: Evidence) -> RankError:
    """The error of the launch.

    A rank that died without a word comes first, because its peers' exceptions are about its absence; then the exception
    that was raised first; then time.
    """
    places = {rank: place for rank, stack in seen.stacks.items() if (place := locate(stack))}
    for rank, status in seen.exits.items():
        if rank not in seen.errors and (status != 0 or not job.path(rank, "value").exists()):
            return RankError(f"rank {rank} {_end(status)}", _crash(job, rank), rank)
    if not seen.errors:
        reason = _absent(job, places) or "nothing is known of where its ranks are"
        return RankError(f"not finished after {job.timeout:g} s: {reason}", _stacks(seen.stacks), None)
    rank, error = next(iter(seen.errors.items()))
    summary = _TORCH_SOURCE.sub("", error["summary"])
    if _TIMED_OUT.search(summary):
        for other, late in seen.errors.items():
            if _TIMED_OUT.search(late["summary"]) and (place := locate(late["traceback"], last=True)):
                places[other] = place
        if any(not place.collective for place in places.values()) or len(places) < job.ranks:
            stacks = _stacks(seen.stacks, error["traceback"])
            return RankError(f"{_absent(job, places)}; rank {rank} waited in vain: {summary}", stacks, rank)
    return RankError(f"rank {rank} failed: {summary}", error["traceback"], rank)


def locate(stack: str, last: bool = False) -> CallSite | None:
    """The place of a stack; the innermost frame comes first, as faulthandler has it, or ``last``, as in a traceback."""
    collective = None
    frames = list(_FRAME.finditer(stack))
    for frame in reversed(frames) if last else frames:
        file, line = frame["file"], int(frame["line"])
        if "/torch/distributed/" in file:
            collective = collective if frame["function"] in _PLUMBING else frame["function"]
        elif not any(file.startswith(root) for root in _LIBRARIES) and not file.startswith("<frozen"):
            if collective is None and ".wait(" in linecache.getline(file, line):
                collective = "wait"
            return CallSite(file, line, collective)
    return None


def _absent(job: Job, places: dict[int, CallSite]) -> str:
    """Who did not arrive, and where others wait for them; empty if nothing can be said."""
    waiting = {rank: place for rank, place in places.items() if place.collective}
    busy = {rank: place for rank, place in places.items() if not place.collective}
    ended = {rank for rank in range(job.ranks) if job.path(rank, "value").exists()}
    if unborn := set(range(job.ranks)) - set(job.pids()):
        return f"{names(unborn)} did not start"
    where = _where(waiting)
    if busy:
        who = " and ".join(f"rank {rank} is at {place.text}" for rank, place in sorted(busy.items()))
        return f"{names(busy)} did not arrive{where}: {who}" if waiting else who
    if ended and waiting:
        return f"{names(ended)} did not arrive{where}: {'it has' if len(ended) == 1 else 'they have'} ended"
    calls = (f"rank {rank} in {place.collective} at {place.text}" for rank, place in sorted(waiting.items()))
    return f"all wait: {', '.join(calls)}" if waiting else ""


def _where(waiting: dict[int, CallSite]) -> str:
    """`` at all_reduce, where ranks 0 and 1 wait``."""
    if not waiting:
        return ""
    calls = {place.collective for place in waiting.values()}
    call = f" at {calls.pop()}" if len(calls) == 1 else ""
    return f"{call}, where {names(waiting)} wait{'s' if len(waiting) == 1 else ''}"


def _end(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status} and without a result: something in it left at once, such as os._exit"


def _crash(job: Job, rank: int) -> str:
    """What Python's fault handler printed last, if the rank crashed in C code."""
    _, fatal, rest = job.output(rank).rpartition("Fatal Python error")
    return fatal + rest if fatal else ""


def _stacks(stacks: dict[int, str], traceback: str = "") -> str:
    """A traceback, and where the ranks without one were."""
    parts = [traceback.rstrip()] if traceback else []
    for rank, stack in sorted(stacks.items()):
        frames = [
            line for line in stack.splitlines() if "/playbook/launch/" not in line and "<frozen" not in line
        ]
        parts.append("\n".join([f"rank {rank} was here", *frames[1:]]))
    return "\n\n".join(parts)
