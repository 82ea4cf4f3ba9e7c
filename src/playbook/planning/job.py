"""What is trained, how it is spread, in which numbers: all that memory, messages and time of a step follow from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from playbook._checks import check_fields
from playbook.block import Kind
from playbook.errors import ConfigError
from playbook.hardware import Cluster
from playbook.layout import Layout
from playbook.layout.fields import OPTIMIZERS
from playbook.planning.fusion import KEPT, known_names, load_fused
from playbook.planning.recipes import Recipe, load_recipe
from playbook.registry import lab
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class Job:
    """``shape`` on samples of ``seq`` tokens, spread as ``layout`` says, which also has the batch and what is recomputed.

    ``recipe`` says in how many bytes things are kept and computed. ``attention`` is "sdpa" (flash kernels) or "reference"
    (scores in memory, where cp is 1), ``fused`` what runs as one kernel: all that the book has, or some of
    `fusion.FUSED`; ``keeps``, of `fusion.KEPT`, how its framework differs from the book's trainer. ``offload`` keeps
    master weights and moments in CPU memory; ``optimizer`` is adamw or, for matrices of blocks, muon; of packed documents
    ``document`` is the tokens of the one that a token is in, on average; ``device`` is the kernels whose memory is
    counted. Recipe and fused operations may be names. Raises ConfigError for what is not known.
    """

    shape: ModelShape
    layout: Layout = field(default_factory=Layout)
    seq: int = field(kw_only=True)
    recipe: Recipe = field(default="bf16-mixed", kw_only=True)  # type: ignore[assignment]
    attention: str = field(default="sdpa", kw_only=True, metadata={"choices": ("sdpa", "reference")})
    fused: frozenset[str] = field(default=frozenset(), kw_only=True)
    keeps: frozenset[str] = field(default=frozenset(), kw_only=True)
    offload: bool = field(default=False, kw_only=True)
    optimizer: str = field(default="adamw", kw_only=True, metadata={"choices": OPTIMIZERS})
    document: int | None = field(default=None, kw_only=True)
    device: str = field(default="cuda", kw_only=True, metadata={"choices": ("cuda", "cpu")})

    def __post_init__(self) -> None:
        recipe = load_recipe(self.recipe)
        states = recipe.states
        if "remainders" in self.keeps and states.parameters == 2:
            recipe = replace(recipe, states=replace(states, master=min(2, states.master)))
        object.__setattr__(self, "recipe", recipe)
        object.__setattr__(self, "keeps", known_names(self.keeps, "keeps", KEPT))
        eager = {"cross-entropy", "linear-cross-entropy"} if "eager-loss" in self.keeps else set[str]()
        object.__setattr__(self, "fused", load_fused(self.fused) - eager)
        check_fields(self, ConfigError)
        if self.optimizer == "muon" and self.offload:
            raise ConfigError("offload is True, but optimizer is muon, which goes without: leave one out")
        other = f"fp8={self.recipe.fp8.name}" if self.recipe.fp8 else "linear-cross-entropy fused"
        if self.shape.train != "full" and (self.recipe.fp8 or "linear-cross-entropy" in self.fused):
            raise ConfigError(
                f"train is {self.shape.train}, which goes without {other}: leave one of them out"
            )

    @property
    def padded(self) -> int:
        """Tokens of a sample, once it can be sharded evenly."""
        return self.layout.padded(self.seq)

    @property
    def seen(self) -> int:
        """Tokens that attention is computed over, for each of a sample, before the mask: of its document, or all."""
        return min(self.document or self.padded, self.padded)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of blocks that its stages can have."""
        kinds, some = tuple(self.shape.blocks(wide=self.wide)), self.layout.blocks_again is not None
        return kinds + tuple(kind._replace(whole=True) for kind in kinds) * some

    @property
    def wide(self) -> tuple[int, ...]:
        """How many of the first and last blocks stay in higher precision; () where none does."""
        return self.recipe.fp8.wide_blocks(self.shape.layers) if self.recipe.fp8 else ()

    def at(self, wide: bool) -> Job:
        """The same with all blocks as those in higher precision, or as the others."""
        copy = self.on(self.layout)
        vars(copy)["recipe"] = self.recipe.at(wide)
        return copy

    def on(self, layout: Layout, shape: ModelShape | None = None) -> Job:
        """The same, spread otherwise, or of another shape too: nothing else changes, so that nothing is checked again."""
        copy = object.__new__(Job)
        vars(copy).update(vars(self) | {"layout": layout, "shape": shape or self.shape})
        return copy

    def within(self, kernels: frozenset[str], keeps: frozenset[str]) -> Job:
        """The same in a framework that has these ``kernels``, as operations that are fused in any case, and ``keeps``."""
        known = kernels <= self.fused and keeps <= self.keeps
        return self if known else replace(self, fused=self.fused | kernels, keeps=self.keeps | keeps)

    def relayout(self, **changes: Any) -> Job:
        """The same with other fields of its layout."""
        return self.on(self.layout.replace(**changes))

    def check(self, cluster: Cluster | None = None) -> None:
        """Raise LayoutError for a layout that cannot train this (`Layout.check`)."""
        self.layout.check(self.shape, cluster, self.seq)
        if self.recipe.fp8 and self.recipe.fp8.dtype == "fp4":
            lab("fp4", "check")(self.shape, self.layout, self.seq, self.recipe.fp8)


@dataclass(frozen=True)
class OfJob:
    """What follows from a job, and has its parts at hand."""

    job: Job

    @property
    def shape(self) -> ModelShape:
        return self.job.shape

    @property
    def layout(self) -> Layout:
        return self.job.layout

    @property
    def seq(self) -> int:
        return self.job.seq

    @property
    def recipe(self) -> Recipe:
        return self.job.recipe

    @property
    def fused(self) -> frozenset[str]:
        return self.job.fused
