"""Build the book: render every page, run the chapters that have to be run, and call every warning an error.

Usage: python tools/build_book.py [--fresh] [--serve [--host 0.0.0.0] [--port 8000]] [--record]

All pages are rendered first, and with ``--serve`` served from then on; chapters run in reading order, and each page is
rendered again when its chapter has been run. A chapter is run when its own code, a module that it imports in the end, or
a pin has changed: outputs in the site are never older than the code they come from. With nothing changed a build takes a
second. ``--fresh`` forgets all earlier results; ``--record`` writes down how long each chapter ran, from which the time
left is told.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import outputs
import render as rendering
import runs
import serve
import vendor
import yaml

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "_build"
SITE = BUILD / "html"
STATE = outputs.STATE
CACHE = outputs.CACHE
DOCTREES = BUILD / ".doctrees"
FAILED = BUILD / "failed"
KEYS = BUILD / "keys.json"  # of chapters, by what they were worked out from
LOG = BUILD / "build.log"

# What every page depends on beside its chapter; what the source pages are made from; what is written by hand.
PAGES = (
    "widgets/playbook_widgets/site",
    "widgets/playbook_widgets/static",
    "src/playbook/figures/style.py",
    "_config.yml",
    "_toc.yml",
    "constraints.txt",
    "widgets/package-lock.json",
    "tools/vendor.py",
    "tools/icons.py",
)
SOURCES = (
    "src/playbook",
    "widgets/playbook_widgets/**/*.py",
    "book/playbook_book/**/*.py",
    "book/playbook_book/**/*.cu",
    "book/playbook_book/**/*.cpp",
)
TEXT = ("book/*.*", "book/**/*.ipynb")
FRONT = "book/index"
TAKES = re.compile(r"(?<=\*\*Takes\*\* )[^\"\\]*")


def fingerprint(patterns: Iterable[str]) -> str:
    """One hash over the files that the patterns name, folders with all they hold."""
    files: set[Path] = set()
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            files.update(path.rglob("*") if path.is_dir() else [path])
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & {*path.parts}:
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def present_state() -> dict[str, Any]:
    """What the site's parts come from, as hashes."""
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # none yet, or cut off while it was written
        known = json.loads(KEYS.read_text(encoding="utf-8"))
    chapters = outputs.keys(sorted((ROOT / "book").rglob("*.ipynb")), known)
    KEYS.write_text(json.dumps(dict([*known.items()][-10 * len(chapters) :])), encoding="utf-8")
    parts = {"pages": PAGES, "sources": SOURCES, "text": TEXT}
    return {"chapters": chapters, **{name: fingerprint(patterns) for name, patterns in parts.items()}}


def drop_all() -> None:
    """Forget runs and pages."""
    for folder in (CACHE, DOCTREES, SITE):
        shutil.rmtree(folder, ignore_errors=True)


def drop_what_is_stale(state: dict[str, Any]) -> dict[str, Any]:
    """Forget runs whose chapter's key has changed, and rendered pages whose chapter, or what renders them, has.

    Returns what the site that is left was rendered from.
    """
    old = json.loads(STATE.read_text(encoding="utf-8"))
    outputs.forget(outputs.stale(old.get("executed", {}), state["chapters"]), state["chapters"], CACHE)
    rendered = old.get("rendered", {})
    stale = outputs.stale(rendered.get("chapters", {}), state["chapters"])
    if rendered.get("pages") != state["pages"]:
        shutil.rmtree(DOCTREES, ignore_errors=True)
        shutil.rmtree(SITE, ignore_errors=True)
    if rendered.get("sources") != state["sources"]:
        stale.add(FRONT)  # Sphinx writes source pages only in a build that has read some page
    read_again(stale)
    remember(state["chapters"], rendered)
    return rendered


def read_again(pages: Iterable[str]) -> None:
    """Have Sphinx read these pages in its next build: it does when their doctree is missing."""
    for page in pages:
        (DOCTREES / page).with_suffix(".doctree").unlink(missing_ok=True)


def remember(executed: dict[str, str], rendered: dict[str, Any]) -> None:
    """Write down for which keys a run that jupyter-cache keeps is right, and what the site was rendered from."""
    BUILD.mkdir(exist_ok=True)
    STATE.write_text(json.dumps({"executed": executed, "rendered": rendered}), encoding="utf-8")


