"""What a chapter weighs: what is counted, and what is said of one that is over its limits."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import chapters
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

TAKEAWAY = ":::{div} pb-takeaway\nOne thing.\n:::"
EXERCISE = ":::{admonition} Exercise: a sum\n:class: pb-exercise\nWhat is one and one?\n:::"


def good() -> list[nbformat.NotebookNode]:
    """A chapter of five cells that keeps all limits."""
    return [
        new_markdown_cell(
            f"# Title\n\n{TAKEAWAY}\n\nWhere it breaks, $x y z$ and `code that counts for nothing`."
        ),
        new_code_cell("\n".join(f"x = {i}" for i in range(15))),
        new_code_cell("\n".join(f"x = {i}" for i in range(40)), metadata={"tags": ["hide-input"]}),
        new_markdown_cell("\n\n".join(["## Exercises", *[EXERCISE] * 3])),
        new_markdown_cell("## In the frameworks\n\nThe same.\n\n## Summary\n\n- That is all."),
    ]


def weighed(tmp_path: Path, cells: list[nbformat.NotebookNode]) -> chapters.Weight:
    path = tmp_path / "chapter.ipynb"
    path.write_text(nbformat.writes(new_notebook(cells=cells)), encoding="utf-8")
    return chapters.weigh(path)


def test_a_good_chapter_has_nothing_to_mend(tmp_path: Path) -> None:
    weight = weighed(tmp_path, good())
    assert weight.complaints() == []
    assert (weight.cells, weight.long, weight.exercises, weight.bridge) == (5, (), 3, True)
    assert (one := weighed(tmp_path, good()[:1])).words == 9
    assert one.carried == 2  # neither the formula nor the code


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda cells: cells.extend(new_markdown_cell("") for _ in range(51)), "56 cells, at most 55"),
        (lambda cells: cells.append(new_markdown_cell("so " * 1975)), "words, at most 1975"),
        (lambda cells: cells[2].metadata.update(tags=[]), "more than 15 lines in open cells: 3;"),
        (lambda cells: cells[0].update(source="# Title"), "0 words to carry away, at least one"),
        (lambda cells: cells.pop(3), "0 exercises, at least 3"),
        (lambda cells: cells.pop(4), "no section '## In the frameworks'"),
        (lambda cells: cells.append(cells.pop(3)), "it does not say 'Where it breaks', or does not end with"),
        (lambda cells: cells[0].update(source=f"# Title\n\n{TAKEAWAY}"), "it does not say 'Where it breaks'"),
        (lambda cells: cells[1].update(source='"""Foretold."""'), "'foretold': say 'predicted'"),
        (
            lambda cells: cells[0].update(source="# The wire\n\nis shared out"),
            "'the wire': say 'the network, the link'",
        ),
        (lambda cells: cells[0].update(source="Addends"), "'addends': say 'partial sum'"),
    ],
)
def test_every_limit_is_said(tmp_path: Path, change, complaint: str) -> None:
    cells = good()
    change(cells)
    assert any(complaint in said for said in weighed(tmp_path, cells).complaints())


def test_chapters_are_the_notebooks_in_the_parts_of_the_book() -> None:
    listed = re.findall(r"file: (book/.+/.+)", (chapters.ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found = chapters.chapters([chapters.ROOT / "book"])
    names = {path.relative_to(chapters.ROOT).with_suffix("").as_posix() for path in found}
    assert names == {name for name in listed if not name.startswith("book/tools/")}


def _lost(source: str) -> list[int]:
    """Lines at which a cell makes a table or a figure and drops it: a notebook shows what its last line gives."""
    try:
        *before, _ = ast.parse(source).body
    except (SyntaxError, ValueError):  # magics; an empty cell
        return []
    calls = [(one.lineno, one.value) for one in before if isinstance(one, ast.Expr)]
    return [
        line
        for line, call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("table", "display")
    ]


def test_no_cell_makes_a_table_or_a_figure_that_nobody_sees() -> None:
    assert _lost("table([], [])\nx = 1") == [1]
    found = {
        f"{path.stem}: cell {number}": lines
        for path in sorted((chapters.ROOT / "book").rglob("*.ipynb"))
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells, 1)
        if cell.cell_type == "code" and (lines := _lost(cell.source))
    }
    assert not found
