"""Which exercises a reader has solved: a JSON file in the user's state directory, {"exercise": "date"}."""

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


def solved() -> dict[str, str]:
    """Dates (ISO) by exercise. Raises ConfigError for a file that holds something else."""
    file = path()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): str(date) for name, date in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{file} should hold the exercises that you solved, and cannot be read: {error}"
        ) from error


def note(name: str) -> None:
    """Keep that an exercise was solved today, unless it was before. Where that is impossible, say so and go on."""
    try:
        before = solved()
        if name in before:
            return
        file = path()
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        dates = {**before, name: datetime.date.today().isoformat()}
        fresh.write_text(json.dumps(dates, indent=1), encoding="utf-8")
        fresh.replace(file)
    except (OSError, ConfigError) as error:
        print(f"(not recorded: {error})", file=sys.stderr)
