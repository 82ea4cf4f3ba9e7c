"""From what is left of a failed launch to one sentence: which rank failed first, and why."""

from __future__ import annotations

import linecache
import re
import signal
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbook.launch.job import NOTHING_WRITTEN, Job
from playbook.launch.ranks import RankError, names

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+),? in (?P<function>.+)')
_HUNG_UP = re.compile(r"connection (closed|reset|refused)|broken pipe", re.IGNORECASE)
_NOBODY_CAME = re.compile(rf"timed? ?out|{_HUNG_UP.pattern}", re.IGNORECASE)
_TORCH_SOURCE = re.compile(r"\[/\S+:\d+\] ")  # where in torch's C++ an exception was made
_WHAT = re.compile(r"^\s*what\(\):\s*(.+)", re.MULTILINE)  # of a C++ exception that nobody caught
_OTHER_SIZE = re.compile(
    r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)"
)  # gloo's, of what it received
#: NCCL's watchdog: the group with what `Mesh` says of it, the collective, and how long it went on.
_WATCHDOG = re.compile(r"PG GUID [^(]*\(([^)]*)\) Rank \d+\].*OpType=(\w+).* ran for (\d+) milliseconds")
_LIBRARIES = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
_LAUNCHER = f"{Path(__file__).parent}/"
#: Which axis of a layout the library's files send messages along: gloo, unlike NCCL, says no word of it.
_AXES = {
    "tp": ("tensor", "regions", "sequence", "chunked"), "cp": ("context",), "ep": ("expert", "turns"),
    "pp": ("channels", "pipeline"), "dp": ("data", "zero", "zero3"),
}  # fmt: skip
_AXIS_OF = {f"{file}.py": axis for axis, files in _AXES.items() for file in files}
_PARALLEL = "/playbook/parallel/"
_PLUMBING = {"wrapper", "_wrapper", "inner"}  # decorators of torch.distributed around each collective


@dataclass(frozen=True)
class Evidence:
    """What was seen of a launch that did not end well."""

    errors: dict[int, dict[str, Any]]  # exceptions, the first one first
    exits: dict[int, int]  # how ranks ended, in that order
    stacks: dict[int, str]  # where the others were
    gone: set[int]  # ranks that were no more when the others were asked
    late: float  # the seconds that were up; 0 where ranks failed


@dataclass(frozen=True)
class CallSite:
    """Where a rank is: the line of the user's code, the collective that it waits in, if any, and along which axis."""

    file: str
    line: int
    collective: str | None
    axis: str | None = None

    @property
    def call(self) -> str:
        """``all_reduce along tp``."""
        return f"{self.collective} along {self.axis}" if self.axis else f"{self.collective}"

    @property
    def text(self) -> str:
        source, file = linecache.getline(self.file, self.line).strip(), Path(self.file)
        # A kernel gives a cell's code a file that is called by a number.
        name = "a cell" if file.parent.name.startswith("ipykernel_") else file.name
        return f"line {self.line} of {name}" + (f", `{source}`" if source else "")


def explain(job: Job, seen: Evidence) -> RankError:
    """The error of the launch.

    A rank that died without a word comes first, because its peers' exceptions are about its absence; then the exception
    that was raised first; then time.
    """
    for rank, status in seen.exits.items():
        if rank not in seen.errors and (status != 0 or not job.path(rank, "value").exists()):
            crash = _crash(job, rank, status)
            return RankError(f"rank {rank} {_end(status)}{_reason(crash)}", crash, rank)
    places = {rank: place for rank, stack in seen.stacks.items() if (place := locate(stack))}
    if not seen.errors:
        nothing = "all ranks have returned, but the process that started them does not say that they ended"
        reason = _absent(job, seen, places) or _all_wait(places) or nothing
        return RankError(f"not finished after {seen.late:g} s: {reason}", _stacks(seen.stacks), None)
    rank, error = _first(seen.errors)
    summary = _TORCH_SOURCE.sub("", error["summary"])
    if absent := _missed(job, seen, rank, places):
        stacks = _stacks(seen.stacks, error["traceback"])
        return RankError(f"{absent}; rank {rank} waited in vain: {summary}", stacks, rank)
    return RankError(f"rank {rank} failed: {summary}", error["traceback"], rank)


def locate(stack: str, last: bool = False) -> CallSite | None:
    """The place of a stack; the innermost frame comes first, as faulthandler has it, or ``last``, as in a traceback.

    The launcher's own line where none of the user's code is on the stack.
    """
    collective, own = None, None
    frames = list(_FRAME.finditer(stack))
    frames = frames[::-1] if last else frames
    for frame in frames:
        file, line = frame["file"], int(frame["line"])
        if "/torch/distributed/" in file:
            collective = collective if frame["function"] in _PLUMBING else frame["function"]
        elif file.startswith(_LAUNCHER):
            own = own or CallSite(file, line, collective)
        elif not any(file.startswith(root) for root in _LIBRARIES) and not file.startswith("<frozen"):
            if collective is None and ".wait(" in linecache.getline(file, line):
                collective = "wait"
            axes = (_AXIS_OF.get(f["file"].partition(_PARALLEL)[2]) for f in frames)  # innermost first
            return CallSite(file, line, collective, next(filter(None, axes), None) if collective else None)
    return own


