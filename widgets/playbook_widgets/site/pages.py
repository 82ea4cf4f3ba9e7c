"""The last hand on every page: the scripts that it needs and no others, names that say what is there."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

WIDGET = 'class="pb-widget'
PENDING = 'class="pb-pending"'
PROGRESS = ('class="pb-progress"', 'class="pb-elsewhere"')
CELL = 'class="cell_input'
LETTERS = 'class="pb-letters"'

# Names, punctuation and blanks are drawn in the colour of plain text.
PLAIN = re.compile(r'<span class="(?:n|nn|p|w)">([^<]*)</span>')


def choose_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop scripts that point at other hosts; add the widget runtime where the page has a widget."""
    files = context.get("script_files") or []
    files[:] = [file for file in files if not _is_for_servers(file)]  # in place: Sphinx keeps the list object
    app.add_js_file("pb/book.mjs", type="module")
    app.add_js_file("pb/find.mjs", type="module")
    if page == "search":
        app.add_js_file("pb/search.mjs", type="module")
    if page == app.config.root_doc:
        app.add_css_file("pb/landing.css", priority=820)
    if CELL in (context.get("body") or ""):
        app.add_js_file("pb/code.mjs", type="module")
    if LETTERS in (context.get("body") or ""):
        app.add_js_file("pb/glossary.mjs", type="module")
    if PENDING in (context.get("body") or ""):
        app.add_js_file("pb/pending.mjs", type="module")
    if any(sign in (context.get("body") or "") for sign in PROGRESS):
        app.add_js_file("pb/progress.mjs", type="module")
    if WIDGET in (context.get("body") or ""):
        app.add_css_file("pb/widgets.css", priority=820)
        app.add_js_file("pb/host.mjs", type="module")


def _is_for_servers(file: Any) -> bool:
    """Scripts for pages that run cells elsewhere: Thebe, and the state that ipywidgets loads with a CDN's code.

    The book draws its widgets from ``text/html``; the state would be their data once more.
    """
    attributes = getattr(file, "attributes", None) or {}
    return (
        "THEBE" in (attributes.get("body") or "")
        or "sphinx-thebe" in str(getattr(file, "filename", file) or "")
        or attributes.get("type") == "application/vnd.jupyter.widget-state+json"
    )


def thin_out(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop the marks of highlighted code that change no colour: a tenth of a chapter's bytes."""
    context["body"] = PLAIN.sub(r"\1", context.get("body") or "")


# What the HTML of docutils and MyST-NB gets wrong, mostly for accessibility checkers, and what stands there instead.
MENDED = {
    # A bibliography mixes entries with targets of back-links: not the plain list that these roles promise.
    '<div role="list" class="citation-list">': '<div class="citation-list">',
    ' role="doc-biblioentry"': "",
    # Folded cells have a name (see ``folds``) and are called something else.
    '<summary aria-label="Toggle hidden content">': "<summary>",
    # What a check says of an answer is a sentence, and breaks like one; other output keeps its columns.
    "<pre><span></span>✗ ": '<pre class="pb-verdict"><span></span>✗ ',
    "<pre><span></span>✓ ": '<pre class="pb-verdict"><span></span>✓ ',
}


def mend_names(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Take names and roles away that contradict what the elements hold."""
    for wrong, right in MENDED.items():
        context["body"] = (context.get("body") or "").replace(wrong, right)


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", mend_names)
    app.connect("html-page-context", thin_out)
    app.connect("html-page-context", choose_scripts, priority=900)
