"""The page of the library's public names: Sphinx reads their docstrings, and here what fields say of themselves."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from playbook.source import Source

from .sources import page_name

#: Limits that a field may have (see ``playbook._checks.told``), in words.
LIMITS = {"least": "at least", "most": "at most", "below": "below"}
ARGUMENTS = re.compile(r"<dl>\n((?:<dd>.*?</dd>\n?)+)</dl>", re.DOTALL)


def describe_fields(app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append the fields of a dataclass whose declarations say what they are."""
    if kind == "class" and dataclasses.is_dataclass(obj):
        lines.extend(["", *fields_of(obj), ""])


def fields_of(cls: Any) -> Iterator[str]:
    """An item of a list for each field that has words: with its default and limits."""
    for field in dataclasses.fields(cls):
        told = field.metadata
        if not told.get("help"):
            continue
        limits = [f"bytes; its flag says {told['unit']}"] if told.get("unit") else []
        if told.get("choices"):
            limits.append("one of " + ", ".join(f"``{choice}``" for choice in told["choices"]))
        limits += [f"{words} {told[key]}" for key, words in LIMITS.items() if told.get(key) is not None]
        yield f"* ``{field.name} = {field.default!r}``: {told['help']}" + f" ({'; '.join(limits)})" * bool(
            limits
        )


def source_of(domain: str, info: dict[str, str]) -> str | None:
    """The line of a name in the site's page of its file, seen from a page in ``book/``."""
    obj: Any = import_module(info["module"])
    for part in info["fullname"].split("."):
        obj = inspect.getattr_static(obj, part)
        obj = getattr(obj, "fget", None) or getattr(obj, "func", None) or getattr(obj, "__func__", obj)
    source = Source(obj)
    return f"../{page_name(Path(source.relative))}.html#L{source.line}"


def name_arguments(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Arguments on lines of their own are no list of definitions, as which Sphinx writes them: there is no term."""
    if context.get("body"):
        context["body"] = ARGUMENTS.sub(_lines, context["body"])


def _lines(found: re.Match[str]) -> str:
    return found[1].replace("<dd>", '<span class="pb-argument">').replace("</dd>", "</span>")


def setup(app: Sphinx) -> None:
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.linkcode")
    app.config.linkcode_resolve = source_of
    app.connect("autodoc-process-docstring", describe_fields)
    app.connect("html-page-context", name_arguments)
