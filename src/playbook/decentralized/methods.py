"""Data parallelism that sends less, by name: ``local:H=16``, ``gossip:ring``, ``topk:0.01``. Standard library only.

What ``playbook train --data-parallel`` and ``Layout(data_parallel=…)`` take beside the ways of adding up whole
gradients; ``strategies.py`` carries them out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook._checks import unknown
from playbook.decentralized.topology import NAMES as TOPOLOGIES
from playbook.decentralized.topology import topology
from playbook.errors import ConfigError, LayoutError
from playbook.layout.fields import DATA_PARALLEL

if TYPE_CHECKING:
    from playbook.layout import Layout
    from playbook.training.config import TrainConfig

#: Of each method its options with their defaults, those of the papers; the first must be given, and may be without its
#: name. ``H`` is a number of steps, ``r`` a rank; in the first ``start`` steps whole gradients are added up.
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"H": 16, "start": 0},
    "slowmo": {"H": 16, "momentum": 0.7, "lr": 1.0, "start": 0},
    "diloco": {"H": 16, "lr": 0.7, "momentum": 0.9, "start": 0},
    "gossip": {"topology": "one-peer-exponential", "start": 0},
    "powersgd": {"r": 4, "start": 0},
    "topk": {"share": 0.01, "start": 0},
}
#: Methods whose replicas differ between messages.
APART = ("local", "slowmo", "diloco", "gossip")


@dataclass(frozen=True)
class Method:
    """A method and its options, as ``text`` says them."""

    text: str
    name: str
    options: dict[str, Any]

    @property
    def apart(self) -> bool:
        """Whether replicas have other weights than each other."""
        return self.name in APART

    def check(self, layout: Layout) -> None:
        """Raise LayoutError for a layout that has more than replicas: each of those has its own rule for messages."""
        others = [
            f"{axis}={size}" for axis in ("cp", "tp", "pp", "ep") if (size := getattr(layout, axis)) > 1
        ]
        others += [f"zero={layout.zero}"] if layout.zero else []
        if others:
            raise LayoutError(
                f"data_parallel is {self.text!r}, which trains whole replicas: the layout can have dp alone, not "
                + ", ".join(others)
            )
        if self.name == "gossip":
            topology(self.options["topology"], layout.dp)

    def check_run(self, config: TrainConfig) -> None:
        """Raise ConfigError for what ranks would have to agree on, or where fp32 weights are not what is trained."""
        if config.layout.dp == 1:
            raise ConfigError(
                f"data_parallel is {self.text!r}, but the layout has one replica: give it dp=2 or more, or leave it out"
            )
        if config.dtype == "float16":
            raise ConfigError(
                f"dtype is float16, but with data_parallel={self.text} ranks do not see each other's gradients, so that "
                "no scale of the loss suits all: take bfloat16"
            )
        if config.weights != "float32" or config.offload:
            what = "offload is on" if config.offload else f"weights are {config.weights}"
            raise ConfigError(
                f"{what}, but data_parallel={self.text} averages weights and gradients in float32 where they are: "
                "leave it out"
            )


def parse(text: str) -> Method:
    """The method of ``name:value,option=value``. Raises ConfigError for what is no method, or cannot be."""
    name, _, rest = text.partition(":")
    if name not in OPTIONS:
        known = ", ".join((*DATA_PARALLEL, *map(_example, OPTIONS)))
        raise ConfigError(f"data_parallel must be one of {known}, got {text!r}")
    defaults = OPTIONS[name]
    first, given = next(iter(defaults)), {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, equals, value = part.partition("=")
        key, value = (key, value) if equals else (first, part)
        if key not in defaults:
            raise ConfigError(f"data_parallel is {text!r}: {unknown('option', key, defaults)}")
        given[key] = _value(text, key, value, defaults[key])
    if first not in given:
        raise ConfigError(f"data_parallel is {text!r}, but needs {first}: as in {_example(name)}")
    return Method(text, name, {**defaults, **given})


def _value(text: str, key: str, value: str, default: Any) -> Any:
    """``value`` as what the default is, if it can be."""
    if isinstance(default, str):
        return _topology(value)
    if isinstance(default, int):
        least = min(default, 1)
        if not (re.fullmatch(r"[0-9]{1,9}", value) and int(value) >= least):
            raise ConfigError(
                f"data_parallel is {text!r}: {key} is {value!r}, but must be a whole number of at least {least}"
            )
        return int(value)
    number = _float(value)
    valid = {"share": "above 0 and at most 1", "momentum": "at least 0 and below 1"}.get(key, "above 0")
    inside = {"share": 0 < number <= 1, "momentum": 0 <= number < 1}.get(key, 0 < number < float("inf"))
    if not inside:
        raise ConfigError(f"data_parallel is {text!r}: {key} is {value!r}, but must be a number {valid}")
    return number


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _topology(name: str) -> str:
    """A topology by its name, or by a beginning that no other has."""
    found = (
        [name] if name in TOPOLOGIES else [known for known in TOPOLOGIES if name and known.startswith(name)]
    )
    if len(found) != 1:
        raise ConfigError(unknown("topology", name, TOPOLOGIES))
    return found[0]


def _example(name: str) -> str:
    key, value = next(iter(OPTIONS[name].items()))
    return f"{name}:{value}" if name in ("gossip", "topk") else f"{name}:{key}={value}"
