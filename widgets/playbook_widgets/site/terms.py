"""Terms that a chapter introduces, in bold, lead to the glossary."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

GLOSSARY = "book/glossary"


def depend(app: Sphinx, doctree: nodes.document) -> None:
    """A page is read again when the glossary has changed."""
    if GLOSSARY in app.env.found_docs:
        app.env.note_dependency(app.env.doc2path(GLOSSARY))


def link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Make a link of the first bold occurrence of each term of the glossary."""
    if page == GLOSSARY:
        return
    objects = app.env.get_domain("std").get_objects()
    terms = {name.lower(): (home, anchor) for name, _, kind, home, anchor, _ in objects if kind == "term"}
    linked = set()
    for bold in doctree.findall(nodes.strong):
        place = next((terms[name] for name in _singulars(bold.astext()) if name in terms), None)
        if place is None or place in linked:
            continue
        linked.add(place)
        home, anchor = place
        uri = f"{app.builder.get_relative_uri(page, home)}#{anchor}"
        words = bold.children
        bold.clear()
        bold += nodes.reference("", "", *words, refuri=uri, internal=True, classes=["pb-term"])


def _singulars(text: str) -> tuple[str, ...]:
    """A term as it stands in a sentence, and what may be its singular."""
    term = re.sub(r"\s+", " ", text).strip(" .,:;").lower()
    return term, term.removesuffix("s"), term.removesuffix("es"), re.sub("ies$", "y", term)


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", depend)
    app.connect("doctree-resolved", link)
