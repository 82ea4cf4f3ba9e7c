"""Terms that a chapter introduces, in bold, lead to the glossary, and say what they mean where one points at them."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

from .sections import GLOSSARY, terms

#: Where an entry sends its reader, at its end.
_SEE = re.compile(r"[;.,] (?:see|See) [^.]*\.$")


def depend(app: Sphinx, doctree: nodes.document) -> None:
    """A page is read again when the glossary has changed."""
    if GLOSSARY in app.env.found_docs:
        app.env.note_dependency(app.env.doc2path(GLOSSARY))


def link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Make a link of the first bold occurrence of each term of the glossary."""
    if page == GLOSSARY:
        return
    objects = app.env.get_domain("std").get_objects()
    places = {name.lower(): (home, anchor) for name, _, kind, home, anchor, _ in objects if kind == "term"}
    means = _meanings(app)
    linked = set()
    for bold in doctree.findall(nodes.strong):
        name = next((name for name in _singulars(bold.astext()) if name in places), "")
        place = places.get(name)
        if place is None or place in linked:
            continue
        linked.add(place)
        home, anchor = place
        uri = f"{app.builder.get_relative_uri(page, home)}#{anchor}"
        words = bold.children
        bold.clear()
        said = {"refuri": uri, "reftitle": means.get(name, ""), "internal": True, "classes": ["pb-term"]}
        bold += nodes.reference("", "", *words, **said)


def _meanings(app: Sphinx) -> dict[str, str]:
    """What each name in the glossary means, for one build."""
    if not hasattr(app, "playbook_meanings"):
        found = terms(app.env.get_doctree(GLOSSARY))
        said = {
            name.lower(): _SEE.sub(".", entry["x"]) for entry in found for name in (entry["t"], *entry["s"])
        }
        app.playbook_meanings = said  # type: ignore[attr-defined]
    return app.playbook_meanings  # type: ignore[attr-defined]


def _singulars(text: str) -> tuple[str, ...]:
    """A term as it stands in a sentence, and what may be its singular."""
    term = re.sub(r"\s+", " ", text).strip(" .,:;").lower()
    return term, term.removesuffix("s"), term.removesuffix("es"), re.sub("ies$", "y", term)


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", depend)
    app.connect("doctree-resolved", link)
