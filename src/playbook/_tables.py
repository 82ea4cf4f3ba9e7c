"""Tables of settings that a user writes: inline JSON, TOML files, and the dataclasses built from them."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playbook._checks import unknown
from playbook.errors import PlaybookError

#: Bytes of the largest file that is read: a table of sizes is a thousand times smaller.
LARGEST_FILE = 2**20


def read_json(text: str, what: str, error: type[PlaybookError]) -> Any:
    """The value of JSON text; raises ``error`` with the line and column of a mistake."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno} column {problem.colno}"
        raise error(f"{what} is not valid at {where}: {problem.msg}") from None
    except RecursionError:
        raise error(f"{what} is nested too deeply") from None
    except ValueError:  # Python reads no integer of more than 4,300
        raise error(f"{what} holds a number of thousands of digits") from None


def read_file(path: Path, what: str, error: type[PlaybookError]) -> Any:
    """What a TOML file holds, or a JSON file; raises ``error`` with the file and the line of a mistake."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as problem:
        raise error(f"cannot read {what} file {str(path)!r}: {problem.strerror}") from None
    if len(raw) > LARGEST_FILE:
        raise error(f"{what} file {str(path)!r} is larger than 1 MiB: it should hold a few sizes")
    what = f"{what} file {str(path)!r}"
    try:
        text = raw.decode("utf-8")
        return read_json(text, what, error) if path.suffix == ".json" else tomllib.loads(text)
    except UnicodeDecodeError:
        raise error(f"{what} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{what} is not valid TOML: {problem}") from None
    except RecursionError:
        raise error(f"{what} is nested too deeply") from None
    except error:
        raise
    except ValueError:
        raise error(f"{what} holds a number of thousands of digits") from None


def check_keys(given: Mapping[str, Any], kind: type, what: str, error: type[PlaybookError]) -> None:
    """Raise for keys that the dataclass ``kind`` does not have."""
    names = [f.name for f in dataclasses.fields(kind)]
    for key in given:
        if key not in names:
            raise error(unknown(f"field of {what}", str(key), names))


def check_table(table: Any, kind: type, what: str, error: type[PlaybookError]) -> None:
    """Raise unless ``table`` is a mapping with all the fields that ``kind`` needs and no other."""
    if not isinstance(table, Mapping):
        raise error(f"{what} must be a table of sizes, got {table!r}")
    check_keys(table, kind, what, error)
    needed = (f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING)
    missing = [name for name in needed if name not in table]
    if missing:
        raise error(f"{what} needs {', '.join(missing)}")
