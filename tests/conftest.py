"""Fixtures that tests of several rooms share, and the loud word at the end when tests lacked a program."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

# Two cores are shared with other processes: tests compute on one thread, unless they measure speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nor do they, or what they start, interrupt each other: while one that has a lock is interrupted, gloo's threads spin.
if hasattr(os, "SCHED_BATCH"):
    with contextlib.suppress(OSError):  # some sandboxes forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

import chromium as chromium_tool
import pytest
import serve
import slurm as slurm_tool

from playbook import launch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

try:
    import hypothesis
except ImportError:  # tests of GPUs need nothing but PyTorch and pytest
    pass
else:  # no test is about time, and a machine that does other things as well may be slow for a moment
    # In CI the same examples each time: what fails there comes of the change, and fails again.
    hypothesis.settings.register_profile("playbook", deadline=None, derandomize="CI" in os.environ)
    hypothesis.settings.load_profile("playbook")

ROOT = Path(__file__).resolve().parents[1]
AXE = ROOT / "widgets" / "node_modules" / "axe-core" / "axe.min.js"
NO_CHROMIUM = "no Chromium"
NO_BOOK = "the book is not built"
NO_TRITON = "no Triton 3.6.0"


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Whatever ran before it, and in which process, a test draws the same numbers."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def built_book() -> Path:
    """Folder of the built site. Without one the test is skipped, and the summary says so; in CI it fails."""
    if not (serve.SITE / "index.html").is_file():
        (pytest.fail if "CI" in os.environ else pytest.skip)(NO_BOOK)
    return serve.SITE


class Kept(serve.Handler):
    """Tests open a hundred pages, which have scripts, styles and fonts in common: the browser loads them once.

    And axe-core, which they have from ``/axe.js``: so it is compiled once as well.
    """

    def translate_path(self, path: str) -> str:
        return str(AXE) if path == "/axe.js" else super().translate_path(path)

    def send_header(self, keyword: str, value: str) -> None:
        kept = keyword == "Cache-Control" and not self.path.partition("?")[0].endswith(
            ("/", ".html", ".json")
        )
        super().send_header(keyword, "max-age=3600" if kept else value)


@pytest.fixture(scope="session")
def site(built_book: Path) -> Iterator[str]:
    """Address of the built book, served as ``make serve`` does."""
    server = serve.start(built_book)
    server.RequestHandlerClass = functools.partial(Kept, directory=str(built_book))  # type: ignore[assignment]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield serve.address(server)
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; the test is skipped where there is none, and the summary says so in capitals."""
    path = chromium_tool.find()
    if path is None:
        pytest.skip(NO_CHROMIUM)
    return path


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """The one browser of all tests of a process, since Playwright can be started once: each test has a context of it."""
    from playwright.sync_api import Page, sync_playwright

    # Who asks at every frame, as Playwright does, has the page drawn sixty times a second until it gets its answer.
    waits = functools.partialmethod(Page.wait_for_function, polling=30)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setattr(Page, "wait_for_function", waits)
        here = (
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"  # nothing leaves it
        )
        browser = playwright.chromium.launch(executable_path=chromium, args=[*chromium_tool.FLAGS, here])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def ranks() -> Callable[..., launch.Ranks]:
    """``ranks(function, 3, ranks=4)`` runs ``function(3)`` as 4 ranks: ``launch.run``, on CPU, from a warm process.

    They have more time than a busy machine needs: only what hangs takes so long.
    """
    return functools.partial(launch.run, backend="gloo", timeout=1200)


def pytest_collection() -> None:
    """Nothing that is imported becomes garbage: to look through it again and again is a third of the work."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: who collects garbage in a test looks through what the tests have made."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: a test in three waits for a browser, or for ranks that start."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured (``record_property("measured", "…")``), and what nobody looked at."""
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "measured":
                terminalreporter.write_line(f"measured: {text}")
    seconds: Counter[str] = Counter()
    for outcome in ("passed", "failed", ""):  # "": of setting up and of taking down
        for report in terminalreporter.stats.get(outcome, []):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if sum(seconds.values()) > 60:
        terminalreporter.section("files that took longest")
        for file, spent in seconds.most_common(25):
            terminalreporter.write_line(f"{spent:7.1f} s  {file}")
    everything = terminalreporter.stats.get("skipped", [])
    if gpus := sum("CUDA device" in str(report.longrepr) for report in everything):
        terminalreporter.write_line(f"{gpus} tests did NOT run: they need GPUs", yellow=True)
    remedies = {
        NO_CHROMIUM: chromium_tool.NONE,
        slurm_tool.MISSING: slurm_tool.NONE,
        NO_BOOK: f"{NO_BOOK}: run `make book`",
        NO_TRITON: f"{NO_TRITON}, which GPU machines have: pip install --no-deps --target FOLDER triton==3.6.0, then "
        "PLAYBOOK_TRITON=FOLDER",
    }
    for reason, remedy in remedies.items():
        skipped = [report for report in everything if reason in str(report.longrepr)]
        if skipped:
            terminalreporter.write_line(remedy, red=True)
            names = sorted({report.nodeid.partition("[")[0] for report in skipped})
            terminalreporter.write_line(f"{len(skipped)} tests did NOT run: {', '.join(names)}", red=True)


@pytest.fixture
def handle_interrupts() -> Iterator[Callable[[object], object]]:
    """Sets a handler for Ctrl-C, first Python's own: where tests run in the background, Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)
