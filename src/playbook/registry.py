"""What labs add to the core, by kind and name: the core asks here, and knows no lab. Standard library only.

``labs.py`` fills it with the book's own, as places that are imported when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_PLACES: dict[str, dict[str, str]] = {}


def register(offers: Mapping[str, Mapping[str, str]]) -> None:
    """Offer, by kind and name, what stands at each place ("package.module:name")."""
    for kind, named in offers.items():
        _PLACES.setdefault(kind, {}).update(named)


def places(kind: str) -> Mapping[str, str]:
    """All that is offered of a kind, by name."""
    return _PLACES.get(kind, {})


def lab(kind: str, name: str) -> Any:
    """What is offered under a name, imported. Raises KeyError for a name that is not."""
    module, _, what = _PLACES[kind][name].partition(":")
    return getattr(import_module(module), what)
