"""One widget, two homes: a live view in a kernel, the same ES module in the static page.

A widget is a pure function ``inputs -> outputs`` and a module that draws them. In a kernel, anywidget syncs the
two traits. In the built book the cell's ``text/html`` carries the module's name, both traits and a plain summary
that stands until ``host.mjs`` has drawn.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from playbook.figures.style import css_variables

STATIC = Path(__file__).parent / "static"


class Widget(anywidget.AnyWidget):
    """Base of the book's widgets. A subclass sets ``script`` to its module in ``static/``.

    ``compute`` names the function behind the widget as "module:function", standard-library Python that the
    reader's browser can run; empty for a widget whose outputs are fixed when it is made.
    """

    _css = css_variables(".pb-widget, .pb-w") + (STATIC / "widgets.css").read_text(encoding="utf-8")
    script: ClassVar[str]
    compute: ClassVar[str] = ""

    inputs = traitlets.Dict().tag(sync=True)
    outputs = traitlets.Dict().tag(sync=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # traitlets derives a class per instance too; those inherit ``_esm`` from here.
        if "script" in cls.__dict__:
            cls._esm = STATIC / cls.script
        super().__init_subclass__(**kwargs)

    def summary(self) -> str:
        """HTML that says what the widget shows, for readers without JavaScript and for paper."""
        return f"<p>{html.escape(repr(self))}: this widget needs JavaScript.</p>"

    def spec(self) -> dict[str, Any]:
        """What the page needs to draw the widget: module, function, first state."""
        state = {"inputs": dict(self.inputs), "outputs": dict(self.outputs)}
        return {"esm": self.script, "compute": self.compute, "state": state}

    def static_html(self) -> str:
        """The widget of the static page, before any script has run."""
        # In a script element only "</" and "<!--" could end the text early; no "<" can do neither.
        text = json.dumps(self.spec(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        return (
            f'<div class="pb-widget" data-widget="{html.escape(self.script)}">'
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
