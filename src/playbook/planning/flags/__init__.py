"""A planned run in the words of frameworks: the model, the layout and the precision as people can paste them.

What a framework refuses is a ConfigError; what it would do otherwise than planned is a line that begins with
``NOT EXPRESSED``. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from playbook.errors import ConfigError
from playbook.planning.flags import deepspeed, megatron, own, torchtitan

if TYPE_CHECKING:
    from playbook.planning.simulator import Run

FRAMEWORKS: dict[str, Callable[[Run], Iterator[str]]] = {
    "megatron": megatron.lines,
    "torchtitan": torchtitan.lines,
    "deepspeed": deepspeed.lines,
    "playbook": own.lines,
}


def emit(framework: str, run: Run) -> str:
    """``run`` in the words of one of `FRAMEWORKS`. Raises ConfigError for another one, and for what it refuses."""
    if framework not in FRAMEWORKS:
        raise ConfigError(f"framework must be one of {', '.join(FRAMEWORKS)}, got {framework!r}")
    return "\n".join(FRAMEWORKS[framework](run))


def can_say(framework: str, run: Run) -> bool:
    """Whether a framework takes ``run``, be it with lines of what it would do otherwise."""
    try:
        emit(framework, run)
    except ConfigError:
        return False
    return True
