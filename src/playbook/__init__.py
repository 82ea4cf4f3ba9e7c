"""The library behind the book: one model, one layout, one schedule, one memory model, one trainer.

Importing ``playbook`` stays cheap: no torch until a module that computes is imported, and nothing at all before the
command line can answer Ctrl-C.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from playbook import labs as _labs  # noqa: F401  what the core may ask for by name

if TYPE_CHECKING:
    from playbook.source import show

__all__ = ["show"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``show``, imported when it is first asked for."""
    if name != "show":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = show = import_module("playbook.source").show
    return show


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
