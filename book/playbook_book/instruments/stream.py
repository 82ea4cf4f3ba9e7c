"""Streams: queues of work that a device takes from while the host goes on.

On a GPU a kernel launch returns at once, work on one stream runs in order, work on two streams may overlap,
and the host learns that something has finished only by waiting for it. `HostStream` keeps the same rules with
one worker thread for a device, so that every lesson about launches, overlap and waiting can be seen, and
measured, on a laptop; `CudaStream` is the real thing behind the same few methods. `open_stream` returns what
the device has.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from playbook.errors import ConfigError
from playbook_book.instruments.cuda_stream import CudaStream
from playbook_book.instruments.recorder import Recorder, label_of


class StreamEvent(Protocol):
    """A mark in a stream: it happens when all work submitted before it is done."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end: Any) -> float: ...


class Task(Protocol):
    """Submitted work. ``result()`` waits for it: on a GPU that is what ``.item()`` and ``.cpu()`` do."""

    def result(self) -> Any: ...


class Stream(Protocol):
    """What `HostStream` and `CudaStream` have in common."""

    name: str

    def submit(
        self, function: Callable[..., Any], *args: Any, name: str | None = None, category: str = "compute"
    ) -> Task: ...
    def record_event(self) -> Any: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: Any) -> None: ...


def open_stream(device: Any = "cpu", name: str = "stream", recorder: Recorder | None = None) -> Stream:
    """A stream on ``device``: "cpu", "cuda", "cuda:1" or a ``torch.device``.

    With a ``recorder``, launches, executions and waits are written into it. Raises ``ConfigError`` for any
    other device.
    """
    kind = str(device).partition(":")[0]
    if kind == "cpu":
        return HostStream(name, recorder)
    if kind == "cuda":
        return CudaStream(name, recorder, device)
    raise ConfigError(f"device is {str(device)!r}; streams exist on cpu and cuda")


class _QuickSwitching:
    """While a stream is open, threads take turns every 50 µs instead of Python's usual 5 ms.

    Otherwise a host that goes on launching keeps the lock, and its "device" starts milliseconds late: a GPU
    starts within microseconds of the launch.
    """

    INTERVAL = 50e-6

    def __init__(self) -> None:
        self._lock, self._open, self._usual = threading.Lock(), 0, sys.getswitchinterval()

    def enter(self) -> None:
        with self._lock:
            if self._open == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self.INTERVAL, self._usual))
            self._open += 1

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                sys.setswitchinterval(self._usual)


_quick_switching = _QuickSwitching()


class HostEvent:
    """A mark in a `HostStream`."""

    def __init__(self) -> None:
        self._done, self._time = threading.Event(), 0

    def _fire(self) -> None:
        self._time = time.perf_counter_ns()
        self._done.set()

    def query(self) -> bool:
        """Has it happened?"""
        return self._done.is_set()

    def synchronize(self) -> None:
        """Wait until it happens."""
        self._done.wait()

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds from this mark to ``end``, as CUDA events count.

        Raises ``RuntimeError`` before both have happened."""
        if not (self.query() and end.query()):
            raise RuntimeError("both events must have happened: synchronize first")
        return (end._time - self._time) / 1e6


class HostTask:
    """Work submitted to a `HostStream`."""

    def __init__(self, stream: HostStream, name: str):
        self._stream, self._name, self._era = stream, name, stream._era
        self._done, self._value = threading.Event(), None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """Wait for the task and return what it returned; raises its error, or the one it was skipped for."""
        self._stream._wait(f"wait for {self._name}", self._done.wait)
        if self._error is not None:
            self._stream._told(self._error)
            raise self._error
        return self._value


class HostStream:
    """An asynchronous device made of one worker thread and a queue.

    ``submit`` returns before the work is done; tasks of one stream run in order; two streams run at the same
    time as far as the work lets go of Python's lock, as torch operators, file and socket reads do. PyTorch's
    grad mode belongs to a thread: a task that should not be differentiated says so itself.
    """

    def __init__(self, name: str = "stream", recorder: Recorder | None = None):
        self.name, self.recorder = name, recorder
        if recorder:
            recorder.lane("host")
            recorder.lane(name, "stream")
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None  # raised by a task, not yet by the host
        # An era ends when the host learns of an error. What was submitted in the era of the error is skipped,
        # also where the host learns of it before the worker has come that far.
        self._era, self._failed_era = 0, -1
        self._failure: BaseException | None = None
        self._closed = False
        self._worker = threading.Thread(target=self._work, name=f"playbook {name}", daemon=True)
        _quick_switching.enter()
        self._worker.start()

    def submit(
        self, function: Callable[..., Any], *args: Any, name: str | None = None, category: str = "compute"
    ) -> HostTask:
        """Queue ``function(*args)`` and return at once.

        After an error, tasks are skipped until `synchronize` or `Task.result` has raised it.
        """
        label = label_of(function, name, category)
        task = HostTask(self, label)
        start = self.recorder.now() if self.recorder else 0.0
        launched: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._put(lambda: self._run(task, function, args, category, launched))
        if self.recorder:
            launched.put(self.recorder.add(f"launch {label}", start, self.recorder.now(), category="launch"))
        # A real launch lets go of Python's lock. Without it an idle worker would start a while later.
        time.sleep(0)
        return task

    def record_event(self) -> HostEvent:
        """A mark behind everything submitted so far."""
        event = HostEvent()
        self._put(event._fire)
        return event

    def wait_event(self, event: HostEvent) -> None:
        """Hold the work submitted from now on until ``event``, usually of another stream, has happened.

        The host does not wait."""
        self._put(event.synchronize)

    def synchronize(self) -> None:
        """Wait until the stream is empty; raises the first error that a task raised, once."""
        self._wait(f"synchronize {self.name}", self.record_event().synchronize)
        self._raise_pending()

    def close(self) -> None:
        """Finish what is queued and end the worker thread; an error not yet raised is raised here."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._worker.join()
            _quick_switching.leave()
        self._raise_pending()

    def __enter__(self) -> HostStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # an error of the body says more than one that it caused
                raise

    def _put(self, job: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError(f"stream {self.name!r} is closed")
        self._queue.put(job)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()

    def _run(
        self,
        task: HostTask,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        category: str,
        launched: queue.SimpleQueue[int],
    ) -> None:
        """One task on the worker thread: execute, record, remember an error."""
        if task._era > self._failed_era:
            start = self.recorder.now() if self.recorder else 0.0
            try:
                task._value = function(*args)
            except BaseException as error:
                error.add_note(f"raised by task {task._name!r} on stream {self.name!r}")
                self._error = task._error = self._failure = error
                self._failed_era = task._era
            self._record(task._name, start, category, launched)
        else:
            task._error = self._failure
        task._done.set()

    def _record(self, name: str, start: float, category: str, launched: queue.SimpleQueue[int]) -> None:
        if self.recorder:
            kernel = self.recorder.add(name, start, self.recorder.now(), category=category, lane=self.name)
            self.recorder.link(launched.get(), kernel)

    def _wait(self, name: str, wait: Callable[[], object]) -> None:
        """Block the host, and write down that it stood idle."""
        if self.recorder:
            with self.recorder.span(name, category="idle"):
                wait()
        else:
            wait()

    def _told(self, error: BaseException) -> None:
        """The host has learnt of ``error``: it is not raised again, and new work runs."""
        if error is self._error:
            self._error, self._era = None, self._era + 1

    def _raise_pending(self) -> None:
        if (error := self._error) is not None:
            self._told(error)
            raise error