def reading_order() -> list[str]:
    """The pages in the order of the table of contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def to_run() -> dict[str, Path]:
    """The chapters of which no run is kept, in reading order."""
    from jupyter_cache import get_cache

    kept = {record.uri for record in get_cache(CACHE).list_cache_records()}
    chapters = {page: ROOT / f"{page}.ipynb" for page in reading_order()}
    return {page: path for page, path in chapters.items() if path.exists() and str(path) not in kept}


def complete_front_door() -> None:
    """The address of the site alone leads to the front page."""
    SITE.mkdir(parents=True, exist_ok=True)
    SITE.joinpath("index.html").write_text(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>playbook</title>\n'
        '<link rel="icon" href="_static/favicon.svg">\n'
        f'<meta http-equiv="Refresh" content="0; url={FRONT}.html">\n'
        "</head><body></body></html>\n",
        encoding="utf-8",
    )


def build(serving: Serving) -> bool:
    """Render, run, render again; whether the site is whole, without a failure or a warning."""
    state: dict[str, Any] = {}
    if STATE.exists():
        state = present_state()
        rendered = drop_what_is_stale(state)
        if rendered == state and not to_run() and (SITE / "index.html").exists():
            serving.begin()
            return True
    else:
        drop_all()
    shutil.rmtree(FAILED, ignore_errors=True)
    vendor.vendor_all()
    LOG.unlink(missing_ok=True)
    running = runs.Runs(to_run(), BUILD)
    try:
        return _build(state, running, serving)
    finally:
        running.stop()


def _build(state: dict[str, Any], running: runs.Runs, serving: Serving) -> bool:
    print("Rendering all pages", flush=True)
    complete_front_door()
    with sphinx() as process:
        if not state:  # it takes seconds where nothing is known, and is not needed before
            state = present_state()
            remember(state["chapters"], {})
        while process.is_alive() and not process.written.wait(0.1):
            pass
        serving.begin(complete=False)
    serving.complete()
    whole = process.exitcode == 0
    shown = {page: key for page, key in state["chapters"].items() if page not in running.pages}
    remember(state["chapters"], {**state, "chapters": shown})
    running.at_a_time = runs.room()
    for ended in running.ended():
        read_again(run.page for run in ended)
        with sphinx(running) as process:
            pass
        whole &= process.exitcode == 0
        shown |= {run.page: state["chapters"][run.page] for run in ended if not run.traceback}
        remember(state["chapters"], {**state, "chapters": shown})
        running.shown(ended)
    for run in running.failed_runs():
        print(f"\n═══ {run.page}\n{run.traceback}")
        whole = False
    if not whole:  # or the next build would think that the pages with warnings were fine
        shutil.rmtree(DOCTREES, ignore_errors=True)
    return whole


@contextlib.contextmanager
def sphinx(running: runs.Runs | None = None) -> Iterator[Any]:
    """Have Sphinx render what has changed, in a process of its own, which has ended after the ``with``.

    Its exit code is 0 where that went without a warning; its event ``written`` is set when pages can be read. With
    ``running``, it is a fork of the process that has imported everything.
    """
    context = running.context if running else multiprocessing.get_context("spawn")
    written = context.Event()
    process = context.Process(target=rendering.render, args=(ROOT, BUILD, running is not None, written))
    process.written = written
    process.start()
    try:
        yield process
        process.join()
    except BaseException:
        process.kill()
        raise


class Serving:
    """A server of the site, begun as soon as there is something to see; or none."""

    def __init__(self, wanted: bool, port: int | None, host: str = serve.HOST):
        self.wanted, self.port, self.host = wanted, port, host
        self.server: serve.Server | None = None

    def begin(self, complete: bool = True) -> None:
        """Serve from now on, and say where; who asks for what is not there waits until it is ``complete``."""
        if self.wanted and self.server is None:
            self.server = serve.start(SITE, self.port, self.host)
            if not complete:
                self.server.complete.clear()
            Thread(target=self.server.serve_forever, daemon=True).start()
            serve.announce(self.server)

    def complete(self) -> None:
        """All pages are there."""
        if self.server is not None:
            self.server.complete.set()

    def stay(self) -> None:
        """Serve until Ctrl-C."""
        while self.server is not None:
            signal.pause()

    def end(self) -> None:
        """Stop, if there is a server."""
        if self.server is not None:
            self.server.server_close()
            print("\nServer stopped.", flush=True)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait for other builds in this folder, and say so."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("a+") as lock:
        try:
            import fcntl
        except ImportError:  # Windows: nobody waits
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            print(f"Another build runs in this folder (process {lock.read()}): waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def record() -> None:
    """Write down how long each chapter ran, also in its head."""
    from jupyter_cache import get_cache

    records = get_cache(CACHE).list_cache_records()
    seconds = {outputs.page(Path(r.uri)): round(r.data["execution_seconds"], 1) for r in records}
    ordered = {page: seconds[page] for page in reading_order() if page in seconds}
    runs.SECONDS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    for page, took in ordered.items():
        path = ROOT / f"{page}.ipynb"
        text = TAKES.sub(runs.takes(took), path.read_text(encoding="utf-8"), count=1)
        path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="forget all earlier results")
    parser.add_argument(
        "--serve", action="store_true", help="serve the book from the first moment on, and stay"
    )
    parser.add_argument("--port", type=int, help="where to serve it; else the first free port from 8000 on")
    parser.add_argument("--host", default=serve.HOST, help="0.0.0.0: for other machines, too")
    parser.add_argument("--record", action="store_true", help="write down how long each chapter ran")
    options = parser.parse_args()
    # Stopped by a script, it leaves as from Ctrl-C; and a shell starts background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    start = time.monotonic()
    serving = Serving(options.serve, options.port, options.host)
    whole = False
    try:
        with alone():
            if options.fresh:
                for old in set(BUILD.iterdir()) - {BUILD / "lock"}:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            whole = build(serving)
            if whole and options.record:
                record()
        if whole:
            print(f"Built in {time.monotonic() - start:.0f} s: {SITE.relative_to(ROOT) / 'index.html'}")
        else:
            print("\nThe book is NOT whole: see the warnings and tracebacks above.", file=sys.stderr)
        sys.stdout.flush()
        serving.stay()
    except KeyboardInterrupt:
        if serving.server is None:
            print("\nStopped; what has been run is kept.", file=sys.stderr)
            return 130
    serving.end()
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
