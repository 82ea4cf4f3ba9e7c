"""One widget, two homes: a live view in a kernel, the same ES module in the static page.

A widget is a pure function ``inputs -> outputs`` and a module that draws them. In a kernel, anywidget syncs the
traits and the module, with all that it imports as one text (``modules``), and the function runs here. In the built book
the cell's ``text/html`` carries the module's name, the traits and a plain summary that stands until ``host.mjs`` has
drawn; the function runs in the reader's browser.
"""

from __future__ import annotations

import html
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from playbook.figures.style import css_variables
from playbook_widgets.modules import bundle

STATIC = Path(__file__).parent / "static"


class Widget(anywidget.AnyWidget):
    """Base of the book's widgets. A subclass sets ``script`` to its module in ``static/``.

    ``compute`` names the function behind the widget as "module:function", standard-library Python that the reader's
    browser can run; empty for a widget whose outputs are fixed when it is made. ``name`` is the widget's id in a page and
    the key of its state in the page's address; empty for a widget without such state. Beside the module, and of the same
    name, are a style sheet, and a folder with the modules that no other widget imports. ``constants`` never change while
    the widget lives.
    """

    script: ClassVar[str]
    compute: ClassVar[str] = ""
    name: ClassVar[str] = ""
    #: Inputs that warm up a page's Python, where the first ones would take more memory than Python starts with.
    warm: ClassVar[Mapping[str, Any]] = {}
    #: Style sheets of other widgets, whose parts this one has.
    styles: ClassVar[tuple[str, ...]] = ()

    inputs = traitlets.Dict().tag(sync=True)
    outputs = traitlets.Dict().tag(sync=True)
    constants = traitlets.Dict().tag(sync=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # traitlets derives a class per instance too; those inherit ``_esm`` from here.
        if "script" in cls.__dict__:
            cls._esm = bundle(STATIC / cls.script)
            sheets = [STATIC / sheet for sheet in ("widgets.css", *cls.styles, cls.style())]
            rules = [sheet.read_text(encoding="utf-8") for sheet in sheets if sheet.exists()]
            cls._css = css_variables(".pb-widget, .pb-w") + "".join(rules)
        super().__init_subclass__(**kwargs)

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch", **traits: Any):
        """``start`` says when a page loads Python for a widget with ``compute``: "touch", when the reader reaches for
        it, "view", as soon as it is seen, or "module", when the widget's own module says so."""
        self._start = start
        if self.compute and inputs is not None and "outputs" not in traits:
            traits["outputs"] = self.function()(inputs)
        super().__init__(inputs=dict(inputs or {}), **traits)

    @classmethod
    def style(cls) -> str:
        """File name of the widget's own style sheet, which need not exist."""
        return Path(cls.script).with_suffix(".css").name

    @classmethod
    def function(cls) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The function that ``compute`` names."""
        module, _, name = cls.compute.partition(":")
        return getattr(importlib.import_module(module), name)

    @traitlets.observe("inputs")
    def _recompute(self, change: Mapping[str, Any]) -> None:
        # Not for the inputs that it is made with: their outputs are there already.
        if self.compute and change["old"] is not traitlets.Undefined and change["old"] != {}:
            self.outputs = self.function()(change["new"])

    def summary(self) -> str:
        """HTML that says what the widget shows, for readers without JavaScript and for paper."""
        return f"<p>{html.escape(repr(self))}: this widget needs JavaScript.</p>"

    def spec(self) -> dict[str, Any]:
        """What the page needs to draw the widget: module, function, first state."""
        state = {key: dict(getattr(self, key)) for key in ("inputs", "outputs", "constants")}
        spec = {"esm": self.script, "compute": self.compute, "name": self.name, "start": self._start}
        sheets = [*self.styles, *([self.style()] if (STATIC / self.style()).exists() else [])]
        return {**spec, "css": sheets, "state": state}

    def static_html(self) -> str:
        """The widget of the static page, before any script has run."""
        # In a script element only "</" and "<!--" could end the text early; no "<" can do neither.
        text = json.dumps(self.spec(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        anchor = f' id="{html.escape(self.name)}"' if self.name else ""
        return (
            f'<div class="pb-widget" data-widget="{html.escape(self.script)}"{anchor}>'
            f'<div class="pb-widget-summary">{self.summary()}</div>'
            f'<script type="application/json" class="pb-widget-spec">{text}</script></div>'
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The live view for a kernel, and HTML for everything else."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/html": self.static_html()}, metadata

    def __repr__(self) -> str:
        # ipywidgets would print every trait: a page of numbers in each notebook.
        return f"{type(self).__name__}()"
