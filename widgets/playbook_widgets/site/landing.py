"""The landing page: a schedule that moves, the map of the book, colour samples, the link to the source files."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from playbook.figures.style import PALETTE
from playbook.schedules.catalogue import make
from playbook.schedules.timeline import Slot, Timeline, Times, simulate
from playbook_book.exercises import exercises
from playbook_book.exercises.grading import CHAPTERS

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
        progress = '<p class="pb-progress" hidden></p>'  # progress.mjs says how far the reader is
        return [nodes.raw("", f'<div class="pb-map">{cards}</div>{progress}', format="html")]

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
            return (
                f'<li{self._exercises(chapter["file"])}><a href="{uri}">{title}</a> <span>{about}</span></li>'
            )
        return f'<li class="pb-to-come">{title} <em>to come</em> <span>{about}</span></li>'

    def _exercises(self, chapter: str) -> str:
        """The names of a chapter's exercises: the page counts which of them are solved in its browser."""
        if chapter not in CHAPTERS:
            return ""
        found = list(exercises(chapter))
        self.env.note_dependency(
            str(sys.modules[f"playbook_book.exercises.{chapter.replace('-', '_')}"].__file__)
        )
        return f' data-exercises="{" ".join(found)}"'


class MovingSchedule(SphinxDirective):
    """``{moving-schedule} 1f1b 4 8``: a schedule of so many ranks and micro-batches, over which a line of time passes.

    What lies behind the line is bright. It rests while a reader pauses it, and is not there for those who ask their
    system for less motion. The content is the caption, in which ``{idle}`` is the share of time that a rank waits.
    """

    required_arguments = 3
    has_content = True
    #: Of a unit of time, of a row and of the names of rows, in units of the picture.
    UNIT, ROW, NAMES = 27, 38, 76

    def run(self) -> list[nodes.Node]:
        name, ranks, microbatches = self.arguments
        timeline = simulate(make(name, int(ranks), int(microbatches)), Times(f=1, b=1, w=1))
        self.content.data = [
            line.replace("{idle}", f"{timeline.bubble_fraction:.0%}") for line in self.content
        ]
        figure = nodes.container(classes=["pb-moving"])
        figure += nodes.raw("", self._picture(name, timeline), format="html")
        self.state.nested_parse(self.content, self.content_offset, figure)
        return [figure]

    def _picture(self, name: str, timeline: Timeline) -> str:
        right, height = self.NAMES + self.UNIT * timeline.makespan, self.ROW * len(timeline.ranks)
        rows = "".join(self._row(rank, slots) for rank, slots in enumerate(timeline.ranks))
        words = f"The schedule {name}: {len(timeline.ranks)} rows for GPUs, with passes of micro-batches side by side."
        return (
            f'<svg viewBox="0 0 {right:g} {height}" role="img" aria-label="{words}">{rows}<g class="pb-time">'
            f'<rect class="pb-later" x="{self.NAMES}" width="{right:g}" height="{height}"/>'
            f'<line x1="{self.NAMES}" x2="{self.NAMES}" y2="{height}"/></g></svg>'
            '<label class="pb-pause"><input type="checkbox"> Pause</label>'
        )

    def _row(self, rank: int, slots: Iterable[Slot]) -> str:
        top, cells = rank * self.ROW, ""
        for slot in slots:
            x, width = self.NAMES + slot.start * self.UNIT, (slot.end - slot.start) * self.UNIT - 2
            op = slot.action.op[0]
            middle, number, size = (
                x + width / 2,
                slot.action.microbatch,
                f'width="{width:g}" height="{self.ROW - 6}"',
            )
            cells += f'<rect class="pb-op-{op}" x="{x:g}" y="{top + 2}" {size} rx="3"/>'
            cells += f'<text class="pb-op-{op}" x="{middle:g}" y="{top + 23}">{number}</text>'
        return f'<text x="0" y="{top + 23}">GPU {rank}</text>{cells}'


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
    app.add_directive("moving-schedule", MovingSchedule)
    app.add_role("swatch", Swatch())
    app.add_role("source-index", SourceIndex())
