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

ICONS = Path(__file__).parent / "icons"


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
            '<section class="pb-part">'
            f"{(ICONS / part['icon']).with_suffix('.svg').read_text(encoding='utf-8')}"
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
