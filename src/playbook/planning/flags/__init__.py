"""A planned run in the words of frameworks: the model, the layout and the precision as people can paste them, and back.

What a framework refuses is a ConfigError; what it would do otherwise than planned is a line that begins with
``NOT EXPRESSED``. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from playbook.errors import ConfigError, PlaybookError
from playbook.planning.flags import (
    accelerate,
    config_text,
    deepspeed,
    megatron,
    megatron_text,
    own,
    torchtitan,
)
from playbook.planning.flags.pasted import Pasted

if TYPE_CHECKING:
    from playbook.planning.simulator import Run

FRAMEWORKS: dict[str, Callable[[Run], Iterator[str]]] = {
    "megatron": megatron.lines,
    "torchtitan": torchtitan.lines,
    "deepspeed": deepspeed.lines,
    "accelerate": accelerate.lines,
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


#: Characters of a text that is read.
LONGEST = 2**20
_FORMS: dict[str, tuple[Callable[[str], Pasted], str]] = {
    "Megatron-LM": (
        megatron_text.read,
        r"--(num[-_]layers|hidden[-_]size|(tensor|pipeline)[-_]model[-_]parallel)",
    ),
    "torchtitan": (config_text.read_torchtitan, r"(?m)^\s*\[(parallelism|training|model)\]"),
    "DeepSpeed": (config_text.read_deepspeed, r'"(zero_optimization|train_\w*batch_size\w*)"\s*:'),
    "Accelerate": (
        config_text.read_accelerate,
        r"(?m)^(distributed_type|compute_environment|mixed_precision):",
    ),
}


def form(text: str) -> str:
    """The framework whose words a text has; "" for another text."""
    return next((name for name, (_, words) in _FORMS.items() if re.search(words, text)), "")


def read(text: str) -> Pasted:
    """The run that a text describes: flags of Megatron-LM or a script with them, a configuration of torchtitan (TOML),
    DeepSpeed (JSON) or Accelerate (YAML). Raises ConfigError for another text, and for what cannot be read.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"the text has {len(text):,} characters, and a run at most {LONGEST:,}")
    if not (name := form(text)):
        raise ConfigError(
            "the text is a model's config.json, and no run: give it as the model"
            if '"model_type"' in text
            else "the text is no run that can be read: flags of Megatron-LM (with --num-layers, …), a TOML of "
            "torchtitan, a JSON of DeepSpeed, a YAML of Accelerate"
        )
    try:
        return _FORMS[name][0](text)
    except PlaybookError:
        raise
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the text looks like one of {name}, and has a value that it cannot have: {error}"
        ) from error
