"""nbval with ``--built``: what `make book` has run is not run a second time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nbval.plugin import IPyNbFile
from replay import Built


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--built",
        action="store_true",
        help="check what make book has run, and run the rest",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Iterator[None]:
    found = yield
    if not parent.config.getoption("--built"):
        return found
    return [
        Built.from_parent(parent, path=file_path) if isinstance(f, IPyNbFile) else f
        for f in found
    ]
