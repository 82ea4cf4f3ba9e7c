"""The built book on paper and for e-readers: _build/playbook.pdf and _build/playbook.epub.

Usage: python tools/paper.py pdf|epub [--site _build/html] [--out FILE]

Both are made from the pages that a build has written, in the order of the table of contents; no chapter runs again.
Chromium opens each page, draws its widgets and hands over its article (``paper.mjs``), which ``pdf.py`` prints and
``epub.py`` packs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import build_book
import chromium
import serve
import yaml

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

SCRIPT = build_book.ROOT / "widgets" / "playbook_widgets" / "site" / "paper.mjs"
#: Of an A4 page between its margins, in CSS pixels: 210 mm less twice 18 mm. Widgets are drawn for it.
WIDTH = 658
#: A widget's answer is in its page already, and a picture waits for no Python.
PYTHON = "**/python_worker.mjs"
#: What the landing page, whose title is the book's, is called in it.
PREFACE = "About this book"


@dataclass(frozen=True)
class Article:
    """A page's article as XHTML; ``name`` is its file or anchor, ``part`` its part, ``sections`` are ids and titles."""

    name: str
    part: str
    title: str
    sections: list[tuple[str, str]]
    html: str


@dataclass(frozen=True)
class Book:
    """All that a PDF or an EPUB is made of; ``pictures`` by file name, ``styles`` are addresses in the site."""

    title: str
    lead: str
    author: str
    articles: list[Article]
    styles: list[str]
    pictures: dict[str, bytes]


def contents() -> list[tuple[str, str]]:
    """Title of its part and page, for each page in reading order; those outside parts have none."""
    toc = yaml.safe_load((build_book.ROOT / "_toc.yml").read_text(encoding="utf-8"))
    parts = [(part["caption"], chapter["file"]) for part in toc["parts"] for chapter in part["chapters"]]
    return [("", toc["root"]), *parts]


def read(context: BrowserContext, address: str, chosen: list[tuple[str, str]], form: str) -> Book:
    """The articles of the ``chosen`` pages of the site at ``address``, for "pdf" or "epub"."""
    config = yaml.safe_load((build_book.ROOT / "_config.yml").read_text(encoding="utf-8"))
    names = {f"{page}.html": page.removeprefix("book/").replace("/", "-") for _, page in chosen}
    articles, styles, pictures, lead = [], {}, {}, ""
    page = context.new_page()
    page.route(PYTHON, lambda route: route.fulfill(body="", content_type="text/javascript"))
    for part, path in chosen:
        file = f"{path}.html"
        for failed in open_page(page, address + file):
            print(f"{path}: the widget {failed} could not be drawn", file=sys.stderr)
        shown = _pictures(page, names[file]) if form == "epub" else []
        pictures |= {picture["src"]: picture.pop("bytes") for picture in shown if picture}
        title = PREFACE if path == build_book.FRONT else ""
        given = {"path": file, "pages": names, "form": form, "title": title, "pictures": shown}
        told = page.evaluate("(given) => paper.article(given)", given)
        lead = lead or told["lead"]
        sections = [(id, title) for id, title in told["sections"] if id]
        articles.append(Article(names[file], part, told["title"], sections, told["html"]))
        styles |= dict.fromkeys(told["styles"])
    page.close()
    return Book(config["title"], lead, config["author"], articles, [*styles], pictures)


def open_page(page: Page, address: str) -> list[str]:
    """Show a page as print is, all widgets drawn; the names of those that failed."""
    page.goto(address, wait_until="load")
    page.add_script_tag(path=SCRIPT)
    return page.evaluate("paper.draw()")


def _pictures(page: Page, name: str) -> list[dict[str, Any] | None]:
    """A picture of each widget of a page, with its file name and words; none of a box for an answer."""
    found: list[dict[str, Any] | None] = []
    for number, widget in enumerate(page.locator(".pb-widget").all(), 1):
        words = widget.locator(".pb-widget-summary").first.text_content() or ""
        shown = widget.is_visible() and widget.get_attribute("data-widget") != "exercise.mjs"
        picture = {"src": f"{name}-{number}.png", "alt": " ".join(words.split())[:400]}
        found.append({**picture, "bytes": widget.screenshot()} if shown else None)
    return found


@contextlib.contextmanager
def opened(site: Path) -> Iterator[tuple[BrowserContext, str]]:
    """A browser that shows pages as print is, and the address of the site, served while it is open."""
    from playwright.sync_api import sync_playwright

    path = chromium.find()
    if path is None:
        sys.exit(chromium.NONE)
    server = serve.start(site)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=list(chromium.FLAGS))
            yield context_of(browser), serve.address(server)
            browser.close()
    finally:
        server.shutdown()
        server.server_close()


def context_of(browser: Any) -> BrowserContext:
    """Pages as wide as the text of a sheet, in its look, with two pixels for one in pictures."""
    size = {"width": WIDTH, "height": 1000}
    context = browser.new_context(
        viewport=size, device_scale_factor=2, reduced_motion="reduce", color_scheme="light"
    )
    context.set_default_timeout(120_000)
    context.on("page", lambda page: page.emulate_media(media="print"))
    return context


def main() -> int:
    import epub
    import pdf

    makers = {"pdf": pdf.make, "epub": epub.make}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("form", choices=makers)
    parser.add_argument("--site", type=Path, default=serve.SITE, help="the built site")
    parser.add_argument("--out", type=Path, help="file to write; else _build/playbook.pdf or .epub")
    options = parser.parse_args()
    if not (options.site / "index.html").is_file():
        sys.exit("The book is not built: run `make book`.")
    out = options.out or build_book.BUILD / f"playbook.{options.form}"
    start = time.monotonic()
    with opened(options.site) as (context, address):
        book = read(context, address, contents(), options.form)
        data, said = makers[options.form](book, context, address)
    out.write_bytes(data)
    print(
        f"{os.path.relpath(out)}: {said}, {len(data) / 1e6:.1f} MB, made in {time.monotonic() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
