"""An answer that a reader of the built book gives in the page: the cell runs there. Standard library only."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Mapping
from typing import Any

from playbook_book.exercises.grading import check

CELL = "<your answer>"


def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the cell ``source`` prints, as ``text``, and whether it has ``solved`` the exercise ``name``."""
    printed, source = io.StringIO(), str(inputs["source"])
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, CELL, "exec"), {"check": _check, "__name__": "answer"})
        except Exception as error:
            print(_told(error, source))
    text = printed.getvalue().rstrip()
    return {
        "text": text,
        "solved": any(line.startswith(f"✓ {inputs['name']}: ") for line in text.split("\n")),
    }


def _check(name: str, answer: Any, *, record: bool = True) -> None:
    check(name, answer, record=False)  # what is solved here, the page keeps


def _told(error: Exception, source: str) -> str:
    """The error, and the line of the cell that raised it."""
    places = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == CELL]
    number = error.lineno if isinstance(error, SyntaxError) else places[-1] if places else None
    said = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    if number:
        said = f"line {number}: {source.splitlines()[number - 1].strip()}\n{said}"
    if isinstance(error, NameError):
        said += "\nA page runs this cell alone, without those above it: import or define what it needs."
    return said
