"""The book as an EPUB 3: a file for each article, formulas as MathML, figures as they are, widgets as pictures."""

from __future__ import annotations

import html
import io
import os
import re
import time
import uuid
import zipfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from paper import Article, Book
    from playwright.sync_api import BrowserContext

STYLE = Path(__file__).with_name("epub.css")
CONTAINER = """<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="book/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>
"""
TYPES = {".xhtml": "application/xhtml+xml", ".css": "text/css", ".png": "image/png"}
#: What a reader's software is told of an article that holds such elements.
PROPERTIES = {"mathml": "<math", "svg": "<svg"}
COVER = """<style>
body { margin: 0; padding: 12%; box-sizing: border-box; height: 100vh; background: #1b2129; color: #ffffff; }
body { display: flex; flex-direction: column; justify-content: center; font: 34px/1.4 system-ui, sans-serif; }
h1 { font-size: 110px; margin: 0; }
</style>"""


def make(book: Book, context: BrowserContext, address: str) -> tuple[bytes, str]:
    """The bytes of the EPUB, and how many articles and pictures it has."""
    page = context.new_page()
    page.set_viewport_size({"width": 800, "height": 1200})
    lines = (
        f"<h1>{html.escape(book.title)}</h1><p>{html.escape(book.lead)}</p><p>{html.escape(book.author)}</p>"
    )
    page.set_content(COVER + lines)
    files = {"cover.png": page.screenshot()}
    page.close()
    return pack(book, files), f"{len(book.articles)} articles, {len(book.pictures)} pictures"


def pack(book: Book, files: dict[str, bytes]) -> bytes:
    """A zip of the articles, their pictures and further ``files``, with what lists them."""
    files = {**files, **book.pictures, "style.css": STYLE.read_bytes()}
    files |= {f"{article.name}.xhtml": _page(article.title, article.html) for article in book.articles}
    files["nav.xhtml"] = _page("Contents", _contents(book))
    files["content.opf"] = _package(book, files).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("mimetype", zipfile.ZIP_STORED), "application/epub+zip")
        archive.writestr(_entry("META-INF/container.xml"), CONTAINER)
        for name, data in files.items():
            archive.writestr(_entry(f"book/{name}"), data)
    return packed.getvalue()


def _entry(name: str, kind: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    """A file of the archive: the same articles make the same bytes."""
    entry = zipfile.ZipInfo(name, time.gmtime(_made())[:6])
    entry.compress_type = kind
    return entry


def _made() -> int:
    """When the book was made, in seconds since 1970."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))


def _page(title: str, body: str) -> bytes:
    """A file of XHTML; raises ``xml.etree.ElementTree.ParseError`` where it is not well formed."""
    text = (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
        '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">'
        f'<head><title>{html.escape(title)}</title><link rel="stylesheet" type="text/css" href="style.css"/></head>'
        f"<body>{body}</body></html>\n"
    ).encode()
    ElementTree.fromstring(text)
    return text


def _contents(book: Book) -> str:
    """Parts, articles and their sections."""
    lists = ""
    for part, articles in groupby(book.articles, key=lambda article: article.part):
        items = "".join(map(_item, articles))
        lists += f"<li><span>{html.escape(part)}</span><ol>{items}</ol></li>" if part else items
    return f'<nav epub:type="toc" role="doc-toc" id="toc"><h1>Contents</h1><ol>{lists}</ol></nav>'


def _item(article: Article) -> str:
    sections = [f"{_link(f'{article.name}.xhtml#{id}', title)}</li>" for id, title in article.sections]
    below = f"<ol>{''.join(sections)}</ol>" if sections else ""
    return f"{_link(f'{article.name}.xhtml', article.title)}{below}</li>"


def _link(place: str, title: str) -> str:
    return f'<li><a href="{html.escape(place)}">{html.escape(title)}</a>'


def _package(book: Book, files: dict[str, bytes]) -> str:
    """What the book is, which files it has, and in which order they are read."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_made()))
    meta = {
        "schema:accessMode": ("textual", "visual"),
        "schema:accessModeSufficient": ("textual,visual", "textual"),
        "schema:accessibilityFeature": (
            "alternativeText",
            "MathML",
            "structuralNavigation",
            "tableOfContents",
        ),
        "schema:accessibilityHazard": ("none",),
    }
    more = "".join(
        f'<meta property="{name}">{value}</meta>' for name, values in meta.items() for value in values
    )
    named = [(f"f{number}", name) for number, name in enumerate(files)]
    items = "".join(_listed(id, name, files[name]) for id, name in named)
    spine = "".join(
        f'<itemref idref="{id}"/>'
        for article in book.articles
        for id, name in named
        if name == f"{article.name}.xhtml"
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<package xmlns="http://www.idpf.org/2007/opf" version="3.0"'
        ' unique-identifier="id" xml:lang="en"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<dc:identifier id="id">urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, book.title)}</dc:identifier>'
        f"<dc:title>{html.escape(book.title)}</dc:title><dc:creator>{html.escape(book.author)}</dc:creator>"
        f"<dc:description>{html.escape(book.lead or book.title)}</dc:description><dc:language>en</dc:language>"
        f'<dc:rights>Apache License 2.0</dc:rights><meta property="dcterms:modified">{made}</meta>{more}</metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>\n"
    )


def _listed(id: str, name: str, data: bytes) -> str:
    """A file's line in the manifest."""
    fixed: Iterable[str] = {"nav.xhtml": ["nav"], "cover.png": ["cover-image"]}.get(name, [])
    has = [
        word
        for word, mark in PROPERTIES.items()
        if name.endswith(".xhtml") and re.search(mark, data.decode())
    ]
    words = " ".join([*fixed, *has])
    kind = TYPES[Path(name).suffix]
    return (
        f'<item id="{id}" href="{name}" media-type="{kind}"' + f' properties="{words}"' * bool(words) + "/>"
    )
