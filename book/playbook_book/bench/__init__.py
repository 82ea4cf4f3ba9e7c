"""``playbook bench``: ours against the best public peer, in turns within one run, as a ratio of medians."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from playbook._checks import unknown
from playbook.errors import ConfigError


def chosen(kind: str, only: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """``only``, each once; None: all that is ``known``. Raises ConfigError for what is not."""
    known = list(known)
    for name in only or ():
        if name not in known:
            raise ConfigError(unknown(kind, name, known))
    return known if only is None else list(dict.fromkeys(only))
