"""Folded cells are named by what they hold: "Imports", "Code of this figure", "Solution"; not all by the same words."""

from __future__ import annotations

import ast
import re

from docutils import nodes
from sphinx.application import Sphinx

#: What an output may hold, as a mark in its HTML, and what the code that made it is called.
MADE = (
    ("<figure", "Code of this figure"),
    ('class="pb-widget', "Code of this widget"),
    ("<table", "Code of this table"),
)
#: More names than these are not listed.
MOST = 3


def name_folds(app: Sphinx, doctree: nodes.document) -> None:
    """Give each cell that is folded its name."""
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") == "cell_code" and cell.get("hide_mode"):
            source = next((code.astext() for code in cell.findall(nodes.literal_block)), "")
            shown = "".join(output.astext() for output in cell.findall(_is_output))
            cell["prompt_show"] = cell["prompt_hide"] = name_of(
                source, shown, whole=cell["hide_mode"] == "all"
            )


def _is_output(node: nodes.Node) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code_output"


def name_of(source: str, shown: str, *, whole: bool = False) -> str:
    """What a folded cell is called, by its ``source`` and the HTML or text ``shown`` below it.

    A cell that is folded as a ``whole``, output and all, is the solution of an exercise where it checks one.
    """
    if whole and re.search(r"^check\(", source, re.MULTILINE):
        return "Solution"
    for mark, name in MADE:
        if mark in shown:
            return name
    if shown and not whole:
        return "Code of this output"
    return _holds(source)


def _holds(source: str) -> str:
    """What a cell that shows nothing prepares."""
    try:
        statements = ast.parse(re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)).body
    except SyntaxError:
        return "Code"
    if sum(isinstance(line, ast.Import | ast.ImportFrom) for line in statements) * 2 > len(statements):
        return "Imports"
    names = [line.name for line in statements if isinstance(line, ast.FunctionDef | ast.ClassDef)]
    if not names:
        return "Preparations"
    more = " …" * (len(names) > MOST)
    return f"Definition{'s' * (len(names) > 1)} of {', '.join(names[:MOST])}{more}"


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", name_folds)
