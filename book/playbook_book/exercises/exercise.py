"""What an exercise is, and what graders say of an answer. Standard library only, as are graders until they are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: A number to find, a function to write, or one with a bug to mend.
Kind = Literal["number", "function", "repair"]


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


#: Exercises by name, filled by the modules of the chapters as they are imported.
FOUND: dict[str, Exercise] = {}


def exercise(name: str, kind: Kind, title: str) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Make a grader the one of the exercise ``name``."""

    def keep(grader: Callable[[Any], str]) -> Callable[[Any], str]:
        FOUND[name] = Exercise(name, kind, title, grader)
        return grader

    return keep


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
