"""The glossary from A to Z: a heading for each letter, a line of letters to jump along, a line for each further name."""

from __future__ import annotations

import unicodedata
from itertools import groupby

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from .sections import GLOSSARY, SEE

#: Letters that share a heading, with its id.
DIGITS, GREEK = ("0–9", "digits"), ("α–ω", "greek")


def arrange(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put the entries of the glossary and lines for their further names below the letters that they begin with."""
    if page != GLOSSARY:
        return
    for glossary in list(doctree.findall(addnodes.glossary)):
        (entries,) = (child for child in glossary.children if isinstance(child, nodes.definition_list))
        items = with_further_names([item for item in entries if isinstance(item, nodes.definition_list_item)])
        parts: list[nodes.Node] = []
        letters = []
        for (shown, name), found in groupby(items, key=lambda item: letter(_first(item))):
            letters.append(f'<li><a href="#letter-{name}">{shown}</a></li>')
            parts.append(_raw(f'<h2 class="pb-letter" id="letter-{name}">{shown}</h2>'))
            parts.append(nodes.definition_list("", *found, classes=entries["classes"]))
        line = f'<nav class="pb-letters" aria-label="From A to Z"><ul>{"".join(letters)}</ul></nav>'
        glossary.children = []
        glossary.extend([_raw(line), *parts])


def with_further_names(items: list[nodes.definition_list_item]) -> list[nodes.definition_list_item]:
    """The entries, and for each name that is not an entry's first a line that sends its reader there, in their order.

    There is none directly below the entry itself.
    """
    lines = [
        (_order(name.astext()), _line(name.astext(), terms[0]), item)
        for item in items
        for terms in [_terms(item)]
        for name in terms[1:]
    ]
    ordered = sorted(
        [*((_order(_first(item)), item, None) for item in items), *lines], key=lambda row: row[0]
    )
    arranged: list[nodes.definition_list_item] = []
    above: nodes.Node | None = None
    for _, item, entry in ordered:
        if entry is None or entry is not above:
            arranged.append(item)
        if entry is None:
            above = item
    return arranged


def letter(name: str) -> tuple[str, str]:
    """The heading below which a name stands, and the end of its id."""
    first = _order(name)[:1]
    if first.isdigit():
        return DIGITS
    return (first.upper(), first) if first.isascii() else GREEK


def _terms(item: nodes.definition_list_item) -> list[nodes.term]:
    return [term for term in item.children if isinstance(term, nodes.term)]


def _first(item: nodes.definition_list_item) -> str:
    return _terms(item)[0].astext()


def _order(name: str) -> str:
    """As Sphinx sorts a glossary."""
    return unicodedata.normalize("NFD", name.lower())


def _line(name: str, entry: nodes.term) -> nodes.definition_list_item:
    link = nodes.reference("", entry.astext(), refuri=f"#{entry['ids'][0]}", internal=True)
    see = nodes.definition("", nodes.paragraph("", "see ", link))
    return nodes.definition_list_item("", nodes.term("", name), see, classes=[SEE])


def _raw(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", arrange)