def _first(errors: dict[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """The exception that was raised first, those about a peer's end last: gloo closes the connections of a rank that has
    waited too long before the rank knows of it."""

    def of_a_peer(error: dict[str, Any]) -> bool:
        place = locate(error["traceback"], last=True)
        return bool(_HUNG_UP.search(error["summary"]) and place and place.collective)

    return min(errors.items(), key=lambda item: of_a_peer(item[1]))


def _missed(job: Job, seen: Evidence, rank: int, places: dict[int, CallSite]) -> str:
    """Who did not arrive, if it is of this that ``rank`` failed in a collective; empty if not."""
    waited = {
        other: place
        for other, error in seen.errors.items()
        if _NOBODY_CAME.search(error["summary"]) and (place := locate(error["traceback"], last=True))
    }
    if rank not in waited or not waited[rank].collective:
        return ""
    if _HUNG_UP.search(
        seen.errors[rank]["summary"]
    ):  # not whoever is elsewhere has hung up, but who has ended
        ended = _returned(job, seen) | (seen.gone - seen.errors.keys())
        silent = job.pids().keys() - seen.stacks.keys() - seen.errors.keys() - seen.exits.keys() - ended
        if ended or not silent:
            return _ended(ended, {rank: waited[rank]})
    return _absent(job, seen, places | waited)


def _returned(job: Job, seen: Evidence) -> set[int]:
    """Ranks that have returned, and are no more."""
    return {rank for rank in range(job.ranks) if job.path(rank, "value").exists()} - set(seen.stacks)


def _absent(job: Job, seen: Evidence, places: dict[int, CallSite]) -> str:
    """Who did not arrive, and where others wait for them; empty if nothing can be said."""
    waiting = {rank: place for rank, place in places.items() if place.collective}
    ended = _returned(job, seen)
    if unborn := set(range(job.ranks)) - set(job.pids()):
        return f"{names(unborn)} did not start"
    why = {
        rank: _whereabouts(job, seen, rank, places.get(rank))
        for rank in range(job.ranks)
        if rank not in waiting and rank not in ended and rank not in seen.errors
    }
    if why:
        who = " and ".join(f"rank {rank} {reason}" for rank, reason in why.items())
        return f"{names(why)} did not arrive{_where(waiting)}: {who}" if waiting else who
    return _ended(ended, waiting) if waiting else ""


def _whereabouts(job: Job, seen: Evidence, rank: int, place: CallSite | None) -> str:
    if rank in seen.gone:
        return "has ended without a result: something in it left at once, such as os._exit"
    if job.path(rank, "value").exists():
        at = f", at {place.text}" if place and not place.file.startswith(_LAUNCHER) else ""
        return f"has returned but does not end: an exit handler or a thread goes on{at}"
    return f"is at {place.text}" if place else "did not say where it is: it is stopped, or blocks signals"


def _ended(ended: set[int], waiting: dict[int, CallSite]) -> str:
    if not ended:
        return ""
    return f"{names(ended)} did not arrive{_where(waiting)}: {'it has' if len(ended) == 1 else 'they have'} ended"


def _all_wait(places: dict[int, CallSite]) -> str:
    calls = (f"rank {rank} in {place.call} at {place.text}" for rank, place in sorted(places.items()))
    return f"all wait: {', '.join(calls)}" if places else ""


def _where(waiting: dict[int, CallSite]) -> str:
    """`` at all_reduce, where ranks 0 and 1 wait``."""
    if not waiting:
        return ""
    calls = {place.call for place in waiting.values()}
    return f" at {' and '.join(sorted(calls))}, where {names(waiting)} wait{'s' if len(waiting) == 1 else ''}"


def _end(status: int) -> str:
    if status < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"was killed by {known.get(-status, f'signal {-status}')}"
    if status == NOTHING_WRITTEN:
        return "failed and could not write down why: the disk is full, or it may write no files"
    return f"ended with status {status} and without a result: something in it left at once, such as os._exit"


def _crash(job: Job, rank: int, status: int) -> str:
    """What a rank printed last: the traceback that it could not leave, or of a crash in C code the exception of C++ and
    where Python's fault handler saw it."""
    words = (
        ["Traceback (most"] if status == NOTHING_WRITTEN else ["terminate called after", "Fatal Python error"]
    )
    output = job.output(rank)
    found = [start for word in words if (start := output.rfind(word)) >= 0]
    return output[min(found) :] if found else ""


def _reason(crash: str) -> str:
    """The message of C++'s exception, and in words what gloo's says of sizes and NCCL's of time."""
    if not (found := _WHAT.search(crash)):
        return ""
    what = _TORCH_SOURCE.sub("", found[1])
    if sizes := _OTHER_SIZE.search(what):
        came, expected = (int(size) for size in sizes.groups())
        return (
            f": a message of {came:,} bytes came where it waited for {expected:,}: ranks sent tensors of different "
            "shapes or dtypes, or called different collectives"
        )
    if late := _WATCHDOG.search(what):
        along = "" if late[1] in ("", "default_pg", "undefined") else f" along {late[1]}"
        seconds = int(late[3]) / 1000
        return f": it was in {late[2]}{along} for {seconds:g} s, for which another rank did not arrive"
    return f": {what}"


def _stacks(stacks: dict[int, str], traceback: str = "") -> str:
    """A traceback, and where the ranks without one were."""
    parts = [traceback.rstrip()] if traceback else []
    for rank, stack in sorted(stacks.items()):
        frames = [
            line for line in stack.splitlines() if "/playbook/launch/" not in line and "<frozen" not in line
        ]
        parts.append("\n".join([f"rank {rank} was here", *frames[1:]]))
    return "\n\n".join(parts)
