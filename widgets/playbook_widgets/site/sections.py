"""What the search of the book finds: sections, glossary entries, exercises and public names, in a file that pages load.

Code and its output are left out, of which chapters have more than of prose. `static/find.mjs` ranks them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

GLOSSARY = "book/glossary"
#: The class of a line of the glossary that only sends its reader to another one.
SEE = "pb-see"
#: What is no prose.
SKIPPED = (nodes.literal_block, nodes.math_block, nodes.raw, nodes.comment, nodes.section, nodes.title)
#: Of the prose of a section as many characters as a reader would look for.
MOST = 4000
Entry = dict[str, Any]


def entries(doctree: nodes.document, page: str) -> Iterator[Entry]:
    """Every section of a page: anchor ``a`` and title ``t``, the page's title ``p``, ``kind``, text ``x``."""
    of_page = next((title.astext() for title in doctree.findall(nodes.title)), page)
    for section in doctree.findall(nodes.section):
        title = next(iter(section.findall(nodes.title))).astext()
        top = title == of_page
        anchor = "" if top else section["ids"][0]
        text = " ".join(_prose(section))[:MOST]
        kind = "page" if top else "section"
        yield {"a": anchor, "t": title, "p": "" if top else of_page, "k": kind, "x": text}
        for exercise in _own(section, nodes.admonition):
            if "pb-exercise" in exercise["classes"]:
                title = exercise[0].astext()
                yield {
                    "a": anchor,
                    "t": title,
                    "p": of_page,
                    "k": "exercise",
                    "x": " ".join(_prose(exercise)),
                }
    for signature in doctree.findall(addnodes.desc_signature):
        if signature.get("ids"):
            name = signature["ids"][0]
            yield {"a": name, "t": name.removeprefix("playbook."), "p": of_page, "k": "name", "x": ""}


def terms(doctree: nodes.document) -> Iterator[Entry]:
    """Entries of the glossary; ``s`` are further names, ``to`` the places where they are explained."""
    for item in doctree.findall(nodes.definition_list_item):
        if SEE in item["classes"]:
            continue
        names = [term for term in item.children if isinstance(term, nodes.term)]
        said = " ".join(_prose(next(iter(item.findall(nodes.definition)))))
        places = [link["refuri"] for link in item.findall(nodes.reference) if link.get("refuri")]
        words = [term.astext() for term in names]
        yield {
            "a": names[0]["ids"][0],
            "t": words[0],
            "s": words[1:],
            "p": "Glossary",
            "k": "term",
            "x": said,
            "to": places,
        }


def _own(section: nodes.Element, kind: type[nodes.Element]) -> Iterator[nodes.Element]:
    """Elements of a kind in a section, not in those below it."""
    for child in section.children:
        if isinstance(child, kind):
            yield child
        elif isinstance(child, nodes.Element) and not isinstance(child, nodes.section):
            yield from _own(child, kind)


def _prose(element: nodes.Element) -> Iterator[str]:
    """Paragraphs of an element, not those of sections below it, or of code."""
    for child in element.children:
        if isinstance(child, SKIPPED) or "cell" in getattr(child, "attributes", {}).get("classes", ()):
            continue
        if isinstance(child, nodes.paragraph | nodes.caption):
            yield re.sub(r"\s+", " ", child.astext())
        elif isinstance(child, nodes.Element):
            yield from _prose(child)


def write(app: Sphinx, error: Exception | None) -> None:
    """All pages of the book in one file, each place beside its names in the glossary."""
    if error or app.builder.format != "html":
        return
    found: list[Entry] = []
    for page in sorted(doc for doc in app.env.found_docs if doc.startswith("book/")):
        doctree = (
            app.env.get_and_resolve_doctree(page, app.builder)
            if page == GLOSSARY
            else app.env.get_doctree(page)
        )
        of_page = terms(doctree) if page == GLOSSARY else entries(doctree, page)
        found += [{"u": app.builder.get_target_uri(page), **entry} for entry in of_page]
    _name(found)
    target = Path(app.outdir, "_static", "sections.json")
    target.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _name(found: list[Entry]) -> None:
    """Give the places that the glossary leads to its terms, too."""
    places = {
        f"{entry['u']}#{entry['a']}".rstrip("#"): entry
        for entry in reversed(found)
        if entry["k"] != "exercise"
    }
    for entry in found:
        for place in entry.pop("to", ()):
            known = places.get("book/" + place) or places.get("book/" + place.partition("#")[0])
            if known is not None:
                known.setdefault("s", []).extend([entry["t"], *entry["s"]])


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
