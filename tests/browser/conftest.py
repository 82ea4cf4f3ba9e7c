"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import FLAGS
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()
