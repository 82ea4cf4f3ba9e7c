"""Recipes of training in four bits: nvfp4, mxfp4, and each without one of its ingredients.

A product reads E2M1 numbers in blocks along the dimension that it sums over. Beside the blocks, four ingredients make it
train (NVIDIA 2025, "Pretraining Large Language Models with NVFP4", arXiv 2509.25149, section 4), each a field here and
an option of the name: ``nvfp4,hadamard=off``. Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.precision.recipes import FP8Recipe, Groups

_SAID = {"on": True, "true": True, "off": False, "false": False}


@dataclass(frozen=True)
class FP4Recipe(FP8Recipe):
    """How the products of linear layers are computed in four bits; ``groups`` are those of x and dy.

    ``hadamard``: both factors of a weight's gradient are multiplied by a random Hadamard matrix, as wide as a block,
    along the tokens, which are summed over: it spreads outliers over their block. ``stochastic``: gradients of outputs
    are rounded up or down at random, right on average. ``square``: a weight's blocks are square, so that forward and
    backward see the same numbers. ``wide``: this part of the blocks, the last ones and at least one, multiply as without
    FP4, and so do so many of the ``first``.
    """

    hadamard: bool = True
    stochastic: bool = True
    square: bool = True
    wide: float = 0.16
    first: int = 0

    def __post_init__(self) -> None:
        side = self.block if self.square else 1
        object.__setattr__(self, "weights", dataclasses.replace(self.groups, rows=side))

    @property
    def block(self) -> int:
        """Numbers that share a scale."""
        assert self.groups.columns is not None
        return self.groups.columns

    @property
    def whole_scale(self) -> bool:  # type: ignore[override]
        """Whether a tensor has a scale in fp32 beside those of its blocks."""
        return self.groups.scale == "e4m3"

    @property
    def element(self) -> float:  # type: ignore[override]
        """Bytes of a number."""
        return 0.5

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The tensor cores that multiply it."""
        return "fp4"

    @property
    def everywhere(self) -> FP4Recipe:
        return dataclasses.replace(self, wide=0.0, first=0)

    @property
    def turns(self) -> bool:
        """Weights travel as they are: what would be sent in blocks has to be packed again."""
        return False

    def wide_blocks(self, layers: int) -> tuple[int, ...]:
        """How many of the first and last blocks multiply as without FP4. Raises ConfigError where that is all of them."""
        count = max(1, round(self.wide * layers)) if self.wide else 0
        if self.first + count >= layers:
            raise ConfigError(
                f"layers is {layers}, but {self.name} keeps {self.first + count} in higher precision: take more layers, "
                "or wide=0"
            )
        return (self.first, count) if self.first + count else ()


_NVFP4 = FP4Recipe(
    "nvfp4", Groups("nvfp4", 1, 16, scale="e4m3"), Groups("nvfp4", 16, 16, scale="e4m3"), "e2m1", "e2m1",
    source="NVIDIA 2025, arXiv 2509.25149, section 4",
)  # fmt: skip
_MX = Groups("mx", 1, 32, powers="down", scale="e8m0")
_MXFP4 = FP4Recipe(
    "mxfp4", _MX, _MX, "e2m1", "e2m1",
    source="OCP Microscaling formats specification 1.0, with the ingredients of arXiv 2509.25149",
)  # fmt: skip


def nvfp4(options: str = "") -> FP4Recipe:
    """Blocks of 16 with scales in E4M3, and one in fp32 for a tensor: its largest magnitude becomes 6 · 448."""
    return _with(_NVFP4, options)


def mxfp4(options: str = "") -> FP4Recipe:
    """Blocks of 32 whose scales are powers of two, in E8M0."""
    return _with(_MXFP4, options)


def _with(recipe: FP4Recipe, options: str) -> FP4Recipe:
    """``recipe`` with options "hadamard=off,wide=0.25". Raises ConfigError, a sentence, for what is not known."""
    found: dict[str, bool | float] = {}
    for option in filter(None, (part.strip() for part in options.split(","))):
        key, _, value = option.partition("=")
        if key not in _READ:
            raise ConfigError(unknown(f"option of {recipe.name}", key, tuple(_READ)))
        found[key] = _READ[key](key, value)
    said = {key: value for key, value in found.items() if getattr(recipe, key) != value}
    words = (f"{key}={_WORDS.get(str(value), value)}" for key, value in said.items())
    return dataclasses.replace(recipe, name=",".join([recipe.name, *words]), **said)  # type: ignore[arg-type]


def _switch(key: str, value: str) -> bool:
    if value not in _SAID:
        raise ConfigError(f"{key} is {value!r}, but must be on or off")
    return _SAID[value]


def _share(key: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise ConfigError(f"{key} is {value!r}, but must be a part of the blocks: at least 0, less than 1")
    return share


def _count(key: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigError(f"{key} is {value!r}, but must be a number of blocks")
    return int(value)


#: What reads each option, and how what it has read is written.
_READ = {"hadamard": _switch, "stochastic": _switch, "square": _switch, "wide": _share, "first": _count}
_WORDS = {"True": "on", "False": "off"}
