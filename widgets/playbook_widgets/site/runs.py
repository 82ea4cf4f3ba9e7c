"""What a page shows of its chapter's run: the outputs that jupyter-cache keeps, how long it took, where it stopped.

A chapter without a run is shown without outputs, and says so in a line that the page's script keeps up to date.
"""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from jupyter_cache import get_cache
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx

HEADER = "pb-runs-on"
PENDING = "Its cells have not run yet: <code>make book</code> runs them."


def add_outputs(app: Sphinx, page: str, source: list[str]) -> None:
    """Give a notebook that is about to be read the outputs of its run."""
    if Path(app.env.doc2path(page)).suffix != ".ipynb":
        return
    build = Path(app.outdir).parent
    notebook = nbformat.reads(source[0], as_version=4)
    failed = build / "failed" / f"{page}.ipynb"
    cache = get_cache(build / ".jupyter_cache")
    facts: dict[str, Any] = {"runtime": None, "failed": None}
    try:
        record, (_, notebook) = (
            cache.match_cache_notebook(notebook),
            cache.merge_match_into_notebook(notebook),
        )
        facts["runtime"] = record.data.get("execution_seconds")
    except KeyError:
        if failed.is_file():
            notebook = nbformat.read(failed, as_version=4)
            facts["failed"] = _failed_cell(notebook)
        else:
            facts["pending"] = any(cell.cell_type == "code" for cell in notebook.cells)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = []
    notebook.metadata.setdefault("language_info", {})["pygments_lexer"] = (
        "ipython3"  # which a kernel would say
    )
    NbMetadataCollector.set_exec_data(app.env, page, facts)
    source[0] = nbformat.writes(notebook)


def _failed_cell(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Which code cell failed, of how many, with what; marks it in the notebook."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    errors = {
        number: f"{output.ename}: {output.evalue}"
        for number, cell in enumerate(code, 1)
        for output in cell.outputs
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
    }
    # A cell that took too long, or killed its kernel, leaves no error: it is the first that has not been run.
    silent = next((number for number, cell in enumerate(code, 1) if cell.execution_count is None), len(code))
    number = max(errors, default=silent)
    mark = nbformat.v4.new_markdown_cell('<a id="pb-failed-cell"></a>')
    if notebook.nbformat_minor < 5:
        del mark["id"]
    notebook.cells.insert(notebook.cells.index(code[number - 1]), mark)
    return {"cell": number, "cells": len(code), "error": errors.get(number, "it did not end")}


def fill_header(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Add to a chapter's header box how long its cells took when this site was built; or below it, that they did not."""
    facts: Any = NbMetadataCollector.get_exec_data(app.env, page)
    boxes = [box for box in doctree.findall(nodes.container) if HEADER in box["classes"]]
    if not facts:
        return
    if facts["runtime"] is not None and boxes:
        measured = f" {format_seconds(facts['runtime'])} on {os.cpu_count()} CPU cores"
        term = nodes.strong("", "Measured")
        item = nodes.list_item("", nodes.paragraph("", "", term, nodes.Text(measured)))
        next(boxes[0].findall(nodes.bullet_list)).append(item)
    line = ""
    if facts.get("pending"):
        line = f'<p class="pb-pending" role="status" data-page="{page}">{PENDING}</p>'
    elif facts["failed"]:
        error = html.escape(facts["failed"]["error"].partition("\n")[0])
        where = "code cell {cell} of {cells}".format(**facts["failed"])
        line = f'<p class="pb-failed" role="status">It stopped at <a href="#pb-failed-cell">{where}</a>: {error}</p>'
    if line:
        raw = nodes.raw("", line, format="html")
        title = next(doctree.findall(nodes.title))
        place = boxes[0] if boxes else title
        place.parent.insert(place.parent.index(place) + 1, raw)


def format_seconds(seconds: float) -> str:
    """``8 s``, ``1 min 5 s``: whole seconds, never less than one."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_outputs)
    app.connect("doctree-resolved", fill_header)
