"""Precision recipes: how many bytes a run keeps for each parameter, and in how many bytes it computes.

A recipe says it for the states (weights, gradients, master copy, moments) and for the activations: what matrix
products read (``compute``), what the residual stream between blocks is kept in (``residual``), and what the inputs
of linear layers are *saved* in (``linear_inputs``: 1 where they are quantised to FP8, else ``compute``).
"""

from __future__ import annotations

from dataclasses import dataclass

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.planning.states import PRECISIONS, BytesPerParameter


@dataclass(frozen=True)
class Recipe:
    """Bytes per element of each kind of tensor."""

    name: str
    states: BytesPerParameter
    compute: int
    residual: int
    linear_inputs: int
    weight_copies: int = 0  # autocast keeps a 16-bit copy of every matrix until backward has used it
    source: str = ""


def _recipe(
    name: str, compute: int, residual: int, *, states: BytesPerParameter | None = None, **options
) -> Recipe:
    return Recipe(
        name, states or PRECISIONS[name], compute, residual, **{"linear_inputs": compute, **options}
    )


_FP8 = "summary of FP8 recipes in Tazi et al. 2025, The Ultra-Scale Playbook"

#: Recipes by name. ``autocast`` is what the trainer runs with --dtype bfloat16 or float16; the FP8 rows are published
#: recipes: (weights, gradients, master, moments) bytes per parameter.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _recipe("fp32", 4, 4),
        _recipe("autocast", 2, 4, states=PRECISIONS["fp32"], weight_copies=2),
        _recipe("bf16-mixed", 2, 2),
        _recipe("bf16-mixed-fp32-grads", 2, 2),
        _recipe("bf16-mixed-main-grads", 2, 2),
        _recipe(
            "fp8-transformer-engine", 2, 2, linear_inputs=1, states=BytesPerParameter(4, 4, 0, 8), source=_FP8
        ),
        _recipe("fp8-lm-o3", 2, 2, linear_inputs=1, states=BytesPerParameter(1, 3, 2, 3), source=_FP8),
        _recipe("fp8-deepseek-v3", 2, 2, linear_inputs=1, states=BytesPerParameter(1, 6, 4, 4), source=_FP8),
        _recipe("fp8-nanotron", 2, 2, linear_inputs=1, states=BytesPerParameter(1, 5, 2, 2), source=_FP8),
    )
}


def load_recipe(name: str | Recipe) -> Recipe:
    """The recipe of that name; raises ConfigError for an unknown one."""
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise ConfigError(unknown("precision recipe", str(name), RECIPES))
    return RECIPES[name]
