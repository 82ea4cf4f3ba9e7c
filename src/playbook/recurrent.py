"""Layers in which a state stands for attention, to be planned: keys and values of all tokens so far are summed up in a
matrix for each head, which a token reads with its query. No product grows with the sequence, and nothing is kept of all
pairs of tokens.

What tells them apart is how a token changes the state (``rule``): ``mamba2`` lets it decay and adds (Dao and Gu 2024,
arXiv 2405.21060); ``delta`` also takes away what stood under the same key (Gated DeltaNet, Yang et al. 2024, arXiv
2412.06464); ``kda`` lets each of its rows decay by itself (Kimi Linear, arXiv 2510.26692); ``lightning`` has decays that
nobody learns (MiniMax-01, arXiv 2501.08313); ``convolution`` has no state but the last tokens (LFM2, arXiv 2511.23404).
Weights are those of transformers' models, which tests count. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from playbook._checks import check_divides, check_fields
from playbook.block import Kind, Layer, Linear, Norm
from playbook.errors import LayoutError, ShapeError

RULES = ("mamba2", "delta", "kda", "lightning", "convolution")
#: What linear layers read.
READS, GIVES = "projections input", "output projection input"
#: What a convolution over the last tokens goes over: queries, keys and values.
MIXED = "(2*J*N+H*P)"
DELTA = ("delta", "kda")


@dataclass(frozen=True)
class Recurrent:
    """``heads`` of a state of ``state`` × ``head_dim``, whose queries and keys ``groups`` of heads share, after a
    convolution over ``kernel`` tokens. ``gate``: the other blocks' attention is multiplied by a gate of its own.

    Raises :class:`ShapeError` for sizes that do not go together.
    """

    rule: str = field(metadata={"choices": RULES})
    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int = 4
    gate: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ShapeError, "recurrent.")
        check_divides("recurrent.groups", self.groups, "recurrent.heads", self.heads, ShapeError)

    @cached_property
    def symbols(self) -> dict[str, int]:
        """The symbols of its formulas."""
        return {"H": self.heads, "P": self.head_dim, "J": self.groups, "N": self.state, "k": self.kernel}

    def check(self, layout: Any) -> None:
        """Raise LayoutError unless ranks get whole heads, with their keys, of all tokens. (Megatron-LM asks the same.)"""
        if layout.cp > 1:
            raise LayoutError(
                f"cp must be 1 for recurrent layers, whose states go from token to token, got {layout.cp}"
            )
        check_divides("tp", layout.tp, "recurrent.groups", self.groups, LayoutError)

    # ---- weights

    def layers(self, kind: Kind, attention: Iterable[Layer]) -> Iterator[Layer]:
        """Those of a block of a kind: of its state, or of its ``attention``."""
        if kind.recurrent:
            yield from self._linears()
            yield from self._vectors()
            return
        for row in attention:
            yield row
            if self.gate and isinstance(row, Linear) and row.name == "queries":
                yield Linear("attention", "gate", "a*e//t", row.columns, row.reads, "column")

    def _linears(self) -> Iterator[Linear]:
        def column(name: str, rows: str, columns: str = "h", reads: str = READS) -> Linear:
            return Linear("attention", name, f"{rows}//t", columns, reads, "column")

        for name in ("queries", "keys"):
            yield column(name, "J*N" if self.rule != "convolution" else "H*P")
        yield column("values", "H*P")
        if self.rule in ("mamba2", "delta", "lightning"):
            yield column("gate", "H*P")
        yield from [column("decay", "H")] * (self.rule in ("mamba2", "delta"))
        yield from [column("strength", "H")] * (self.rule in DELTA)
        for name, rows in (("decay", "J*N"), ("gate", "H*P")) if self.rule == "kda" else ():
            latent = f"{name} latent"
            yield Linear("attention", f"{name}, down", "P", "h", READS, shared="tokens")
            yield column(f"{name}, up", rows, "P", latent)
        yield Linear("attention", "output", "h", "H*P//t", GIVES, "row", shared="tokens")

    def _vectors(self) -> Iterator[Norm]:
        def vector(name: str, width: str) -> Norm:
            return Norm("attention", name, f"{width}//t", shared="")

        if self.rule == "convolution":
            yield vector("convolution", "H*P*k")
        elif self.rule != "lightning":
            yield vector("convolution", f"{MIXED}*k")
            yield vector("rates of decay", "H")
            yield vector("bias of the decay", "J*N" if self.rule == "kda" else "H")
        if self.rule == "mamba2":
            yield vector("bias of the convolution", MIXED)
            yield vector("what goes past the state", "H")
        if self.rule in ("mamba2", "lightning"):
            yield Norm("norms", "norm of the state's output", "H*P//t", shared="")
        elif self.rule in DELTA:
            yield Norm("norms", "norm of the state's output", "P", shared="all")
