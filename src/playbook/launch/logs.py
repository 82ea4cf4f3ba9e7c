"""Where the numbers of a run go: JSON lines, CSV or TensorBoard. Every record is on disk before the next step starts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from playbook._json import to_json
from playbook.errors import ConfigError

if TYPE_CHECKING:
    from playbook.training.trainer import Log


class JsonLog:
    """One JSON object a line: a header, one per step, and the outcome (finished, interrupted or failed).

    A loss or norm that is not finite is null: JSON has no other word for it.
    """

    def __init__(self, path: Path, more: bool = False):
        self.file = _open(path, more)

    def start(self, header: dict[str, Any]) -> None:
        self._write({"event": "start", **header})

    def step(self, record: dict[str, Any]) -> None:
        self._write({"event": "step", **record})

    def close(self, outcome: str) -> None:
        self._write({"event": outcome})
        self.file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self.file.write(to_json(record) + "\n")
        self.file.flush()


class CsvLog:
    """A header row and one row per step, for spreadsheets."""

    def __init__(self, path: Path, more: bool = False):
        self.headed = more and path.is_file() and path.stat().st_size > 0
        self.file = _open(path, more)
        self.writer: csv.DictWriter | None = None

    def start(self, header: dict[str, Any]) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        if self.writer is None:
            self.writer = csv.DictWriter(self.file, fieldnames=list(record))
            if not self.headed:
                self.writer.writeheader()
        self.writer.writerow(record)
        self.file.flush()

    def close(self, outcome: str) -> None:
        self.file.close()


class TensorBoardLog:
    """Scalars for ``tensorboard --logdir``; needs the ``tensorboard`` extra."""

    def __init__(self, path: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"log {str(path)!r} asks for TensorBoard, which is not installed: pip install tensorboard"
            ) from error
        self.writer = SummaryWriter(str(path))

    def start(self, header: dict[str, Any]) -> None:
        self.writer.add_text("run", f"```json\n{to_json(header, indent=1)}\n```")

    def step(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name != "step":
                self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()

    def close(self, outcome: str) -> None:
        self.writer.add_text("outcome", outcome)
        self.writer.close()


def check_new(path: str | Path) -> None:
    """Raise ConfigError for a log that is a file already: what it holds would be lost."""
    path = Path(path)
    if path.suffix and path.is_file() and path.stat().st_size:
        raise ConfigError(
            f"log {str(path)!r} exists already, and would be overwritten: give another name, or go on with --resume"
        )


def open_log(path: str | Path, more: bool = False) -> Log:
    """The log that the name asks for: ``*.jsonl`` / ``*.json``, ``*.csv``, or a folder for TensorBoard.

    With ``more`` it goes on where the file ends. Raises ConfigError when it cannot be written.
    """
    path = Path(path)
    if path.suffix in (".jsonl", ".json"):
        return JsonLog(path, more)
    if path.suffix == ".csv":
        return CsvLog(path, more)
    if path.suffix or path.is_file():
        raise ConfigError(
            f"log is {str(path)!r}, but must end in .jsonl or .csv, or be a folder for TensorBoard"
        )
    return TensorBoardLog(path)


def read_json_log(path: str | Path) -> list[dict[str, Any]]:
    """The step records of a JSON log, whatever its outcome."""
    return [record for record in _records(Path(path)) if record["event"] == "step"]


def end_json_log(path: str | Path, outcome: str) -> None:
    """Write down how a run ended that could not say so itself. Logs of other kinds, and ended ones, stay as they are."""
    path = Path(path)
    if path.suffix not in (".jsonl", ".json") or not path.is_file():
        return
    known = _records(path)
    if known and known[-1]["event"] in ("start", "step"):
        _cut(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(to_json({"event": outcome}) + "\n")


def _records(path: Path) -> list[dict[str, Any]]:
    """All whole lines: whoever wrote the last may have been killed."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _cut(path: Path) -> None:
    """Take away a last line that is not whole: what comes next would be part of it."""
    with path.open("rb+") as file:
        last = 0
        for line in file:
            last += len(line) if line.endswith(b"\n") else 0
        file.truncate(last)


def _open(path: Path, more: bool) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if more and path.is_file():
            _cut(path)
        return path.open("a" if more else "w", encoding="utf-8", newline="")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"log {str(path)!r} cannot be written ({reason}): give a path in a folder you own"
        ) from error


class ManyLogs:
    """Several logs as one."""

    def __init__(self, logs: list[Log]):
        self.logs = logs

    def start(self, header: dict[str, Any]) -> None:
        for log in self.logs:
            log.start(header)

    def step(self, record: dict[str, Any]) -> None:
        for log in self.logs:
            log.step(record)

    def close(self, outcome: str) -> None:
        for log in self.logs:
            log.close(outcome)
