"""Build the book: execute the chapters that need it, render every page, and call every warning an error.

Usage: python tools/build_book.py [--fresh]     --fresh forgets all earlier results

A chapter is executed again when its own code, a module that it imports in the end, or a pin has changed: outputs in the
site are never older than the code they come from. With nothing changed a build takes seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import outputs
import vendor

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "_build"
SITE = BUILD / "html"
STATE = BUILD / "state.json"
CACHE = BUILD / ".jupyter_cache"
DOCTREES = BUILD / ".doctrees"
LOG = BUILD / "build.log"
REPORTS = SITE / "reports"
TIMES = BUILD / "execution.json"  # written by the Sphinx extension: seconds per chapter

# What every page depends on beside its chapter; and what the source pages are made from.
PAGES = (
    "widgets/playbook_widgets/sphinx_ext.py",
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
SOURCES = ("src/playbook", "widgets/playbook_widgets/**/*.py")
FRONT = "book/index"

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TELLING = re.compile(r"WARNING|ERROR|CRITICAL|Exception|Error:")
NOT_TELLING = re.compile(r"^\[IPKernelApp\]")  # each kernel says that it listens on TCP


def fingerprint(patterns: Iterable[str]) -> str:
    """One hash over the files that the patterns name, folders with all they hold."""
    files: set[Path] = set()
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            files.update(path.rglob("*") if path.is_dir() else [path])
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def drop_what_is_stale(state: dict[str, Any]) -> None:
    """Forget executed chapters whose key has changed, and rendered pages whose chapter, or what renders them, has."""
    old = json.loads(STATE.read_text(encoding="utf-8")) if STATE.exists() else {}
    outputs.forget(outputs.stale(old.get("executed", {}), state["chapters"]), state["chapters"], CACHE)
    rendered = old.get("rendered", {})
    stale = outputs.stale(rendered.get("chapters", {}), state["chapters"])
    if rendered.get("pages") != state["pages"]:
        shutil.rmtree(DOCTREES, ignore_errors=True)
        shutil.rmtree(SITE, ignore_errors=True)
    if rendered.get("sources") != state["sources"]:
        shutil.rmtree(SITE / "source", ignore_errors=True)
        stale.add(FRONT)  # Sphinx writes source pages only in a build that has read some page
    for page in stale:  # Sphinx reads a page again when its doctree is missing
        (DOCTREES / page).with_suffix(".doctree").unlink(missing_ok=True)
    remember(state["chapters"], rendered)


def remember(executed: dict[str, str], rendered: dict[str, Any]) -> None:
    """Write down for which keys an execution that jupyter-cache keeps is right, and what the site was rendered from."""
    BUILD.mkdir(exist_ok=True)
    STATE.write_text(json.dumps({"executed": executed, "rendered": rendered}), encoding="utf-8")


def present_state() -> dict[str, Any]:
    """What the site's parts come from, as hashes."""
    chapters = outputs.keys(sorted((ROOT / "book").rglob("*.ipynb")))
    return {"chapters": chapters, "pages": fingerprint(PAGES), "sources": fingerprint(SOURCES)}


def sphinx() -> int:
    """Run Jupyter Book; the log goes to a file, what tells something to the terminal."""
    programs = Path(sys.executable).parent
    command = [programs / "jupyter-book", "build", ".", "-W", "--keep-going", "-n"]
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    with process, LOG.open("w", buffering=1, encoding="utf-8") as log:
        for line in process.stdout:
            line = COLOURS.sub("", line)
            log.write(line)
            show(line.rstrip())
    return process.returncode


def show(line: str) -> None:
    """Print one line of the log if it tells something: a chapter that runs, a warning."""
    if match := re.match(r".*?/(book/\S+\.ipynb): Executing notebook", line):
        print(f"   {match[1]} … ", end="", flush=True)
    elif match := re.search(r"Executed notebook in ([\d.]+) seconds", line):
        print(f"{float(match[1]):.1f} s", flush=True)
    elif TELLING.search(line) and not NOT_TELLING.search(line):
        print(line.replace(f"{ROOT}/", ""), flush=True)


def print_failures() -> None:
    """The tracebacks of cells that failed; without one, the end of the log."""
    reports = sorted(REPORTS.rglob("*.log"))
    for report in reports:
        trace = COLOURS.sub("", report.read_text(encoding="utf-8"))
        cell = trace[max(0, trace.find("An error occurred while executing")) :]
        print(f"\n═══ {report.relative_to(REPORTS)}\n{cell.rstrip()}")
    if not reports:
        print("".join(LOG.read_text(encoding="utf-8").splitlines(keepends=True)[-15:]))


def complete_front_door() -> None:
    """Jupyter Book's index.html is a bare redirect: without an icon, browsers ask for one that is not there."""
    page = SITE / "index.html"
    redirect = page.read_text(encoding="utf-8")
    if "<title>" not in redirect:
        head = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>playbook</title>\n'
        icon = '<link rel="icon" href="_static/favicon.svg">\n'
        page.write_text(f"{head}{icon}{redirect.strip()}\n</head><body></body></html>\n", encoding="utf-8")


def print_times() -> None:
    times = json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}
    for chapter, seconds in sorted(times.items()):
        print(f"   {chapter:40s} {seconds:6.1f} s")
    print(f"   {'all chapters':40s} {sum(times.values()):6.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="forget all earlier results")
    if parser.parse_args().fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    start = time.monotonic()
    state = present_state()
    drop_what_is_stale(state)
    shutil.rmtree(REPORTS, ignore_errors=True)
    vendor.vendor_all()
    print("Building the book; chapters that have to run:", flush=True)
    status = sphinx()
    if status:
        print_failures()
        shutil.rmtree(
            DOCTREES, ignore_errors=True
        )  # or the next build would think the failed pages were fine
        print("\nThe book was NOT built: see the warnings and tracebacks above.", file=sys.stderr)
        return 1
    complete_front_door()
    remember(
        state["chapters"], state
    )  # only now: after a build that was stopped, stale pages are still stale
    print("Seconds that each chapter ran (at its last execution):")
    print_times()
    print(f"Built in {time.monotonic() - start:.0f} s: {SITE.relative_to(ROOT) / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
