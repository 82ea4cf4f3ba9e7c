"""Show the source that runs: a chapter prints a library function instead of repeating it."""

from __future__ import annotations

import html
import inspect
import os
import textwrap
from pathlib import Path
from typing import Any


class Source:
    """The source of a Python object, displayed as highlighted code under a link to its file.

    In a notebook it draws itself as HTML; in a terminal ``print`` gives the plain text.
    """

    def __init__(self, obj: Any, *, body_only: bool = False):
        """``body_only`` leaves out the docstring, for functions whose docstring the chapter has just told."""
        obj = inspect.unwrap(obj)
        try:
            lines, self.line = inspect.getsourcelines(obj)
            file = inspect.getsourcefile(obj)
        except (TypeError, OSError) as error:
            raise TypeError(
                f"show() needs a function, class or module written in Python, got {obj!r}"
            ) from error
        self.line = max(self.line, 1)
        self.path = Path(file or "?")
        self.name = getattr(obj, "__qualname__", getattr(obj, "__name__", repr(obj)))
        text = textwrap.dedent("".join(lines)).rstrip() + "\n"
        self.text = _without_docstring(text) if body_only else text

    @property
    def relative(self) -> str:
        """Path of the file inside the project, such as ``src/playbook/model/attention.py``."""
        parts = self.path.parts
        for top in ("src", "widgets"):
            if top in parts:
                return "/".join(parts[len(parts) - parts[::-1].index(top) - 1 :])
        return self.path.name

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        # Relative to the notebook, so that the link opens the file in JupyterLab; the built site turns it
        # into a link to its own page of that file.
        link = os.path.relpath(self.path) if self.path.is_absolute() else str(self.path)
        code = highlight(self.text, PythonLexer(), HtmlFormatter(nowrap=True))
        where = f"{html.escape(self.relative)}:{self.line}"
        return (
            '<div class="pb-show highlight"><div class="pb-show-head">'
            f"<code>{html.escape(self.name)}</code> "
            f'<a class="pb-source" href="{html.escape(link)}" data-file="{html.escape(self.relative)}" '
            f'data-line="{self.line}">{where}</a></div>'
            f'<pre tabindex="0" aria-label="Source of {html.escape(self.name)}">{code}</pre></div>'
        )

    def __repr__(self) -> str:
        return f"# {self.relative}:{self.line}\n{self.text}"


def _without_docstring(text: str) -> str:
    """The source with the docstring of its outermost function or class removed."""
    import ast

    node = ast.parse(text).body[0]
    body = getattr(node, "body", [])
    if not (
        body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant)
    ):
        return text
    lines = text.splitlines(keepends=True)
    return "".join(lines[: body[0].lineno - 1] + lines[body[0].end_lineno :])


def show(obj: Any, *, body_only: bool = False) -> Source:
    """The source of ``obj`` (a function, class or module), with a link to its file.

    Raises ``TypeError`` for anything that has no Python source.
    """
    return Source(obj, body_only=body_only)
