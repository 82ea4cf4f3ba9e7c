"""``results.csv``: a line for each configuration that has been tried, kept whole whatever ends the sweep."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from playbook._interrupt import deferred
from playbook.errors import ConfigError
from playbook.layout import FIELDS

Row = dict[str, str]
STATUSES = ("ok", "oom", "timeout", "failed", "refused")
#: How a configuration is run; filled in before.
GIVEN = (*("key", "model", "layout"), *FIELDS, *("gbs", "seq", "precision"))
#: What came of it: seconds of a step are the median and quartiles, bytes those of the rank with the highest peak.
MEASURED = (
    *("status", "reason", "step_s", "step_q1_s", "step_q3_s", "steps", "tokens_per_s_per_gpu", "peak_bytes"),
)
PREDICTED = ("predicted_step_s", "predicted_peak_bytes")
COLUMNS = (*GIVEN, *MEASURED, *PREDICTED, "host", "date", "version", "commit")


class Results:
    """The table of a sweep's folder. Of several lines of one configuration the last counts."""

    def __init__(self, folder: Path):
        self.path = folder / "results.csv"
        self.rows: dict[str, Row] = {row["key"]: row for row in self._read()}
        self._rewrite()

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one line, which is on disk when this returns. Ctrl-C does not come in between."""
        cells = {column: _text(row.get(column)) for column in COLUMNS}
        with deferred(), self.path.open("ab", buffering=0) as file:
            file.write(_line(cells.values()))
            os.fsync(file.fileno())
            self.rows[cells["key"]] = cells

    def predict(self, key: str, fields: Mapping[str, Any]) -> None:
        """Write predictions into a line that is there already: they may have become better since."""
        if key in self.rows:
            self.rows[key] |= {
                name: _text(fields[name]) for name in PREDICTED if fields.get(name) is not None
            }

    def close(self) -> None:
        """Leave one line for each configuration."""
        with deferred():
            self._rewrite()

    def _read(self) -> Iterator[Row]:
        """All whole lines: whoever wrote the last one may have been killed."""
        if not self.path.exists():
            return
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
        header = next(lines, list(COLUMNS))
        if header != list(COLUMNS):
            raise ConfigError(f"{self.path} has other columns than a sweep's: name another folder")
        for line in lines:
            if len(line) == len(COLUMNS):
                yield dict(zip(COLUMNS, line, strict=True))

    def _rewrite(self) -> None:
        part = self.path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(_line(COLUMNS))
            for row in self.rows.values():
                file.write(_line(row[column] for column in COLUMNS))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)


def _line(values: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_text(value) for value in values])
    return text.getvalue().encode()


def _text(value: Any) -> str:
    """A cell: in one line, so that a torn line is the last one."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One sweep at a time in a folder. The lock ends with this process, however that does."""
    import fcntl

    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another sweep is running in {folder}: wait for it, or name another folder"
            ) from None
        yield
