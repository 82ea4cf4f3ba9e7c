"""Precision recipes: how many bytes a run keeps for each parameter, and in how many bytes it computes.

A recipe says it for the states (weights, gradients, master copy, moments) and for the activations: what matrix
products read (``compute``), what the residual stream between blocks is kept in (``residual``), and what the inputs
of linear layers are *saved* in (``linear_inputs``: 1 where they are quantised to FP8, 1/2 to FP4, else ``compute``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from playbook._checks import check_int, unknown
from playbook.errors import ConfigError
from playbook.layout.fields import MOMENTS
from playbook.precision.formats import load_format
from playbook.precision.recipes import FP8Recipe, load_fp8


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes per parameter of each kind of state, whatever the batch.

    Adam keeps two fp32 averages per parameter (8 bytes). Mixed precision computes in bf16 and keeps an fp32 master copy
    that the optimizer updates, because a small update added to a bf16 weight is rounded away (Micikevicius et al. 2017,
    arXiv 1710.03740; ZeRO, arXiv 1910.02054, section 3.1, counts the same 16 bytes).
    """

    parameters: int
    gradients: int
    master: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.master + self.optimizer


#: Training precisions by name, with Adam.
PRECISIONS: dict[str, BytesPerParameter] = {
    "fp32": BytesPerParameter(parameters=4, gradients=4, master=0, optimizer=8),
    "bf16-mixed": BytesPerParameter(parameters=2, gradients=2, master=4, optimizer=8),
    # Each backward pass leaves a bf16 gradient, which is then added to an fp32 one: both exist at once.
    "bf16-mixed-fp32-grads": BytesPerParameter(parameters=2, gradients=6, master=4, optimizer=8),
    # Megatron-LM's main gradients: a hook adds each bf16 gradient as soon as it is made, then frees it.
    "bf16-mixed-main-grads": BytesPerParameter(parameters=2, gradients=4, master=4, optimizer=8),
}


@dataclass(frozen=True)
class Recipe:
    """Bytes per element of each kind of tensor."""

    name: str
    states: BytesPerParameter
    compute: int
    residual: int
    linear_inputs: int  # or 1/2
    weight_copies: int = 0  # autocast keeps a 16-bit copy of every matrix until backward has used it
    source: str = ""
    fp8: FP8Recipe | None = None  # whose scales are counted, and copies of the weights of linear layers
    widened: int = 0  # bytes of fp32 copies of a chunk's states that are kept in fewer bits, per parameter

    def with_optimizer(self, bytes_per_parameter: int | None) -> Recipe:
        """This recipe with another optimizer: ``bytes_per_parameter`` of states, master weights included.

        None leaves it as it is. Plain SGD keeps 0, momentum 4, Adam in mixed precision 12 (ZeRO's K). Raises ConfigError
        for a negative number.
        """
        if bytes_per_parameter is None:
            return self
        check_int("optimizer_bytes", bytes_per_parameter, ConfigError, least=0)
        master = min(self.states.master, bytes_per_parameter)
        states = replace(self.states, master=master, optimizer=bytes_per_parameter - master)
        return replace(self, states=states)

    def with_fp8(self, name: str | FP8Recipe) -> Recipe:
        """This recipe with linear layers that multiply in FP8; "" leaves it as it is. Raises ConfigError for others."""
        fp8 = load_fp8(name) if name else None
        return replace(self, linear_inputs=fp8.element, fp8=fp8) if fp8 else self

    def at(self, wide: bool) -> Recipe:
        """This recipe where all blocks are alike: as those that stay in higher precision, or as the others."""
        if self.fp8 is None:
            return self
        linear_inputs = self.compute if wide else self.linear_inputs
        return replace(self, linear_inputs=linear_inputs, fp8=None if wide else self.fp8.everywhere)

    def with_moments(self, moments: str, masters: str = "fp32") -> Recipe:
        """This recipe with AdamW's states as TrainConfig's ``moments`` and ``masters`` say.

        Raises ConfigError for moments and formats that are unknown.
        """
        if moments not in MOMENTS:
            raise ConfigError(unknown("moments", str(moments), MOMENTS))
        both = [bytes_of(form) for form in MOMENTS[moments]]
        master = bytes_of(masters) if self.states.master else 0
        narrow = sum(0 < size < 4 for size in (*both, master))
        states = replace(self.states, master=master, optimizer=sum(both))
        return replace(self, states=states, widened=4 * narrow)


def _recipe(
    name: str, compute: int, residual: int, *, states: BytesPerParameter | None = None, **options
) -> Recipe:
    return Recipe(
        name, states or PRECISIONS[name], compute, residual, **{"linear_inputs": compute, **options}
    )


def bytes_of(form: str) -> int:
    """Bytes of a number in a format, by its name; 0 for "", where nothing is kept."""
    return load_format(form).bits // 8 if form else 0


def _fp8(name: str, *states: int) -> Recipe:
    """Weights, gradients, master and moments in so many bytes."""
    source = "summary of FP8 recipes in Tazi et al. 2025, The Ultra-Scale Playbook"
    return _recipe(name, 2, 2, linear_inputs=1, states=BytesPerParameter(*states), source=source)


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
        _fp8("fp8-transformer-engine", 4, 4, 0, 8),
        _fp8("fp8-lm-o3", 1, 3, 2, 3),
        _fp8("fp8-deepseek-v3", 1, 6, 4, 4),
        _fp8("fp8-nanotron", 1, 5, 2, 2),
    )
}


def load_recipe(name: str | Recipe) -> Recipe:
    """The recipe of that name; raises ConfigError for an unknown one."""
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise ConfigError(unknown("precision recipe", str(name), RECIPES))
    return RECIPES[name]


def recipe_of_run(
    *,
    weights: str = "float32",
    dtype: str = "float32",
    moments: str = "fp32",
    masters: str = "fp32",
    fp8: str = "",
) -> Recipe:
    """The recipe that the trainer runs, by those fields of TrainConfig that say so. Raises ConfigError as these do."""
    name = "bf16-mixed" if weights != "float32" else "fp32" if dtype == "float32" else "autocast"
    return RECIPES[name].with_moments(moments, masters).with_fp8(fp8)
