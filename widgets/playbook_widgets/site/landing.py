"""The landing page: the map of the book, colour samples, the link to the source files."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from playbook.figures.style import PALETTE

ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII")

# One drawing per part, in a box of 48 × 32 units.
ICONS = {
    "one": '<rect x="16" y="8" width="16" height="16" rx="2"/>',
    "ring": '<circle cx="24" cy="16" r="11" fill="none" stroke="currentColor" stroke-width="2" opacity=".5"/>'
    '<circle cx="24" cy="5" r="4"/><circle cx="35" cy="16" r="4"/>'
    '<circle cx="24" cy="27" r="4"/><circle cx="13" cy="16" r="4"/>',
    "copies": "".join(f'<rect x="{x}" y="10" width="11" height="11" rx="2"/>' for x in (4, 18, 32)),
    "cut": '<rect x="12" y="5" width="11" height="10" rx="2"/><rect x="25" y="5" width="11" height="10" rx="2" '
    'opacity=".6"/><rect x="12" y="17" width="11" height="10" rx="2" opacity=".6"/>'
    '<rect x="25" y="17" width="11" height="10" rx="2"/>',
    "grid": "".join(
        f'<rect x="{6 + 9.5 * x}" y="{2.5 + 9.5 * y}" width="7" height="7" rx="1.5" opacity="{1 - 0.2 * ((x + y) % 3)}"/>'
        for x in range(4)
        for y in range(3)
    ),
    "chip": '<rect x="15" y="7" width="18" height="18" rx="2" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<rect x="20" y="12" width="8" height="8" rx="1"/>'
    '<path stroke="currentColor" stroke-width="2" d="M19 3v3m5-3v3m5-3v3M19 26v3m5-3v3m5-3v3M8 11h6m-6 5h6m-6 5h6'
    'M34 11h6m-6 5h6m-6 5h6"/>',
}


class BookMap(SphinxDirective):
    """``{book-map} map.yml`` draws the parts and chapters that the file names."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        self.env.note_dependency(str(Path(self.env.srcdir, self.config.external_toc_path)))
        parts = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        cards = "".join(self._part(number, part) for number, part in zip(ROMAN, parts, strict=False))
        return [nodes.raw("", f'<div class="pb-map">{cards}</div>', format="html")]

    def _part(self, number: str, part: dict[str, Any]) -> str:
        chapters = "".join(self._chapter(part["folder"], chapter) for chapter in part["chapters"])
        return (
            f'<section class="pb-part pb-part-{number.lower()}">'
            f'<svg viewBox="0 0 48 32" aria-hidden="true" fill="currentColor">{ICONS[part["icon"]]}</svg>'
            f'<h3><span class="pb-part-number">Part {number}</span> {html.escape(part["title"])}</h3>'
            f"<p>{html.escape(part['about'])}</p><ul>{chapters}</ul></section>"
        )

    def _chapter(self, folder: str, chapter: dict[str, str]) -> str:
        title, about = html.escape(chapter["title"]), html.escape(chapter["about"])
        page = f"book/{folder}/{chapter['file']}"
        if page in self.env.found_docs:
            uri = self.env.app.builder.get_relative_uri(self.env.docname, page)
            return f'<li><a href="{uri}">{title}</a> <span>{about}</span></li>'
        return f'<li class="pb-to-come">{title} <em>to come</em> <span>{about}</span></li>'


class Swatch(SphinxRole):
    """``{swatch}`parameters` ``: the name of a concept beside its colour."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        if self.text not in PALETTE:
            message = self.inliner.reporter.error(
                f"the palette has no concept {self.text!r}", line=self.lineno
            )
            return [], [message]
        sample = f'<span class="pb-swatch" style="background: var(--pb-{self.text})"></span>{self.text}'
        return [nodes.raw("", sample, format="html")], []


class SourceIndex(SphinxRole):
    """``{source-index}`words` ``: a link to the list of source pages, which is no Sphinx document."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        uri = self.env.app.builder.get_relative_uri(self.env.docname, "source/index")
        return [nodes.reference("", self.text, refuri=uri, internal=True)], []


def setup(app: Sphinx) -> None:
    app.add_directive("book-map", BookMap)
    app.add_role("swatch", Swatch())
    app.add_role("source-index", SourceIndex())
