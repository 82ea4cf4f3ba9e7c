"""Pages for tests of widgets, served on 127.0.0.1: a widget's own static HTML and the page runtime."""

from __future__ import annotations

import fcntl
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playbook_widgets.site.browser_python import PYODIDE, write_all
from playwright.sync_api import Browser, Page

from playbook.figures import css_variables

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "widgets" / "playbook_widgets" / "static"
PATIENCE = 180_000  # ms: the machine may be busy with other things

PAGE = """<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8"><title>Widget</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{palette} body {{ margin: 0; padding: 12px; background: #fff; color: #222 }}
html[data-theme=dark] body {{ background: #14181e; color: #ced6dd }}</style></head>
<body><main><h1>Widget</h1>{body}</main><script type="module" src="pb/host.mjs"></script></body></html>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """A test's own files, and beside them what the built book has in these places."""

    protocol_version = "HTTP/1.1"  # a page asks for thirty files
    places = (("vendor/pyodide/", PYODIDE), ("pb/", STATIC))

    def translate_path(self, path: str) -> str:
        name = path.partition("?")[0].lstrip("/") or "index.html"
        file: Path = self.server.folder / name  # type: ignore[attr-defined]
        for place, folder in () if file.exists() else self.places:
            if name.startswith(place):
                file = folder / name.removeprefix(place)
        return str(file)

    def end_headers(self) -> None:
        """Tests have the same page one after another: it keeps what all have alike, and nothing of a test's own."""
        file = Path(self.translate_path(self.path))
        alike = file.is_file() and not file.is_relative_to(self.server.folder)  # type: ignore[attr-defined]
        self.send_header("Cache-Control", "max-age=3600" if alike else "no-store")
        super().end_headers()

    def log_message(self, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    folder: Path

    def handle_error(self, *args: object) -> None:
        """A page that is closed in the middle of a download is no error."""


@pytest.fixture(scope="session")
def browser_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library and the snapshot that pages start Python from, as the site build makes them."""
    folder = tmp_path_factory.mktemp("python")
    cache = ROOT / "_build" / "python"
    cache.parent.mkdir(exist_ok=True)
    # Where the book is not built, the first of the test's processes makes the snapshot.
    with (cache.parent / "python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_all(folder, cache)
    return folder


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def widget_site(tmp_path: Path, browser_python: Path, server: Server) -> str:
    """The address of a server on ``tmp_path``, with the widgets' static files under ``pb/`` and Python where the built
    book has it."""
    (tmp_path / "pb").mkdir()
    (tmp_path / "pb" / "python").symlink_to(browser_python)
    server.folder = tmp_path
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture(scope="session")
def spare() -> list[Page]:
    """The page of the last test, as good as new: another one would cost more than what most tests do with it."""
    return []


def new_page(browser: Browser, site: str, **options: Any) -> Any:
    """A page that writes down ``problems``: console errors, script errors, requests to other hosts."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page: Any = context.new_page()
    page.problems, page.exposed = [], {}
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    local = (site, "data:", "blob:", "about:")
    page.on("request", lambda r: None if r.url.startswith(local) else page.problems.append(r.url))
    return page


@pytest.fixture
def open_page(
    browser: Browser, widget_site: str, tmp_path: Path, spare: list, request: pytest.FixtureRequest
) -> Iterator[Callable]:
    """``open_page(html, width=1280, theme="light")`` shows widgets; fails the test on any console error, script
    error or request to another host, unless ``errors`` says they are expected."""
    opened, failed = [], request.session.testsfailed

    def show(body: str, *, width=1280, theme="light", errors=False, hash="", expose: Any = None, **options):
        (tmp_path / "index.html").write_text(
            PAGE.format(body=body, theme=theme, palette=css_variables()), encoding="utf-8"
        )
        motion, allowed = options.pop("reduced_motion", "no-preference"), options.pop("permissions", ())
        page = spare.pop() if spare and not options else new_page(browser, widget_site, **options)
        opened.append((page, errors, options))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(reduced_motion=motion)
        page.context.grant_permissions(allowed)
        for name, function in (expose or {}).items():
            if name not in page.exposed:
                page.expose_function(name, lambda *args, name=name: page.exposed[name](*args))
            page.exposed[name] = function
        page.goto(f"{widget_site}/{hash}")
        return page

    yield show
    for page, errors, options in opened:
        problems = page.problems
        if options or spare or request.session.testsfailed > failed:
            page.context.close()
        else:
            page.evaluate("localStorage.clear()")
            page.goto("about:blank")
            page.emulate_media(media="null")
            page.mouse.move(0, 0)
            page.context.clear_permissions()
            page.problems = []
            spare.append(page)
        assert errors or not problems, problems
