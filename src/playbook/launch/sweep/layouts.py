"""What a sweep runs: layouts from a list or a grid, and what all of them have in common."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ConfigError, LayoutError
from playbook.layout import FIELDS

#: Axes whose product is the number of ranks, dp last: what a grid leaves out of it is filled in.
_RANKS = ("tp", "cp", "pp")


@dataclass(frozen=True)
class Spec:
    """What all configurations of a sweep share; it is kept in ``sweep.json``.

    ``model`` are the fields of its shape, ``train`` further flags of ``playbook train``. Of ``steps`` optimizer steps the
    first ``warmup`` are not counted; a configuration is run ``repeat`` times.
    """

    model: dict[str, Any]
    seq: int
    global_batch: int
    steps: int
    warmup: int
    repeat: int
    data: str | None = None
    train: tuple[str, ...] = ()

    def key(self, layout: str) -> str:
        """Names a configuration: the same layout of the same sweep has the same key, and no other one has."""
        text = json.dumps([dataclasses.asdict(self), layout], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def settle(self, folder: Path) -> None:
        """Write ``sweep.json``, or raise ConfigError where the folder holds a sweep of something else."""
        path, mine = folder / "sweep.json", json.loads(json.dumps(dataclasses.asdict(self)))
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_text(json.dumps(mine, indent=1) + "\n", encoding="utf-8")
            part.replace(path)
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON ({error}): name another folder") from None
        for name, value in mine.items():
            theirs = found.get(name) if isinstance(found, dict) else None
            if theirs != value:
                raise ConfigError(
                    f"{name} is {_short(value)}, but {folder} holds a sweep with {_short(theirs)}: name another folder"
                )


def _short(value: Any) -> str:
    """A model by its name, where it has one; anything else as it is."""
    if isinstance(value, Mapping):
        return repr(value.get("name") or "a model without a name")
    return " ".join(value) or "none" if isinstance(value, list) else repr(value)


@dataclass(frozen=True)
class Configuration:
    """One row: a layout, the flags of ``playbook train`` that run it, or the sentence that refuses it.

    ``fields`` are the columns that are known before anything has run, by name.
    """

    key: str
    flags: tuple[str, ...]
    ranks: int
    fields: dict[str, Any]
    refused: str = ""


def read_layouts(path: Path) -> list[str]:
    """The layouts of a file, one a line; blank lines and those that begin with # are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"layouts file {str(path)!r} cannot be read: {reason.lower()}") from None
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not found:
        raise ConfigError(f"layouts file {str(path)!r} holds no layout: write one a line, such as dp=2,tp=2")
    return found


def check_names(layouts: Iterable[str]) -> None:
    """Raise LayoutError for a field that no layout has: a typing error, not a layout that cannot run."""
    for layout in layouts:
        for part in filter(None, (part.partition("=")[0].strip() for part in layout.split(","))):
            if part not in FIELDS:
                raise LayoutError(unknown("layout field", part, FIELDS))


def grid(axes: Sequence[str], gpus: Sequence[int] = ()) -> list[str]:
    """Every combination of ``["dp=1,2", "tp=1,2", …]``, as layouts; with ``gpus``, those of so many ranks alone.

    A grid without dp has it filled in, where the other axes divide the number of GPUs. Raises ConfigError for what is no
    axis with values, and for a grid of which nothing is left.
    """
    values: dict[str, list[str]] = {}
    for axis in axes:
        name, equals, text = (part.strip() for part in axis.partition("="))
        several = [value.strip() for value in text.split(",")]
        if not equals or not all(several):
            raise ConfigError(f"grid has {axis!r}, but must be fields with values, such as dp=1,2 tp=1,2")
        check_names([name])
        if name in values:
            raise ConfigError(f"grid has {name} twice: give all its values at once")
        values[name] = several
    found = []
    for combination in itertools.product(*values.values()):
        one = dict(zip(values, combination, strict=True))
        found += _sized(one, gpus) if gpus else [one]
    if not found:
        raise ConfigError(f"grid has no layout of {' or '.join(map(str, gpus))} GPUs: give other values")
    return [",".join(f"{name}={value}" for name, value in one.items()) for one in found]


def _sized(one: dict[str, str], gpus: Sequence[int]) -> list[dict[str, str]]:
    """The layout if it has one of these numbers of ranks, with dp filled in where it has none."""
    others = 1
    for axis in _RANKS:
        others *= typed_int(axis, one.get(axis, 1), ConfigError)
    if "dp" in one:
        return [one] if others * typed_int("dp", one["dp"], ConfigError) in gpus else []
    return [{"dp": str(count // others), **one} for count in gpus if count % others == 0]
