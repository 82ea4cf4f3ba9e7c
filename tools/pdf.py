"""The book as one PDF: all articles in one document, printed twice, since the contents say on which pages they begin."""

from __future__ import annotations

import html
import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paper import Article, Book
    from playwright.sync_api import BrowserContext, Page

STYLE = Path(__file__).with_name("pdf.css")
PAGE = "paper.xhtml"
NUMBER = """(numbers) => {
  for (const place of document.querySelectorAll("[data-of]")) place.textContent = numbers[place.dataset.of];
}"""


def make(book: Book, context: BrowserContext, address: str) -> tuple[bytes, str]:
    """The bytes of the PDF, and how many pages it has."""
    page = show(book, context, address)
    data = print_with_numbers(page)
    page.close()
    return data, f"{len(sheets(data))} pages"


def show(book: Book, context: BrowserContext, address: str) -> Page:
    """The whole book in a browser, beside the pages of the site, whose style sheets and fonts it has."""
    page = context.new_page()
    text = document(book)
    page.route(address + PAGE, lambda route: route.fulfill(body=text, content_type="application/xhtml+xml"))
    page.goto(address + PAGE, wait_until="load")
    page.evaluate("document.fonts.ready.then(() => {})")
    return page


def print_with_numbers(page: Page) -> bytes:
    """The bytes of the PDF, printed again once it is known on which pages articles begin.

    Contents with numbers are as long as without, so that the second print is like the first; if not, there is a third.
    """
    data, numbers = _print(page), {}
    while numbers != (found := places(data)):
        numbers = found
        page.evaluate(NUMBER, numbers)
        data = _print(page)
    return data


def _print(page: Page) -> bytes:
    return page.pdf(prefer_css_page_size=True, print_background=True, outline=True, tagged=True)


def document(book: Book) -> str:
    """The whole book as one page of XHTML."""
    links = "".join(f'<link rel="stylesheet" href="{html.escape(style)}"/>' for style in book.styles)
    heads = "\n".join(_running_head(article) for article in book.articles)
    articles = "\n".join(_article(article) for article in book.articles)
    return (
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en" data-theme="light" data-mode="light"><head>'
        f"<title>{html.escape(book.title)}</title>{links}"
        f"<style>{STYLE.read_text(encoding='utf-8')}\n{heads}</style></head><body>"
        f'<header class="pb-title-page"><p class="pb-book-title">{html.escape(book.title)}</p>'
        f"<p>{html.escape(book.lead)}</p><p>{html.escape(book.author)}</p></header>"
        f'<nav class="pb-contents"><h1>Contents</h1>{_contents(book)}</nav>{articles}</body></html>'
    )


def _running_head(article: Article) -> str:
    """The article's title above each of its pages."""
    words = article.title.replace("\\", "\\\\").replace('"', '\\"')
    return f'@page {_page(article)} {{ @top-left {{ content: "{html.escape(words, quote=False)}"; }} }}'


def _page(article: Article) -> str:
    return "of-" + re.sub(r"[^\w-]", "-", article.name)


def _article(article: Article) -> str:
    return f'<article class="bd-article" id="{article.name}" style="page: {_page(article)}">{article.html}</article>'


def _contents(book: Book) -> str:
    """A list for each part, with room for the page on which each of its articles begins."""
    lists = ""
    for part, articles in groupby(book.articles, key=lambda article: article.part):
        rows = "".join(
            f'<li><a href="#{article.name}"><span>{html.escape(article.title)}</span>'
            f'<span data-of="{article.name}"></span></a></li>'
            for article in articles
        )
        lists += f"<h2>{html.escape(part)}</h2>" * bool(part) + f"<ol>{rows}</ol>"
    return lists


def sheets(data: bytes) -> list[int]:
    """The numbers of a PDF's page objects, in their order. It reads what Chromium writes: objects in plain sight."""
    kids = {
        int(number): [int(kid) for kid in re.findall(rb"(\d+) 0 R", listed)]
        for number, listed in re.findall(
            rb"(\d+) 0 obj\n<</Type /Pages\n(?:(?!endobj).)*?/Kids \[([^\]]*)\]", data, re.DOTALL
        )
    }
    below = {kid for listed in kids.values() for kid in listed}
    order, todo = [], [number for number in kids if number not in below]
    while todo:
        number = todo.pop(0)
        if number in kids:
            todo[:0] = kids[number]
        else:
            order.append(number)
    return order


def places(data: bytes) -> dict[str, int]:
    """On which page, from 1 on, the anchors are to which links of a PDF by Chromium lead."""
    page = {number: at for at, number in enumerate(sheets(data), 1)}
    found = re.findall(rb"/([^\s/\[\]<>()]+) \[(\d+) 0 R /XYZ [^\]]*\]", data)
    return {name_of(name): page[int(number)] for name, number in found if int(number) in page}


def name_of(name: bytes) -> str:
    """A name as it was before PDF wrote some of its characters as ``#`` and two hexadecimal digits."""
    return re.sub(rb"#([0-9A-Fa-f]{2})", lambda code: bytes.fromhex(code[1].decode()), name).decode("utf-8")
