"""The book's widgets: ``from playbook_widgets import TraceViewer``.

Nothing is imported until asked for, so that the site build does not wait for the widget machinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playbook_widgets.base import Widget
    from playbook_widgets.trace_viewer import TraceViewer

__all__ = ["TraceViewer", "Widget"]


def __getattr__(name: str) -> Any:
    if name == "TraceViewer":
        from playbook_widgets.trace_viewer import TraceViewer

        return TraceViewer
    if name == "Widget":
        from playbook_widgets.base import Widget

        return Widget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
