"""What an exercise is: a question, what grades an answer, and answers that readers give, right ones and wrong ones.

    @number("zero.bytes", "bytes that a rank sends", praise="…", otherwise="Which collectives are there?")
    def bytes_of_a_step():  # the right number, and what is said of wrong ones
        return 24, {12: "that is the forward pass alone"}

    @exercise("zero.owned", "function", "the elements that a rank owns")
    def owned(write):  # returns what is worth saying of a right answer, raises NotYet(hint) for any other
        ...

    answers("zero.owned", right=[by_rank], wrong={"2 of the 23 elements belong to no rank": rounded_down})

One test goes through all of them. Standard library only, as are graders until they are asked.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

#: A number to find, a function to write, or one with a bug to mend.
Kind = Literal["number", "function", "repair"]
#: The right number, what is said of wrong ones that a reader may well give, and, if it is computed, of the right one.
Facts = Callable[[], tuple[float, Mapping[float, str]] | tuple[float, Mapping[float, str], str]]
#: Answers that pass, and by (a part of) their hint such as do not.
Answers = tuple[Sequence[Any], Mapping[str, Any]]
#: Keeps what it decorates, which it leaves as it is.
Keep = Callable[[Any], Any]


class NotYet(Exception):
    """Raised by a grader for an answer that is not right. Its text is what the reader is told: a hint."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: its name ("chapter.what"), what is asked for, and what grades an answer.

    ``grade`` returns what is worth saying about a right answer, and raises :class:`NotYet` for any other. ``known`` are
    functions that return answers which pass, and by (a part of) their hint such as do not.
    """

    name: str
    kind: Kind
    title: str
    grade: Callable[[Any], str]
    known: list[Callable[[], tuple[Sequence[Any], Iterable[tuple[str, Any]]]]] = field(default_factory=list)

    @property
    def chapter(self) -> str:
        return self.name.partition(".")[0]

    @property
    def right(self) -> list[Any]:
        """Answers that pass."""
        return [answer for made in self.known for answer in made()[0]]

    @property
    def wrong(self) -> list[tuple[Any, str]]:
        """Answers that do not, each with (a part of) its hint."""
        return [(answer, hint) for made in self.known for hint, answer in made()[1]]


#: Exercises by name, filled by the modules of the chapters as they are imported.
FOUND: dict[str, Exercise] = {}


def exercise(name: str, kind: Kind, title: str) -> Keep:
    """Make a grader the one of the exercise ``name``."""

    def keep(grader: Callable[[Any], str]) -> Callable[[Any], str]:
        FOUND[name] = Exercise(name, kind, title, grader)
        return grader

    return keep


def answers(name: str, *, right: Sequence[Any] = (), wrong: Mapping[str, Any] | None = None) -> None:
    """Answers that pass, and by (a part of) their hint such that a reader may well give and that do not."""
    FOUND[name].known.append(lambda: (right, (wrong or {}).items()))


def answers_made(name: str) -> Keep:
    """The same, made by a function when they are asked for: where they need torch or Triton."""

    def keep(make: Callable[[], Answers]) -> Callable[[], Answers]:
        def known() -> tuple[Sequence[Any], Iterable[tuple[str, Any]]]:
            passing, others = make()
            return passing, others.items()

        FOUND[name].known.append(known)
        return make

    return keep


def number(name: str, title: str, *, praise: str = "", otherwise: str, tolerance: float = 1e-3) -> Keep:
    """Make the exercise ``name`` of its facts: a number, right to within ``tolerance`` (relative).

    Any wrong number that has no hint is told whether it is too large or too small, and ``otherwise``.
    """

    def keep(facts: Facts) -> Facts:
        found = cache(facts)  # some simulate, or train: once, however often a reader answers

        def grade(given: Any) -> str:
            value, hints, *said = found()
            close_to(given, value, hints, tolerance=tolerance, otherwise=otherwise)
            return str(said[0]) if said else praise

        def known() -> tuple[Sequence[Any], Iterable[tuple[str, Any]]]:
            value, hints = found()[:2]
            return [value], [(hint, mistake) for mistake, hint in hints.items()]

        FOUND[name] = Exercise(name, "number", title, grade, [known])
        return facts

    return keep


def function(
    name: str,
    title: str,
    *,
    cases: Sequence[tuple[Any, ...]] | Callable[[], Sequence[tuple[Any, ...]]],
    praise: str,
    case: Callable[..., str],
    otherwise: str | Callable[[Any, Any], str],
    kind: Kind = "function",
) -> Keep:
    """Make the exercise ``name`` of its reference: a function that returns the same for each tuple of ``cases``.

    What differs is told the first case (``case(*arguments)`` says which) and the hint of the wrong answer that agrees
    with it in all cases, or else in this one; without one ``otherwise``, which may depend on what it returns and should.
    """

    def keep(reference: Callable[..., Any]) -> Callable[..., Any]:
        def grade(write: Callable[..., Any]) -> str:
            asked = cases() if callable(cases) else cases
            given, wanted = _results(write, asked), _results(reference, asked)
            first = next(
                (i for i, pair in enumerate(zip(given, wanted, strict=True)) if not same(*pair)), None
            )
            if first is None:
                return praise
            known = [(_results(answer, asked), hint) for answer, hint in FOUND[name].wrong]
            hints = [hint for results, hint in known if same(results, given)]
            hints += [hint for results, hint in known if same(results[first], given[first])]
            if not hints:
                hints = [otherwise if isinstance(otherwise, str) else otherwise(given[first], wanted[first])]
            raise NotYet(f"{case(*asked[first])}: {hints[0]}")

        FOUND[name] = Exercise(name, kind, title, grade, [lambda: ([reference], [])])
        return reference

    return keep


def _results(function: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [function(*copy.deepcopy(one)) for one in cases]


def same(a: Any, b: Any) -> bool:
    """Equal, lists, tuples and arrays alike, numbers to within 1e-9 of either."""
    a, b = (one.tolist() if hasattr(one, "tolist") else one for one in (a, b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float) and bool not in (type(a), type(b)):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return type(a) is type(b) and bool(a == b)


def close_to(
    given: Any,
    value: float,
    hints: Mapping[float, str] | None = None,
    *,
    tolerance: float = 1e-3,
    otherwise: str = "",
) -> None:
    """Raise NotYet unless ``given`` is ``value`` to within ``tolerance`` (relative).

    ``hints`` maps wrong answers that a reader may well give to what they are told; any other one is told whether it is
    too large or too small, and ``otherwise``.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise NotYet(f"the answer is a number, and this is {type(given).__name__} {given!r}")
    if math.isclose(given, value, rel_tol=tolerance):
        return
    for mistake, hint in (hints or {}).items():
        if math.isclose(given, mistake, rel_tol=tolerance):
            raise NotYet(hint)
    size = "large" if given > value else "small" if given < value else "strange"
    raise NotYet(f"{given:,.6g} is too {size}" + (f". {otherwise}" if otherwise else ""))
