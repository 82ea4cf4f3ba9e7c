"""Precision recipes: how many bytes a run keeps for each parameter, and in how many bytes it computes.

A recipe says it for the states (weights, gradients, master copy, moments) and for the activations: what matrix
products read (``compute``), what the residual stream between blocks is kept in (``residual``), and what the inputs
of linear layers are *saved* in (``linear_inputs``: 1 where they are quantised to FP8, else ``compute``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

    def with_optimizer(self, bytes_per_parameter: int | None) -> Recipe:
        """This recipe with another optimizer: ``bytes_per_parameter`` of states, master weights included.

        None leaves it as it is. Plain SGD keeps 0, momentum 4, Adam in mixed precision 12 (ZeRO's K). Raises ConfigError
        for a negative number.
        """
        if bytes_per_parameter is None:
            return self
        if (
            isinstance(bytes_per_parameter, bool)
            or not isinstance(bytes_per_parameter, int)
            or bytes_per_parameter < 0
        ):
            raise ConfigError(
                f"optimizer_bytes must be a whole number of at least 0, got {bytes_per_parameter!r}"
            )
        master = min(self.states.master, bytes_per_parameter)
        states = replace(self.states, master=master, optimizer=bytes_per_parameter - master)
        return replace(self, states=states)


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
