"""One build by Sphinx with Jupyter Book's configuration: reads and writes the pages that have changed.

Each runs in a process of its own, since a Sphinx that builds twice numbers chapters on from where it was.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any, TextIO

import kernels

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Warnings:
    """A stream for Sphinx's warnings: to the log, and to the terminal without colours and this machine's paths."""

    def __init__(self, log: TextIO, root: Path):
        self.log, self.root = log, f"{root}/"

    def write(self, text: str) -> int:
        """Pass a text on."""
        text = COLOURS.sub("", text)
        self.log.write(text)
        sys.stdout.write(text.replace(self.root, ""))
        return len(text)

    def flush(self) -> None:
        """Nothing waits here."""
        self.log.flush()
        sys.stdout.flush()


def render(root: Path, build: Path, again: bool = False, written: Any = None) -> None:
    """Build the site of the project at ``root``; ends the process with status 1 where there was a warning.

    The event ``written`` is set when all pages are there but those of source files, which take as long again. With
    ``again``, pages alone may have changed since the last build, and neither scripts nor the library.
    """
    import pybtex.plugin
    from jupyter_book.config import get_final_config
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    if again:
        kernels.Turn(build).take()  # a cell that is being timed is not disturbed
    # It looks through all that is installed for each citation.
    pybtex.plugin._load_entry_point = functools.cache(pybtex.plugin._load_entry_point)
    config, _ = get_final_config(
        user_yaml=root / "_config.yml", cli_config={"latex_individualpages": False}, sourcedir=root
    )
    with (
        (build / "build.log").open("a", buffering=1, encoding="utf-8") as log,
        patch_docutils(None),
        docutils_namespace(),
    ):
        app = Sphinx(
            srcdir=root,
            confdir=None,
            outdir=build / "html",
            doctreedir=build / ".doctrees",
            buildername="html",
            confoverrides={**config, "playbook_again": again},
            status=log,
            warning=Warnings(log, root),  # type: ignore[arg-type]
            warningiserror=True,
            keep_going=True,
        )
        app.setup_extension("sphinx_multitoc_numbering")
        if written:
            app.connect("html-collect-pages", lambda app: written.set() or [], priority=0)
        app.build()
    sys.exit(app.statuscode)
