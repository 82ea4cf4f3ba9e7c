"""Which numbers share a scale, and the recipes of FP8 training: what is quantised, to which format, in which groups.

Recipes are called as Megatron-LM calls them (``--fp8-recipe``). A linear layer has three products, and each needs
groups along the dimension that it sums over: y = x·Wᵀ along the inputs, dx = dy·W along the outputs, dW = dyᵀ·x along the
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.registry import lab, places


@dataclass(frozen=True)
class Groups:
    """Which numbers of a matrix share a scale: ``rows`` × ``columns`` neighbours, None being all that there are.

    ``powers`` makes scales powers of two, rounded "up", so that nothing is too large, or "down", as the OCP says.
    ``scale`` is the format that they are kept in.
    """

    name: str
    rows: int | None
    columns: int | None
    powers: str = ""
    scale: str = "fp32"

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale."""
        return {"fp32": 4, "e8m0": 1, "e4m3": 1}[self.scale]

    def size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns of a group in a matrix of this ``shape``."""
        return self.rows or shape[0], self.columns or shape[1]


#: Ways to share scales by name.
GROUPS = {
    one.name: one
    for one in (
        Groups("tensor", None, None),
        Groups("row", 1, None),
        Groups("tile", 1, 128),
        Groups("block", 128, 128),
        Groups("mx", 1, 32, powers="down", scale="e8m0"),
        Groups("nvfp4", 1, 16),
    )
}


def load_groups(name: str | Groups) -> Groups:
    """The groups of that name; raises ConfigError for an unknown one."""
    if isinstance(name, Groups):
        return name
    if name not in GROUPS:
        raise ConfigError(unknown("groups", str(name), GROUPS))
    return GROUPS[name]


@dataclass(frozen=True)
class FP8Recipe:
    """How the products of linear layers are computed in FP8.

    ``groups`` are those of inputs and of gradients of outputs, along the dimension that a product sums over, ``weights``
    those of weights; ``gradients`` is the format of dy, inputs and weights being in ``forward``. With ``history`` a
    tensor's scale comes from the largest magnitudes that it had in so many steps before this one, else from itself.
    """

    name: str
    groups: Groups
    weights: Groups
    gradients: str = "e4m3"
    forward: str = "e4m3"
    history: int = 0
    source: str = ""
    #: Bytes of a number, the tensor cores that multiply it, and whether a tensor has a scale beside those of its groups.
    element, dtype, whole_scale = 1, "fp8", False

    def wide_blocks(self, layers: int) -> tuple[int, ...]:
        """How many of the first and of the last blocks multiply in higher precision; () where none does."""
        return ()

    @property
    def everywhere(self) -> FP8Recipe:
        """The same without such blocks."""
        return self

    @property
    def turns(self) -> bool:
        """Whether groups of a weight are those of its transpose, too: one copy then serves y and dx."""
        return self.weights.rows == self.weights.columns


_TILE = Groups("tile", 1, 128, powers="up")
_BLOCK = Groups("block", 128, 128, powers="up")
_TENSOR, _ROW, _MX = GROUPS["tensor"], GROUPS["row"], GROUPS["mx"]

#: Recipes by name. Scales of tiles and blocks are powers of two, as Transformer Engine's are unless it is told
#: otherwise: an input that is grouped along features for y is then grouped along tokens for dW with hardly a second
#: rounding.
FP8_RECIPES = {
    one.name: one
    for one in (
        FP8Recipe("delayed", _TENSOR, _TENSOR, "e5m2", history=16, source="Micikevicius et al. 2022, section 3.2"),
        FP8Recipe("tensorwise", _TENSOR, _TENSOR, "e5m2", source="Micikevicius et al. 2022, section 3.2"),
        FP8Recipe("rowwise", _ROW, _ROW, source="torchao's float8 recipe rowwise"),
        FP8Recipe("blockwise", _TILE, _BLOCK, source="DeepSeek-AI 2024, section 3.3.2"),
        FP8Recipe("mxfp8", _MX, _MX, source="OCP Microscaling formats specification 1.0; Mishra et al. 2025"),
    )
}  # fmt: skip


def load_fp8(name: str | FP8Recipe) -> FP8Recipe:
    """The FP8 recipe of that name, or one of a lab, with its options; raises ConfigError for an unknown one."""
    if isinstance(name, FP8Recipe):
        return name
    own, _, options = str(name).partition(",")
    if own in places("recipe"):
        return lab("recipe", own)(options)
    if name not in FP8_RECIPES:
        raise ConfigError(unknown("FP8 recipe", str(name), (*FP8_RECIPES, *places("recipe"))))
    return FP8_RECIPES[name]
