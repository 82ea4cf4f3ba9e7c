"""Links between the pages of the built book: each leads to a page and a place that exist."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from html_links import Links, links_of, pages_of


@pytest.fixture(scope="module")
def pages(built_book: Path) -> dict[str, Links]:
    return {name: links_of(built_book / name) for name in pages_of(built_book)}


def test_every_chapter_of_the_contents_has_a_page(pages: dict[str, Links]) -> None:
    assert {"book/index.html", "book/errata.html", "book/references.html"} <= set(pages)
    assert sum(name.startswith("book/one-gpu/") for name in pages) == 5


def test_links_lead_somewhere(built_book: Path, pages: dict[str, Links]) -> None:
    broken = []
    for name, links in pages.items():
        for href in links.hrefs:
            parts = urlsplit(href)
            if parts.scheme or parts.netloc:
                continue
            target = (built_book / name).parent / unquote(parts.path) if parts.path else built_book / name
            place = unquote(parts.fragment).partition("?")[0]  # "bits?number=0.1" is a widget and its inputs
            page = target.resolve().relative_to(built_book.resolve()).as_posix()
            if not target.is_file():
                broken.append(f"{name}: {href} leads to no file")
            elif parts.fragment and page in pages and place not in pages[page].ids:
                broken.append(f"{name}: {href} names no place of that page")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, Links]) -> None:
    away = [f"{name}: {url}" for name, links in pages.items() for url in links.loaded if urlsplit(url).netloc]
    assert away == []


def test_ids_are_unique(pages: dict[str, Links]) -> None:
    twice = {name: [i for i, n in Counter(links.ids).items() if n > 1] for name, links in pages.items()}
    theme_own = {"search.html": ["search-input"]}  # the search page shows the theme's search field twice
    assert {name: ids for name, ids in twice.items() if ids} == theme_own
