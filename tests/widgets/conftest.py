"""A real Chromium and a page served on 127.0.0.1, made of a widget's own static HTML and the page runtime."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chromium import FLAGS
from playbook_widgets.site.browser_python import PYODIDE, write_all
from playwright.sync_api import Browser, sync_playwright

from playbook.figures import css_variables

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "widgets" / "playbook_widgets" / "static"

PAGE = """<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8"><title>Widget</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{palette} body {{ margin: 0; padding: 12px; background: #fff; color: #222 }}
html[data-theme=dark] body {{ background: #14181e; color: #ced6dd }}</style></head>
<body><main><h1>Widget</h1>{body}</main><script type="module" src="pb/host.mjs"></script></body></html>"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """A page that is closed in the middle of a download is no error."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Widgets first: Playwright runs once per thread, and the browser of ``tests/browser`` lives to the end."""
    items.sort(key=lambda item: Path(__file__).parent not in item.path.parents)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browser_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library and the snapshot that pages start Python from, as the site build makes them."""
    folder = tmp_path_factory.mktemp("python")
    write_all(folder, ROOT / "_build" / "python")
    return folder


@pytest.fixture
def widget_site(tmp_path: Path, browser_python: Path) -> Iterator[str]:
    """The address of a server on ``tmp_path``, with the widgets' static files under ``pb/`` and Python where the built
    book has it."""
    shutil.copytree(STATIC, tmp_path / "pb")
    (tmp_path / "pb" / "python").symlink_to(browser_python)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "pyodide").symlink_to(PYODIDE)
    server = QuietServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def open_page(browser: Browser, widget_site: str, tmp_path: Path) -> Iterator[Callable]:
    """``open_page(html, width=1280, theme="light")`` shows widgets; fails the test on any console error, script
    error or request to another host, unless ``errors`` says they are expected."""
    opened = []

    def show(
        body: str, *, width=1280, theme="light", errors=False, hash="", expose: dict | None = None, **options
    ):
        (tmp_path / "index.html").write_text(
            PAGE.format(body=body, theme=theme, palette=css_variables()), encoding="utf-8"
        )
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        page = context.new_page()
        problems: list[str] = []
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on(
            "request",
            lambda r: (
                problems.append(r.url) if not r.url.startswith((widget_site, "data:", "blob:")) else None
            ),
        )
        page.problems = problems
        for name, function in (expose or {}).items():
            page.expose_function(name, function)
        page.goto(f"{widget_site}/{hash}")
        opened.append((context, problems, errors))
        return page

    yield show
    for context, problems, errors in opened:
        context.close()
        assert errors or not problems, problems
