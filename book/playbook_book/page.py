"""An answer that a reader of the built book gives in the page: the cell runs there. Standard library only."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Mapping
from typing import Any

from playbook.errors import PlaybookError
from playbook_book.exercises.grading import Verdict, check, line, told

CELL = "<your answer>"
MOST = 10_000  # characters that a page shows of what a cell prints
HINTS = {
    NameError: "A page runs this cell alone, without those above it: import or define what it needs.",
    ModuleNotFoundError: "A page has the modules that come with Python, and no others.",
}


class _Printed(io.StringIO):
    """What a cell prints, its beginning alone: a loop may print until it is stopped."""

    def write(self, text: str) -> int:
        if (left := MOST - self.tell()) >= 0:
            super().write(text if len(text) <= left else f"{text[:left]} …")
        return len(text)


def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What comes of the cell ``source``: what it prints and is told, as ``text``, whether it has ``solved`` the exercise
    ``name``, and the ``line`` that raised an error (0 for none)."""
    source, printed, number = str(inputs["source"]), _Printed(), 0
    said: list[str] = []
    solved: list[bool] = []

    def listen(name: str, verdict: Verdict) -> None:
        said.append(line(name, verdict))
        solved.append(verdict.right and name == inputs["name"])

    with contextlib.redirect_stdout(printed), told(listen):  # what is solved here, the page keeps
        try:
            exec(compile(source, CELL, "exec"), {"check": check, "__name__": "answer"})
        except BaseException as error:  # exit() as well: nothing that a cell raises is the page's own
            number, sentence = explain(error)
            hints = [hint for kind, hint in HINTS.items() if isinstance(error, kind)]
            said.append(" ".join([sentence, *hints]))
    text = "\n".join(filter(None, [printed.getvalue().rstrip(), *said]))
    return {"text": text, "solved": any(solved), "line": number}


def explain(error: BaseException, cell: str = CELL) -> tuple[int, str]:
    """The line at which an error came up in the ``cell`` (the file name that it was compiled with), 0 for none, and a
    sentence that says it."""
    words = str(error).strip()  # of ranks: their tracebacks, which end with what was raised
    text = words.splitlines()[-1] if "Traceback" in words else " ".join(words.split())
    raised = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == cell:
        return error.lineno or 0, f"Line {error.lineno} is not Python: {error.msg}."
    frames = traceback.extract_tb(error.__traceback__)
    last = max((i for i, frame in enumerate(frames) if frame.filename == cell), default=None)
    if last is None:
        return 0, raised
    number = frames[last].lineno or 0
    if isinstance(error, PlaybookError):
        return number, f"Line {number}: {text}"
    if any(
        frame.name == "check" for frame in frames[last + 1 :]
    ):  # it was not the reader's code that stopped
        return number, f"The check in line {number} cannot use what it was given ({raised})."
    return number, f"Line {number} raised {raised}."
