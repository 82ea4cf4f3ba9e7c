"""Find a Chromium for the tests that look at pages, or install one.

Usage: python tools/chromium.py              print its path; status 1 and a loud message without one
       python tools/chromium.py --install    the same, after trying to install one where none is found
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

#: The headless shell first: it has no windows, and opens a page in a fifth of the time.
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NONE = """\
════════════════════════════════════════════════════════════════════════════
NO CHROMIUM: the tests in tests/browser, which look at every page, do NOT run.
Install one (apt-get install chromium; brew install --cask chromium) and call
make test again.
════════════════════════════════════════════════════════════════════════════"""


def find() -> str | None:
    """Path of a Chromium that starts; ``None`` without one."""
    on_path = [path for name in NAMES if (path := shutil.which(name))]
    return next((path for path in [*on_path, *APPLICATIONS, _playwrights_own()] if _starts(path)), None)


def _playwrights_own() -> str:
    """Where ``playwright install chromium`` puts its browser, asked in another process."""
    code = "from playwright.sync_api import sync_playwright\nwith sync_playwright() as p: "
    code += "print(p.chromium.executable_path)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return answer.stdout.strip()


def _starts(path: str) -> bool:
    """Whether the file is a browser: Ubuntu's ``chromium-browser`` may be a stub."""
    if not path or not Path(path).is_file():
        return False
    answer = subprocess.run([path, "--version", "--no-sandbox"], capture_output=True, text=True, timeout=60)
    return answer.returncode == 0 and bool(answer.stdout.strip())


def install() -> str | None:
    """Try the system's packages (as root), then playwright's download; the path of what then starts."""
    apt = shutil.which("apt-get")
    if apt and hasattr(os, "geteuid") and os.geteuid() == 0:
        print("No Chromium here: installing Debian's", file=sys.stderr, flush=True)
        quiet = {"stdout": sys.stderr, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run([apt, "update", "-qq"], **quiet)  # type: ignore[call-overload]
        for package in ("chromium-headless-shell", "chromium"):  # not every Debian has the former
            subprocess.run([apt, "install", "-y", "-qq", package], **quiet)  # type: ignore[call-overload]
            if found := find():
                return found
    print("No Chromium here: downloading playwright's", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], stdout=sys.stderr)
    return find()


def main() -> int:
    found = find() or (install() if "--install" in sys.argv[1:] else None)
    print(found or NONE, file=sys.stdout if found else sys.stderr, flush=True)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
