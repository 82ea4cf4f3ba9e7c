"""What a page tells those who only link to it: a description; and in its footer which version it is, and how to cite it.

With ``html_baseurl`` set, pages have canonical addresses, and the site a map and a word for robots.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from playbook import __version__

#: Characters of a description that search engines and messengers show.
SHOWN = 200


def description(doctree: nodes.document) -> str:
    """The first paragraph of some length, cut at a word; not from a box."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = re.sub(r"\s+", " ", paragraph.astext())
        if isinstance(paragraph.parent, nodes.section) and len(text) > 60:
            return text if len(text) <= SHOWN else text[:SHOWN].rpartition(" ")[0].rstrip(",;:") + " …"
    return ""


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Description and OpenGraph's title, in the head of a page of the book."""
    if doctree is None:
        return
    title = doctree.next_node(nodes.title)
    told = {"og:site_name": app.config.project, "og:type": "article"}
    told["og:title"] = title.astext() if title else app.config.project
    if text := description(doctree):
        told |= {"description": text, "og:description": text}
    if context.get("pageurl"):
        told["og:url"] = context["pageurl"]
    tags = (
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" content="{html.escape(value)}"/>'
        for name, value in told.items()
    )
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def sign(app: Sphinx, config: Config) -> None:
    """The footer of every page."""
    options = config.html_theme_options
    options["extra_footer"] = (
        f"<p>{config.project} {__version__}, Apache License 2.0. To cite it: {config.author}, "
        f"<em>{config.project}</em>, {config.copyright}.</p>"
    )


def map_site(app: Sphinx, error: Exception | None) -> None:
    """``sitemap.xml`` and ``robots.txt``, where the address of the site is known."""
    base = app.config.html_baseurl
    if error or not base or app.builder.format != "html":
        return
    places = (app.builder.get_target_uri(page) for page in sorted(app.env.found_docs))
    urls = "".join(f"<url><loc>{base.rstrip('/')}/{place}</loc></url>" for place in places)
    name = "http" + "://www.sitemaps.org/schemas/sitemap/0.9"  # a name: nothing is loaded from there
    sitemap = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{name}">{urls}</urlset>\n'
    Path(app.outdir, "sitemap.xml").write_text(sitemap, encoding="utf-8")
    robots = f"User-agent: *\nSitemap: {base.rstrip('/')}/sitemap.xml\n"
    Path(app.outdir, "robots.txt").write_text(robots, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("config-inited", sign)
    app.connect("html-page-context", describe)
    app.connect("build-finished", map_site)
