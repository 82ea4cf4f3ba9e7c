"""Exercises of a part for a class: a notebook to hand out, its checks for pytest, and a table of what came back.

A pack holds no solutions; they are in the book, which students need to run it. Answers that come back are run one
after another by a process of their own (``student.py``), which is ended where one takes too long.
"""

from __future__ import annotations

import ast
import json
import re
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import playbook_book
from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook_book.assignments.student import read
from playbook_book.exercises.grading import CHAPTERS, exercises

QUESTION = re.compile(r"^(:{3,})\{admonition\} ([^\n]+)\n:class: pb-exercise\n(.*?)^\1[ \t]*$", re.M | re.S)
CITED = re.compile(r"\{cite:\w+\}`([a-z]+)(\d+)`")
#: What answers may well use: a chapter's imports of these are in its first cell.
USUAL = re.compile(
    r"(math|itertools|functools|torch|torch\..*|triton|triton\.language|playbook\.(kernels\.jit|shapes|layout|hardware))"
)
EQUATION = re.compile(r"(?:equation )?\{eq\}`([\w-]+)`")

HEAD = """\
# {title}

Write your answers in place of `...` or of the line that raises, and keep the calls of `check` below them: they grade what
you wrote, with a hint where it is not right yet. A cell may need the ones above it. `pytest {checks}` in this folder
checks the saved notebook, all of it. Hand in the notebook alone, under your name."""

CHECKS = '''\
"""Which answers in {notebook} are right, and a hint for each that is not: run `pytest {checks}` in this folder.

For a notebook of another name: `NOTEBOOK=mine.ipynb pytest {checks}`. It needs playbook, the book's library.
"""

import os
from pathlib import Path

import pytest
from playbook_book.assignments.handed_in import graded

NOTEBOOK = Path(__file__).with_name(os.environ.get("NOTEBOOK", "{notebook}"))
EXERCISES = [
{names}
]


@pytest.fixture(scope="module")
def results():
    return {{result.exercise: result for result in graded(NOTEBOOK, EXERCISES)}}


@pytest.mark.parametrize("name", EXERCISES)
def test_answer(name, results):
    if not results[name].right:
        pytest.fail(results[name].hint, pytrace=False)
'''


def parts() -> dict[str, list[str]]:
    """Chapters with exercises by part (a folder of the book), both in reading order. ConfigError without the book."""
    found: dict[str, list[str]] = {}
    for chapter in CHAPTERS:
        for notebook in _book().glob(f"*/{chapter}.ipynb"):
            found.setdefault(notebook.parent.name, []).append(chapter)
    if not found:
        raise ConfigError(
            f"the notebooks of the book are not in {_book()}: install playbook from its repository"
        )
    return found


def export(part: str, folder: Path) -> list[Path]:
    """Write the pack of a part, or of one chapter, into ``folder``: a notebook, and its checks for pytest.

    Raises ConfigError for a part that there is not, and for files that are there already.
    """
    known = parts()
    chapters = known.get(part) or [chapter for chapter in CHAPTERS if chapter == part]
    if not chapters:
        raise ConfigError(unknown("part or chapter", part, [*known, *CHAPTERS]))
    notebook, checks = folder / f"{part}.ipynb", folder / f"test_{part.replace('-', '_')}.py"
    for file in (notebook, checks):
        if file.exists():
            raise ConfigError(f"{file} is there already, and is not overwritten")
    names = list(exercises(*chapters))
    title = part.replace("-", " ").capitalize().replace("gpu", "GPU")
    cells = [_markdown("head", HEAD.format(title=title, checks=checks.name))]
    cells.append(_code("check", "from playbook_book.exercises import check"))
    for chapter in chapters:
        cells += _chapter(chapter)
    told = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "playbook": {"exercises": names},
    }
    whole = {"cells": cells, "metadata": told, "nbformat": 4, "nbformat_minor": 5}
    listed = "\n".join(f'    "{name}",' for name in names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notebook.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        text = CHECKS.format(notebook=notebook.name, checks=checks.name, names=listed)
        checks.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"nothing can be written into {folder}: {error.strerror}") from error
    return [notebook, checks]


def _book() -> Path:
    return Path(str(playbook_book.__file__)).parents[1]


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(name: str, text: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"execution_count": None, "metadata": {}, "outputs": []}
    return {"cell_type": "code", "id": name, **empty, "source": text.splitlines(keepends=True)}


