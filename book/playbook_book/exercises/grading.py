"""How an answer is graded: chapter, exercise, verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook_book.exercises import progress
from playbook_book.exercises.exercise import FOUND, Exercise, NotYet

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
    "packed-documents",
    "pipeline",
    "zero-bubble",
    "expert",
    "five-dimensions",
    "overlap",
    "muon",
    "live-recovery",
    "trainer-to-sampler",
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
    "four-bits",
)


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, and what the reader is told."""

    right: bool
    text: str


def exercises(*chapters: str) -> dict[str, Exercise]:
    """Exercises of ``chapters`` (by default all) by name, in the order of the book. ConfigError for an unknown one."""
    for chapter in chapters or CHAPTERS:
        if chapter not in CHAPTERS:
            raise ConfigError(unknown("chapter with exercises", chapter, CHAPTERS))
        import_module(f"playbook_book.exercises.{chapter.replace('-', '_')}")
    place = {chapter: i for i, chapter in enumerate(chapters or CHAPTERS)}
    found = [(name, one) for name, one in FOUND.items() if one.chapter in place]
    return dict(sorted(found, key=lambda item: place[item[1].chapter]))  # others may have been loaded before


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


#: Who is told what `check` says, the last one alone.
_LISTENERS: list[Callable[[str, Verdict], None]] = []


@contextmanager
def told(listener: Callable[[str, Verdict], None]) -> Iterator[None]:
    """While this lasts, ``check`` tells ``listener`` exercise and verdict, and prints and keeps nothing itself."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.pop()


def line(name: str, verdict: Verdict) -> str:
    """A verdict as a reader is told it."""
    return f"{'✓' if verdict.right else '✗'} {name}: {verdict.text}"


def check(name: str, answer: Any, *, record: bool = True) -> None:
    """Grade an answer, say so, and ``record`` that an exercise is solved (``playbook exercises`` lists them)."""
    verdict = grade(name, answer)
    if _LISTENERS:
        return _LISTENERS[-1](name, verdict)
    print(line(name, verdict))
    if verdict.right and record:
        progress.note(name)
