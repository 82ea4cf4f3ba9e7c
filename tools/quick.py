"""Run the tests that what was changed may break, the nearest first, for less than a minute.

Usage: python tools/quick.py [--seconds 50] [--files 40] [--since HEAD] [pytest's arguments]

Changed is what differs from the commit ``--since``, files that git does not know included. A test file is near when it
mirrors a changed module, farther when it imports one, and so on. Tests that start ranks, kernels or browsers are left to
`make test`, and so is what did not come to its turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pytest
from closure import ROOT, Modules

#: Fixtures of tests that take seconds each.
SLOW = {"ranks", "chromium", "browser", "site", "built_book"}
NEVER = ("tests/browser/", "tests/kernels/")


def changed(since: str) -> list[Path]:
    """Files that differ from the commit ``since``, relative to the project."""
    commands = (["git", "diff", "--name-only", since], ["git", "ls-files", "--others", "--exclude-standard"])
    said = [subprocess.check_output(command, cwd=ROOT, text=True) for command in commands]
    return [Path(line) for text in said for line in text.splitlines()]


def near(files: list[Path]) -> list[Path]:
    """The test files that need one of ``files``, those first that need the fewest steps of import to it."""
    modules = Modules()
    names = {path.relative_to(ROOT): name for name, path in modules.files.items()}
    steps = {names[file]: 0 for file in files if file in names}
    ring = set(steps)
    while ring:
        users = {
            name for name in modules.files if ring & {item.module for item in modules.imports(name)}
        } - steps.keys()
        steps |= dict.fromkeys(users, max(steps.values()) + 1)
        ring = users
    tests = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    distance: dict[Path, float] = {file: -1 for file in files if file in tests}
    tools = {f"test_{file.name}" for file in files if file.parts[0] == "tools"}
    for test in tests:
        text = (ROOT / test).read_text(encoding="utf-8")
        needed = [steps[name] for name in modules.needed_by(text) if name in steps]
        if test.parts[1] == "tools" and test.name in tools:
            needed.append(0)
        if needed:
            mirrored = any(
                test.name == f"test_{name.rpartition('.')[2]}.py" for name in steps if not steps[name]
            )
            distance.setdefault(test, 0 if mirrored else min(needed) + len(needed) / 1000)
    found = [test for test in distance if not str(test).startswith(NEVER)]
    return sorted(found, key=lambda test: (distance[test], test))


class Limit:
    """A plugin of pytest: leaves slow tests out, and stops when the time is over."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        """Leave out the tests that take long."""
        slow = [
            item
            for item in items
            if SLOW & {*getattr(item, "fixturenames", ())} or item.get_closest_marker("slow")
        ]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Look at the clock."""
        if time.monotonic() > self.end:
            pytest.exit("the time is over; `make test` runs the rest", returncode=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument(
        "--files", type=int, default=40, help="so many test files at most: to read them takes time, too"
    )
    parser.add_argument("--since", default="HEAD")
    options, rest = parser.parse_known_args()
    limit = Limit(options.seconds)
    files = changed(options.since)
    tests = near(files)
    print(
        f"{len(files)} files differ from {options.since}; {len(tests)} test files may say something about them"
    )
    tests = tests[: options.files]
    if not tests:
        return 0
    arguments = ["-q", "-x", "-p", "no:cacheprovider", *rest, *map(str, tests)]
    return int(pytest.main(arguments, plugins=[limit]))


if __name__ == "__main__":
    sys.exit(main())