def _chapter(chapter: str) -> Iterator[dict[str, Any]]:
    """Cells of a chapter's exercises: of each the question, what its stub needs of the chapter, and the stub."""
    (file,) = _book().glob(f"*/{chapter}.ipynb")
    cells = [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]
    ]
    chapter_text = "\n".join(text for kind, text in cells if kind == "markdown")
    yield _markdown(chapter, "#" + next(re.finditer(r"^# .+$", chapter_text, re.M))[0])
    context, stubs = Context(), [_stub(name, cells) for name in exercises(chapter)]
    above = [text for kind, text in cells[: max(stubs)] if kind == "code" and "record=False" not in text]
    if imports := list(dict.fromkeys(line for text in above for line in _imports(text))):
        yield _code(f"{chapter}-imports", "\n".join(imports))
        context.given = _names("\n".join(imports)).bound
    at = 0
    for name, stub in zip(exercises(chapter), stubs, strict=True):
        question = max(i for i in range(stub) if "pb-exercise" in cells[i][1])
        for kind, text in cells[at:question]:
            if kind == "code":
                context.read(text)
        at = question
        *_, asked = QUESTION.finditer(cells[question][1] + "\n")
        key = name.replace(".", "-")
        yield _markdown(f"{key}-question", _plain(f"### {asked[2]}\n\n{asked[3].strip()}", chapter_text))
        between = [text for kind, text in cells[question + 1 : stub] if kind == "code"]
        source = "\n\n\n".join([*between, cells[stub][1]])
        if needed := context.needed(source, re.findall(r"`(\w+)`", asked[3])):
            yield _code(f"{key}-needs", needed)
        yield _code(key, source)


def _stub(name: str, cells: Sequence[tuple[str, str]]) -> int:
    """Which cell is the one to write the answer into: its check keeps what is right, that of the solution does not."""
    call = re.compile(rf"""\bcheck\(\s*["']{re.escape(name)}["']""")
    return next(
        i
        for i, (kind, text) in enumerate(cells)
        if kind == "code" and call.search(text) and "record=False" not in text
    )


def _imports(source: str) -> Iterator[str]:
    """What a cell imports of the usual."""
    for node in ast.parse(read(source)).body:
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        else:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if names and all(map(USUAL.fullmatch, names)):
            yield ast.unparse(node)


def _plain(text: str, chapter: str) -> str:
    """A question as any notebook shows it: citations as names, and the equations that it speaks of below it."""
    labels = EQUATION.findall(text)
    text = CITED.sub(lambda found: f"{found[1].title()} ({found[2]})", text)
    text = re.sub(r"^the equation", "The equation", EQUATION.sub("the equation below", text), flags=re.M)
    for label in labels:
        equations = re.findall(rf"^\$\$((?:(?!\$\$).)*)\$\$ \({label}\)$", chapter, re.M | re.S)
        text += "".join(f"\n\n$$\n{equation.strip()}\n$$" for equation in equations)
    return text


@dataclass(frozen=True)
class Statement:
    """One that binds a name: where in the chapter, and its text."""

    place: tuple[int, int]
    text: str


class Context:
    """What the cells of a chapter bind: of it, a stub gets what it names and is not ``given`` all the same."""

    def __init__(self) -> None:
        self.bound: dict[str, Statement] = {}
        self.given = set[str]()
        self.cells = 0

    def read(self, source: str) -> None:
        """Take in a cell above. Solutions are passed over."""
        self.cells += 1
        if "record=False" in source:
            return
        source = read(source)
        for i, node in enumerate(ast.parse(source).body):
            place = (0 if isinstance(node, ast.Import | ast.ImportFrom) else self.cells, i)
            for name, text in _bindings(node, source):
                if name != "check":
                    self.bound[name] = Statement(place, text)

    def needed(self, source: str, words: Sequence[str]) -> str:
        """The statements that ``source`` needs, and those that bind ``words`` of a question, in the chapter's order."""
        found: dict[str, Statement] = {}
        own = _names(source)
        wanted = [*own.free, *(word for word in words if word not in own.bound)]
        while wanted:
            name = wanted.pop()
            if name in self.bound and name not in found and name not in self.given:
                found[name] = self.bound[name]
                wanted += _names(found[name].text).free
        texts = [one.text for one in sorted(found.values(), key=lambda one: (one.place, one.text))]
        return "\n".join(dict.fromkeys(texts)).strip()


def _bindings(node: ast.stmt, source: str) -> Iterator[tuple[str, str]]:
    """Names that a statement binds, with a text that does so: of imports, functions, and values of constants."""
    if isinstance(node, ast.Import):
        yield from ((one.asname or one.name.partition(".")[0], f"import {_as(one)}") for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((one.asname or one.name, f"from {node.module} import {_as(one)}") for one in node.names)
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
        yield node.name, f"\n\n{text}\n"
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        given = node.value.args if isinstance(node.value, ast.Call) else [node.value]
        if given and all(isinstance(one, ast.Constant) for one in given):
            yield node.targets[0].id, ast.get_source_segment(source, node) or ""


def _as(one: ast.alias) -> str:
    return f"{one.name} as {one.asname}" if one.asname else one.name


@dataclass(frozen=True)
class Names:
    """Of a source: the names that it takes from elsewhere, and all that it binds, arguments of functions as well."""

    free: list[str]
    bound: set[str]


def _names(source: str) -> Names:
    tables = [symtable.symtable(source.strip(), "cell", "exec")]
    top = {one.get_name() for one in tables[0].get_symbols() if one.is_assigned() or one.is_imported()}
    free, bound = list[str](), set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for one in table.get_symbols():
            outer = one.is_global() or (table.get_type() == "module" and not one.is_assigned())
            if outer and one.is_referenced() and one.get_name() not in top:
                free.append(one.get_name())
            elif not outer:
                bound.add(one.get_name())
    return Names(free, bound | top)
