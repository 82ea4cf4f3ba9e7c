"""A page of highlighted source per file of Python or CUDA C++, and the links of ``playbook.show`` that lead there."""

from __future__ import annotations

import ast
import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx.application import Sphinx
from sphinx.util import logging

from .pages import PLAIN

LINK = re.compile(r'<a class="pb-source" href="[^"]*" data-file="([^"]*)" data-line="(\d+)">')
CODE = re.compile(r"(`+)([^`]+)\1")
TOPS = ("src", "widgets/playbook_widgets", "book/playbook_book")

_navigation: dict[tuple[int, int], dict[Any, str]] = {}
logger = logging.getLogger(__name__)


def source_files(root: Path) -> list[Path]:
    """The files that get a page, relative to ``root``."""
    found = (path for top in TOPS for suffix in (".py", ".cu") for path in (root / top).rglob(f"*{suffix}"))
    return sorted(path.relative_to(root) for path in found)


def page_name(file: Path) -> str:
    """Without a suffix; elu.cu is "elu-cu", since there is an elu.py."""
    name = file.stem if file.suffix == ".py" else file.name.replace(".", "-")
    return "source/" + file.with_name(name).as_posix()


def link_sources(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Point every ``a.pb-source`` of a page at the site's own page of that file."""

    def local(match: re.Match[str]) -> str:
        file, line = match.groups()
        if not Path(app.confdir, file).is_file():
            logger.warning("show() links to %s, which is not in the project", file, location=page)
        href = context["pathto"](page_name(Path(file))) + f"#L{line}"
        return f'<a class="pb-source" href="{href}" data-file="{file}" data-line="{line}">'

    if context.get("body"):
        context["body"] = LINK.sub(local, context["body"])


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Sphinx pages ``(name, context, template)``: one per file, and the list of them all."""
    root = Path(app.confdir)
    shown = _chapters_by_file(app)
    titles = [(page, app.env.titles[page].astext()) for page in sorted(app.env.found_docs)]
    kept = Path(app.doctreedir, "sources.json")
    old = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    new = {}
    folders: dict[str, list[dict[str, str]]] = {}
    for file in source_files(root):
        text = (root / file).read_text(encoding="utf-8")
        page, chapters = page_name(file), shown.get(file.as_posix(), [])
        digest = hashlib.sha256(json.dumps([text, chapters, titles]).encode()).hexdigest()
        known, summary = old.get(page, ("", ""))
        stale = digest != known or not Path(app.outdir, page + ".html").exists()
        new[page] = digest, _summary(file, text) if stale else summary
        folders.setdefault(file.parent.as_posix(), []).append(
            {"name": file.name, "page": page, "summary": new[page][1]}
        )
        if stale:
            context = {"title": file.as_posix(), "code": _lines(file, text), "shown": chapters}
            yield page, context, "pb-source.html"
    yield "source/index", {"title": "Source files", "folders": sorted(folders.items())}, "pb-sources.html"
    kept.write_text(json.dumps(new), encoding="utf-8")


def share_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Pages of source at one depth have the same list of chapters, which takes longer than all else on them."""
    make = context.get("toctree")
    if not page.startswith("source/") or make is None:
        return
    made = _navigation.setdefault((id(app), page.count("/")), {})

    def once(**options: Any) -> str:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = make(**options)
        return made[key]

    context["toctree"] = once


def _lines(file: Path, text: str) -> str:
    """Highlighted lines, each a span with the id that links name: ``L12``."""
    lexer = get_lexer_for_filename(file.name, stripnl=False)
    code = highlight(text, lexer, HtmlFormatter(nowrap=True))
    lines = enumerate(PLAIN.sub(r"\1", code).splitlines(), 1)
    return "".join(f'<span class="pb-line" id="L{number}">{line}\n</span>' for number, line in lines)


def _summary(file: Path, text: str) -> str:
    """First line of the module's docstring, or of a comment at the beginning, as HTML."""
    said = text.removeprefix("// ") if file.suffix == ".cu" else ast.get_docstring(ast.parse(text)) or ""
    line = said.partition("\n")[0]
    return CODE.sub(r"<code>\2</code>", html.escape(line, quote=False))


def _chapters_by_file(app: Sphinx) -> dict[str, list[tuple[str, str]]]:
    """File -> [(page, title)] of the chapters that show it, read from the pages just written."""
    shown: dict[str, list[tuple[str, str]]] = {}
    for page in sorted(app.env.found_docs):
        path = Path(app.outdir, page + ".html")
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        for file in sorted({html.unescape(name) for name, _ in LINK.findall(written)}):
            shown.setdefault(file, []).append((page, app.env.titles[page].astext()))
    return shown


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", link_sources)
    app.connect("html-page-context", share_navigation, priority=400)  # before the theme asks for it
    app.connect("html-collect-pages", source_pages)
