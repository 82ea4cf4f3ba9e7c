"""What an exercise is, and how an answer is graded. Standard library only, as are graders until they are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.exercises import progress

#: A number to find, a function to write, or one with a bug to mend.
Kind = Literal["number", "function", "repair"]
#: Chapters with exercises, in the order of the book. Of each a module of that name grades the answers.
CHAPTERS = (
    "first-steps",
    "memory",
    "recomputation",
    "gradient-accumulation",
    "profiling",
    "collectives",
    "ring-all-reduce",
    "data-parallel",
    "zero",
    "decentralized",
    "communication-efficient",
    "fault-tolerance",
    "tensor",
    "sequence",
    "context",
    "pipeline",
    "zero-bubble",
    "expert",
    "five-dimensions",
    "overlap",
    "simulator",
    "best-configuration",
    "scaling-laws",
    "gpu-primer",
    "writing-kernels",
    "memory-access",
    "fused-kernels",
    "flash-attention",
    "mixed-precision",
    "fp8",
)


class NotYet(Exception):
    """Raised by a grader for an answer that is not right. Its text is what the reader is told: a hint."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: its name ("chapter.what"), what is asked for, and what grades an answer.

    ``grade`` returns what is worth saying about a right answer, and raises :class:`NotYet` for any other.
    """

    name: str
    kind: Kind
    title: str
    grade: Callable[[Any], str]

    @property
    def chapter(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, and what the reader is told."""

    right: bool
    text: str


#: Exercises by name, filled by the modules of the chapters as they are imported.
_FOUND: dict[str, Exercise] = {}


def exercise(name: str, kind: Kind, title: str) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Make a grader the one of the exercise ``name``."""

    def keep(grader: Callable[[Any], str]) -> Callable[[Any], str]:
        _FOUND[name] = Exercise(name, kind, title, grader)
        return grader

    return keep


def exercises(*chapters: str) -> dict[str, Exercise]:
    """Exercises of ``chapters`` (by default all) by name, in the order of the book. ConfigError for an unknown one."""
    for chapter in chapters or CHAPTERS:
        if chapter not in CHAPTERS:
            raise ConfigError(unknown("chapter with exercises", chapter, CHAPTERS))
        import_module(f"playbook.exercises.{chapter.replace('-', '_')}")
    return {name: one for name, one in _FOUND.items() if one.chapter in (chapters or CHAPTERS)}


def grade(name: str, answer: Any) -> Verdict:
    """The verdict on an answer. ``...``, or a function that raises NotImplementedError, is none yet.

    Raises ConfigError for an exercise that there is not. What a reader's function raises otherwise is not caught.
    """
    known = exercises(name.partition(".")[0])
    if name not in known:
        raise ConfigError(unknown("exercise", name, known))
    if answer is ...:
        return Verdict(False, "no answer yet: put yours in place of the three dots")
    try:
        return Verdict(True, known[name].grade(answer))
    except NotYet as hint:
        return Verdict(False, str(hint))
    except RuntimeError as error:  # ranks give the text of what they raised
        if not isinstance(error, NotImplementedError) and "NotImplementedError" not in str(error):
            raise
        return Verdict(False, _UNWRITTEN)


_UNWRITTEN = "no answer yet: write the function in place of the line that raises"


def check(name: str, answer: Any, *, record: bool = True) -> None:
    """Grade an answer, say so, and ``record`` that an exercise is solved (``playbook exercises`` lists them)."""
    verdict = grade(name, answer)
    print(f"{'✓' if verdict.right else '✗'} {name}: {verdict.text}")
    if verdict.right and record:
        progress.note(name)


def number(
    given: Any,
    right: float,
    hints: Mapping[float, str] | None = None,
    *,
    tolerance: float = 1e-3,
    otherwise: str = "",
) -> None:
    """Raise NotYet unless ``given`` is ``right`` to within ``tolerance`` (relative).

    ``hints`` maps wrong answers that a reader may well give to what they are told; any other one is told whether it is
    too large or too small, and ``otherwise``.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise NotYet(f"the answer is a number, and this is {type(given).__name__} {given!r}")
    if math.isclose(given, right, rel_tol=tolerance):
        return
    for wrong, hint in (hints or {}).items():
        if math.isclose(given, wrong, rel_tol=tolerance):
            raise NotYet(hint)
    size = "large" if given > right else "small" if given < right else "strange"
    raise NotYet(f"{given:,.6g} is too {size}" + (f". {otherwise}" if otherwise else ""))
