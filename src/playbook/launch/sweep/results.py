"""The folder of a sweep: what its configurations share, and a line for each that has been tried."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbook._checks import check_fields, told
from playbook._interrupt import deferred
from playbook._json import write_json
from playbook._tables import read_file
from playbook.errors import ConfigError
from playbook.layout import FIELDS

Row = dict[str, str]
STATUSES = ("ok", "oom", "timeout", "failed", "refused")
PREDICTED = ("predicted_step_s", "predicted_peak_bytes")
#: How a configuration is run; what came of it (seconds of a step are the median and quartiles, bytes those of the rank
#: with the highest peak); what was predicted; and where, when and with what it was measured.
COLUMNS = (
    *("key", "model", "layout", *FIELDS, "gbs", "seq", "precision"),
    *("status", "reason", "step_s", "step_q1_s", "step_q3_s", "steps", "tokens_per_s_per_gpu", "peak_bytes"),
    *(*PREDICTED, "host", "date", "version", "commit"),
)


@dataclass(frozen=True)
class Spec:
    """What all configurations of a sweep share; it is kept in ``sweep.json``. Raises ConfigError for what cannot be.

    ``model`` are the fields of its shape, ``train`` further flags of ``playbook train``. Of ``steps`` optimizer steps the
    first ``warmup`` are not counted; a configuration is run ``repeat`` times.
    """

    model: dict[str, Any]
    seq: int = told(256, "tokens per sample")
    global_batch: int = told(16, "samples per optimizer step")
    steps: int = told(10, "optimizer steps of a run")
    warmup: int = told(
        3, "first steps that do not count: one allocates, in the next one memory is watched", least=2
    )
    repeat: int = told(1, "runs of each layout, whose steps count together")
    data: str | None = told(None, "any text file (default: Python's own documentation)", metavar="FILE")
    train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        if self.steps <= self.warmup:
            raise ConfigError(f"steps is {self.steps}, but must be more than the warmup of {self.warmup}")

    def key(self, layout: str) -> str:
        """Names a configuration: the same layout of the same sweep has the same key, and no other one has."""
        text = json.dumps([dataclasses.asdict(self), layout], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def settle(self, folder: Path) -> None:
        """Write ``sweep.json``, or raise ConfigError where the folder holds a sweep of something else."""
        path, mine = folder / "sweep.json", json.loads(json.dumps(dataclasses.asdict(self)))
        if not path.exists():
            write_json(path, mine)
        found = read_file(path, "sweep", ConfigError)
        for name, value in mine.items():
            theirs = found.get(name) if isinstance(found, dict) else None
            if theirs != value:
                raise ConfigError(
                    f"{name} is {_short(value)}, but {folder} holds a sweep with {_short(theirs)}: name another folder"
                )


def _short(value: Any) -> str:
    """A model by its name, where it has one; anything else as it is."""
    if isinstance(value, Mapping):
        return repr(value.get("name") or "a model without a name")
    return " ".join(value) or "none" if isinstance(value, list) else repr(value)


class Results:
    """``results.csv``: a line for each configuration; of several, as other versions wrote them, the last counts.

    Raises ConfigError for a file with other columns.
    """

    def __init__(self, folder: Path):
        self.path = folder / "results.csv"
        text = self.path.read_bytes().decode("utf-8", errors="replace") if self.path.exists() else ""
        # Whole lines alone: a writer may have been killed.
        header, *lines = [*csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))] or [list(COLUMNS)]
        if header != list(COLUMNS):
            raise ConfigError(f"{self.path} has other columns than a sweep's: name another folder")
        whole = (dict(zip(COLUMNS, line, strict=True)) for line in lines if len(line) == len(COLUMNS))
        self.rows: dict[str, Row] = {row["key"]: row for row in whole}
        self.write()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one line, which is on disk when this returns."""
        self.rows[row["key"]] = {column: _text(row.get(column)) for column in COLUMNS}
        self.write()

    def predict(self, key: str, fields: Mapping[str, Any]) -> None:
        """Put predictions into a line that is there already: they may have become better since."""
        known = {name: _text(fields[name]) for name in PREDICTED if fields.get(name) is not None}
        self.rows.get(key, {}).update(known)

    def write(self) -> None:
        """Write the file anew, whole at any moment. Ctrl-C comes before or after."""
        part = self.path.with_suffix(".part")
        with deferred(), part.open("w", encoding="utf-8", newline="") as file:
            lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            lines.writeheader()
            lines.writerows(self.rows.values())
            file.flush()
            os.fsync(file.fileno())
            part.replace(self.path)


def _text(value: Any) -> str:
    """A cell: in one line, so that a torn line is the last one."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One sweep at a time in a folder, or ConfigError. The lock ends with this process, however that does."""
    import fcntl

    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another sweep is running in {folder}: wait for it, or name another folder"
            ) from None
        yield
