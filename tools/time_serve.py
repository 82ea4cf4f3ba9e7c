"""Do what a newcomer does first, `make serve`, and say how long it took until there was something to read.

Usage: python3 tools/time_serve.py [make's arguments]

Prints the seconds from the command to the first page, to "First steps" with its outputs, and to the whole book; looks at
some pages, and ends the server as Ctrl-C does. Status 1 where one of these fails. Standard library only: it starts before
anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = "book/one-gpu/first-steps.html"
PENDING = 'class="pb-pending"'
PAGES = {
    "": "book/index.html",
    "book/index.html": "A map of the book",
    "book/one-gpu/memory.html": "Counting parameters",
    "book/tools/memory-calculator.html": "playbook memory --model",
}


class Serving:
    """`make serve`, with what it prints passed on."""

    def __init__(self, arguments: list[str]):
        self.start = time.monotonic()
        self.reached: dict[str, float] = {}
        self.address = ""
        self.said: list[str] = []
        self.process = subprocess.Popen(
            ["make", "serve", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(line, end="", flush=True)
            self.said.append(line)
            if line.startswith("Rendering all pages"):
                self.note("set-up")
            if match := re.search(r"The book is at (\S+)", line):
                self.address = match[1]
                self.note("the first page")
            if line.startswith(("Built in", "The book is NOT whole")):
                self.note("the whole book")

    def note(self, what: str) -> None:
        """``what`` has been reached now."""
        self.reached.setdefault(what, time.monotonic() - self.start)

    def get(self, page: str) -> str:
        """A page's HTML, or nothing while there is none."""
        with contextlib.suppress(OSError), urllib.request.urlopen(self.address + page, timeout=10) as answer:
            return answer.read().decode()
        return ""

    def watch(self) -> None:
        """Until the book is whole, or the command has ended."""
        while self.process.poll() is None and "the whole book" not in self.reached:
            time.sleep(0.5)
            if self.address and "First steps" not in self.reached:
                page = self.get(FIRST)
                if page and PENDING not in page:
                    self.note("First steps")

    def stop(self) -> bool:
        """End it as Ctrl-C does; whether it left cleanly."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return False
        self.reader.join(5)
        return "Server stopped.\n" in self.said


def main() -> int:
    serving = Serving(sys.argv[1:])
    wrong = []
    try:
        serving.watch()
        for page, words in PAGES.items():
            if words not in serving.get(page):
                wrong.append(f"{page or 'the site'} does not hold {words!r}")
        if PENDING in serving.get(FIRST):
            wrong.append(f"{FIRST} has no outputs")
    finally:
        if not serving.stop():
            wrong.append("the server did not stop cleanly")
    if not any(line.startswith("Built in") for line in serving.said):
        wrong.append("the book is not whole")
    for what, seconds in serving.reached.items():
        print(f"from the command to {what:16s} {seconds:6.0f} s")
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
