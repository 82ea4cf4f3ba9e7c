"""Run a notebook that was handed in, and say how it is graded: ``python -m playbook_book.assignments.student JOB``.

``handed_in.py`` starts it, so that what a student wrote can be ended. JOB is a JSON file: the sources of ``cells``, which
of them to ``skip``, the ``limit`` in seconds of computing for one, and the descriptor ``out``, to which lines of JSON go.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from playbook_book.exercises.grading import Verdict, told
from playbook_book.page import explain

ASKED = re.compile(r'\bcheck\(\s*["\']([\w.-]+)["\']')
MAGIC = re.compile(r"^[%!].*$", re.M)


def read(source: str) -> str:
    """A cell as Python reads it: without IPython's own lines, whose places stay empty."""
    try:
        ast.parse(source)
    except SyntaxError:
        return "" if source.startswith("%%") else MAGIC.sub("", source)
    return source


def run(cells: list[str], skip: Iterable[int], limit: float, say: Any) -> None:
    """Run ``cells`` as one program, those aside that are to ``skip``, and ``say`` what happens, as dictionaries."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for i in sorted({*range(len(cells))} - {*skip}):
        say({"cell": i})
        graded: list[str] = []

        def listen(exercise: str, verdict: Verdict, graded: list[str] = graded) -> None:
            graded.append(exercise)
            hint = "" if verdict.right else verdict.text
            say({"exercise": exercise, "right": verdict.right, "hint": hint})

        name, source = f"<cell {i}>", read(cells[i])
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # Triton reads it
        # Its signal ends the process, after the same work on a busy machine as on an idle one.
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            with told(listen):
                exec(compile(source, name, "exec"), space)
        except BaseException as error:  # exit() as well: the other answers are graded all the same
            _, sentence = explain(error, name)
            for exercise in ASKED.findall(cells[i]):
                if exercise not in graded:
                    say({"exercise": exercise, "right": False, "hint": sentence})
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    say({"end": True})


def main(job: Path) -> None:
    given = json.loads(job.read_text(encoding="utf-8"))
    out = given.pop("out")
    os.register_at_fork(after_in_child=lambda: os.close(out))  # ranks that stay would keep it open
    with os.fdopen(out, "w", encoding="utf-8") as lines:

        def say(event: dict[str, Any]) -> None:
            print(json.dumps(event), file=lines, flush=True)

        run(**given, say=say)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
