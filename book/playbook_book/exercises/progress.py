"""Which exercises a reader has solved: a JSON file in the user's state directory, {"exercise": "date"}.

The pages of the built book write, and read, files of the same form.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

from playbook.errors import ConfigError


def path() -> Path:
    """The file that holds it."""
    import platformdirs  # only who keeps progress needs it

    return platformdirs.user_state_path("playbook") / "exercises.json"


def solved(file: Path | None = None) -> dict[str, str]:
    """Dates (ISO) by exercise, in ``file`` or for this user; none where there is no file. ConfigError for what else it
    holds."""
    file = file or path()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        for name, date in found.items():
            datetime.date.fromisoformat(date)
            if name.count(".") != 1:
                raise ValueError(f"{name!r} is no name of an exercise")
        return dict(found)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} should hold the exercises that you solved, and cannot be read: {error}"
        ) from error


def join(file: Path) -> tuple[int, int]:
    """Write into ``file``, which need not exist, and for this user what either of them has; of two dates the earlier one.

    Returns how many exercises were new for this user, and how many in the file. ConfigError where either cannot be read
    or written; then neither has changed, or the user's has all.
    """
    here, there = solved(), solved(file)
    both = {name: min(filter(None, (here.get(name), there.get(name)))) for name in {**here, **there}}
    try:
        if both != here:
            _write(path(), both)
        _write(file, both)
    except OSError as error:
        raise ConfigError(f"{error.filename or file} cannot be written: {error.strerror}") from error
    return len(both.keys() - here.keys()), len(both.keys() - there.keys())


def note(name: str) -> None:
    """Keep that an exercise was solved today, unless it was before. Where that is impossible, say so and go on."""
    try:
        before = solved()
        if name not in before:
            _write(path(), {**before, name: datetime.date.today().isoformat()})
    except (OSError, ConfigError) as error:
        print(f"(not recorded: {error})", file=sys.stderr)


def _write(file: Path, dates: dict[str, str]) -> None:
    """A file that is whole, or as it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(json.dumps(dates, indent=1) + "\n", encoding="utf-8")
    fresh.replace(file)
