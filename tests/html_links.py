"""What a page links to and what can be linked in it, read from its HTML without a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

# The theme's own templates, which Sphinx copies beside the style sheets, and the page that only leads on.
NOT_PAGES = ("_static/", "_sources/", "reports/", "index.html")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@dataclass
class Links(HTMLParser):
    """Links, loaded files and ids of one page."""

    hrefs: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids += [attributes[name] for name in ("id", "name") if name in attributes and tag != "meta"][:1]
        if tag == "a" and "href" in attributes:
            self.hrefs.append(attributes["href"])
        if attributes.get(LOADED.get(tag, ""), ""):
            self.loaded.append(attributes[LOADED[tag]])


def links_of(path: Path) -> Links:
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def pages_of(site: Path) -> list[str]:
    """The site's pages, relative to it."""
    names = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return sorted(name for name in names if not name.startswith(NOT_PAGES))
