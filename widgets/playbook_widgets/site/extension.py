"""Sphinx extension of the book: what Jupyter Book does not do by itself.

Formulas are rendered at build time, ``playbook.show`` links lead to pages of highlighted source, widget
scripts load only where a widget is, and pages ask nothing of other hosts.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

from playbook.figures import style

#: What the extension is made of, each a module with a ``setup``.
PARTS = (
    "about", "browser_python", "code", "exercises", "folds", "glossary", "katex", "landing", "pages", "reference", "runs",
    "sections", "sources", "terms",
)  # fmt: skip
HERE = Path(__file__).parent
STATIC = HERE.parent / "static"


def copy_static(app: Sphinx) -> None:
    """Put the style sheets and widget modules where every page finds them: ``_static/pb/``."""
    if app.config.playbook_again:
        return
    target = Path(app.outdir, "_static", "pb")
    shutil.rmtree(target, ignore_errors=True)
    copy_asset(STATIC, target)
    (target / "palette.css").write_text(style.css_variables(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value(
        "playbook_again", False, "", bool
    )  # the last build was with these scripts, this library
    app.config.templates_path.append(str(HERE / "templates"))
    app.connect("builder-inited", copy_static)
    app.add_css_file("../vendor/fonts/fonts.css", priority=300)
    app.add_css_file("pb/palette.css", priority=800)
    app.add_css_file("pb/book.css", priority=810)
    for part in PARTS:
        import_module(f".{part}", __package__).setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
