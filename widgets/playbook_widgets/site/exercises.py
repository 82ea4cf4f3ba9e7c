"""Exercises that a page grades itself: below the cell to write into stands a box to write into, and a button.

Python in the page runs what the reader has written, as a kernel would run the cell. An exercise whose grader needs more
than the standard library (PyTorch, ranks, threads) is left to the notebook, and the page says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx

from playbook_widgets.base import Widget

#: Of a build: the exercises that the standard library alone can grade (``browser_python`` tries each).
GRADED = Path("_static", "pb", "python", "exercises.json")
CHECK = re.compile(r'\bcheck\("([\w.-]+)", [^)]*\)')
ELSEWHERE = (
    '<p class="pb-elsewhere" data-exercise="{name}">This one needs PyTorch or several processes, which a page has not: '
    "answer it in the notebook, <code>{page}.ipynb</code>. </p>"
)


class Answer(Widget):
    """A box in a page for the answer to one exercise. It is in no kernel: there the cell itself is such a box."""

    script = "exercise.mjs"
    compute: ClassVar[str] = "playbook_book.page:run"

    def spec(self) -> dict[str, Any]:
        """A reader's loop may have no end; and most readers of a page write no answer, and need no Python for it."""
        return {**super().spec(), "limit": 30, "start": "module"}  # seconds

    def _recompute(self, change: Any) -> None:
        """Nothing is run before a reader asks for it."""

    def summary(self) -> str:
        """Nothing: the cell above is there."""
        return ""


def add_boxes(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Below each cell that checks an answer of the reader's, the box, or that there is none."""
    file = Path(app.outdir) / GRADED
    graded = set(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else set()
    for cell in list(doctree.findall(nodes.container)):
        source = _code(cell)
        found = CHECK.search(source)
        if not found or "record=False" in source:
            continue
        here, html = cell.parent.index(cell), ELSEWHERE.format(name=found[1], page=page)
        if found[1] in graded:
            above = _code(cell.parent[max(0, here - 1)])  # between the question and the answer: what it needs
            text = source if not above or CHECK.search(above) else f"{above}\n\n\n{source}"
            html = Answer({"name": found[1], "source": text}, outputs={}).static_html()
        cell.parent.insert(here + 1, nodes.raw("", html, format="html"))


def _code(node: nodes.Node) -> str:
    """The source of a cell of code; nothing of any other node."""
    if not isinstance(node, nodes.container) or node.get("nb_element") != "cell_code":
        return ""
    return next(iter(node.findall(nodes.literal_block)), nodes.literal_block()).astext().strip()


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", add_boxes)
    return {}
