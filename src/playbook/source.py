"""Show the source that runs: a chapter prints a library function instead of repeating it."""

from __future__ import annotations

import html
import inspect
import os
import re
import textwrap
from pathlib import Path
from typing import Any


class Source:
    """The source of a Python object, or of a kernel in CUDA C++, displayed as highlighted code under a link to its file.

    In a notebook it draws itself as HTML; in a terminal ``print`` gives the plain text.
    """

    def __init__(self, obj: Any, *, body_only: bool = False, function: str = ""):
        """``body_only`` leaves out the docstring, for functions whose docstring the chapter has just told."""
        if isinstance(obj, Path):
            self.path, self.name = obj, function or obj.name
            self.line, self.text = _paragraph(obj, function)
            return
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
        for top in ("src", "widgets", "book"):
            if top in parts:
                return "/".join(parts[len(parts) - parts[::-1].index(top) - 1 :])
        return self.path.name

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import get_lexer_for_filename

        # Relative to the notebook, so that the link opens the file in JupyterLab; the built site turns it
        # into a link to its own page of that file.
        link = os.path.relpath(self.path) if self.path.is_absolute() else str(self.path)
        code = highlight(self.text, get_lexer_for_filename(self.path.name), HtmlFormatter(nowrap=True))
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


def _paragraph(path: Path, function: str) -> tuple[int, str]:
    """Where ``function`` begins and its text, with what stands above it up to a blank line; without a name, all."""
    line, text = 1, path.read_text(encoding="utf-8")
    for paragraph in text.split("\n\n") if function else [text]:
        if not function or re.search(rf"\b{re.escape(function)}\(", paragraph):
            return line, paragraph.rstrip() + "\n"
        line += paragraph.count("\n") + 2
    raise ValueError(f"{path.name} has no function {function!r}")


def show(obj: Any, *, body_only: bool = False, function: str = "") -> Source:
    """The source of ``obj`` (a function, class or module), with a link to its file.

    Of a file in CUDA C++, given by its path, ``function`` is shown, with the comments and definitions right above it:
    ``show(SOURCES / "matmul.cu", function="tiled")``. Raises ``TypeError`` for anything that has no Python source,
    ``ValueError`` for a function that the file does not have.
    """
    return Source(obj, body_only=body_only, function=function)
