"""Exercises as they stand in the chapters: question, stub, hint, and a solution that nothing above gives away."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import pytest

from playbook_book.exercises import exercises
from playbook_book.exercises.grading import CHAPTERS

ROOT = Path(__file__).resolve().parents[2]
FOLDED = {"hide-cell", "nbval-check-output"}


def path_of(chapter: str) -> Path:
    (path,) = ROOT.joinpath("book").glob(f"*/{chapter}.ipynb")
    return path


@cache
def cells(chapter: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(path_of(chapter), as_version=4).cells


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


@dataclass(frozen=True)
class Place:
    """Where an exercise stands: the indices of its question, its stub, and its solution."""

    question: int
    stub: int
    solution: int


def place(name: str) -> Place:
    found = cells(name.partition(".")[0])
    calls = [
        i for i, cell in enumerate(found) if cell.cell_type == "code" and f'check("{name}"' in cell.source
    ]
    stub, solution = (
        [i for i in calls if ("record=False" in found[i].source) == folded] for folded in (False, True)
    )
    assert len(stub) == len(solution) == 1, f"{name} needs one cell to write into and one solution"
    questions = [i for i in range(stub[0]) if "pb-exercise" in found[i].source]
    assert questions, f"{name} has no question above"
    return Place(questions[-1], stub[0], solution[0])


@pytest.mark.parametrize("name", exercises())
def test_an_exercise_has_a_question_a_stub_that_fails_and_a_folded_solution_that_passes(name):
    at, found = place(name), cells(name.partition(".")[0])
    assert at.question < at.stub < at.solution
    assert found[at.stub].metadata.tags == ["nbval-check-output"]
    assert set(found[at.solution].metadata.tags) == FOLDED
    # What they print is stored, and compared with a fresh run wherever the notebook is executed.
    assert printed(found[at.stub]).splitlines()[-1].startswith(f"✗ {name}: ")
    assert printed(found[at.solution]).splitlines()[-1].startswith(f"✓ {name}: ")
    if exercises()[name].kind == "number":
        assert "= ..." in found[at.stub].source
    if exercises()[name].kind == "function":
        assert "raise NotImplementedError" in found[at.stub].source


def lines(cell: nbformat.NotebookNode) -> set[str]:
    """Lines of code that say something."""
    text = (re.sub(r"\s*#.*", "", line).strip() for line in cell.source.splitlines())
    common = ("def ", "check(", "return x", "for ")
    return {line for line in text if len(line) > 12 and not line.startswith(common) and line[-1] != "("}


@pytest.mark.parametrize("name", exercises())
def test_nothing_above_a_solution_gives_it_away(name, built_book):
    """No line of it is in a cell above, nor in the text of the built page above its fold."""
    at, found = place(name), cells(name.partition(".")[0])
    answer = lines(found[at.solution]) - lines(found[at.stub])
    assert answer, f"the solution of {name} is its stub"
    above = "\n".join(cell.source for cell in found[at.question : at.solution])
    assert [line for line in answer if line in above] == []
    page = built_book / path_of(name.partition(".")[0]).relative_to(ROOT).with_suffix(".html")
    text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))
    assert f'<pre class="pb-verdict"><span></span>✗ {name}' in page.read_text(
        encoding="utf-8"
    )  # a hint is not cut
    start, end = text.find(f'check("{name}"'), text.find(f"✓ {name}")
    assert 0 < start < end
    assert not [line for line in answer if line in text[:start]]


def test_the_book_has_three_exercises_a_chapter_and_a_repair_in_each():
    found = exercises().values()
    for chapter in CHAPTERS:
        kinds = [one.kind for one in found if one.chapter == chapter]
        assert len(kinds) >= 3, chapter
        assert set(kinds) == {"number", "function", "repair"}, chapter
