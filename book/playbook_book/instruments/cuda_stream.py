"""A CUDA stream behind the methods of `playbook_book.instruments.stream.HostStream`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from playbook_book.instruments.recorder import Recorder, label_of

#: Of each recorder and device one moment on both clocks: a mark, and the host's microseconds.
_Origin = tuple[Any, float]
_origins: WeakKeyDictionary[Recorder, dict[Any, _Origin]] = WeakKeyDictionary()


def _origin(recorder: Recorder, device: Any, mark: Callable[[], Any]) -> _Origin:
    """The moment from which all streams of ``device`` count. ``mark`` is a mark in one of them that is empty.

    The host learns some microseconds late that a mark has happened, each time others: streams with an origin each would
    seem to run side by side where one waits for the other.
    """
    found = _origins.setdefault(recorder, {})
    if device not in found:
        event = mark()
        event.synchronize()
        found[device] = event, recorder.now()
    return found[device]


class CudaTask:
    """Work submitted to a `CudaStream`."""

    def __init__(self, stream: CudaStream, value: Any):
        self._stream, self._value = stream, value

    def result(self) -> Any:
        """Wait for the stream and return what the function returned."""
        self._stream.synchronize()
        return self._value


class CudaStream:
    """A ``torch.cuda.Stream`` with the methods of `HostStream`; executions are timed with CUDA events.

    Memory of a tensor that another stream still reads must not be freed: keep a reference until both have
    synchronised (or call ``tensor.record_stream``).
    """

    def __init__(self, name: str = "stream", recorder: Recorder | None = None, device: Any = "cuda"):
        import torch

        self.name, self.recorder = name, recorder
        self.stream = torch.cuda.Stream(device)
        self._pending: list[tuple[str, str, Any, Any, int]] = []
        if recorder:
            recorder.lane("host")
            recorder.lane(name, "stream")
            self._origin, self._origin_us = _origin(recorder, self.stream.device, self._mark)

    def submit(
        self, function: Callable[..., Any], *args: Any, name: str | None = None, category: str = "compute"
    ) -> CudaTask:
        """Call ``function(*args)`` with this stream current: its kernels are queued here."""
        import torch

        if self.recorder is None:
            with torch.cuda.stream(self.stream):
                return CudaTask(self, function(*args))
        label = label_of(function, name, category)
        start, before = self.recorder.now(), self._mark()
        with torch.cuda.stream(self.stream):
            value = function(*args)
        after = self._mark()
        launch = self.recorder.add(f"launch {label}", start, self.recorder.now(), category="launch")
        self._pending.append((label, category, before, after, launch))
        return CudaTask(self, value)

    def record_event(self) -> Any:
        """A mark behind everything submitted so far: a ``torch.cuda.Event`` with timing."""
        return self._mark()

    def wait_event(self, event: Any) -> None:
        """Hold the work submitted from now on until ``event`` has happened."""
        self.stream.wait_event(event)

    def synchronize(self) -> None:
        """Wait until the stream is empty; CUDA errors surface here."""
        if self.recorder is None:
            self.stream.synchronize()
            return
        with self.recorder.span(f"synchronize {self.name}", category="idle"):
            self.stream.synchronize()
        self._collect(self.recorder)

    def close(self) -> None:
        """Finish what is queued."""
        self.synchronize()

    def __enter__(self) -> CudaStream:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()

    def _mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def _collect(self, recorder: Recorder) -> None:
        """Turn the pairs of CUDA events into executions on the host's clock."""
        for label, category, before, after, launch in self._pending:
            start, end = (self._origin_us + 1e3 * self._origin.elapsed_time(mark) for mark in (before, after))
            recorder.link(launch, recorder.add(label, start, end, category=category, lane=self.name))
        self._pending.clear()
