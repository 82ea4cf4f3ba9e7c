"""What a rank keeps under data parallelism and ZeRO: to the byte. Standard library only.

Ψ parameters on N replicas. Without ZeRO every replica keeps all of 2Ψ + 2Ψ + kΨ bytes (16-bit weights, 16-bit
gradients, k bytes of optimizer states). Stage 1 divides kΨ by N, stage 2 the gradients' 2Ψ, too, stage 3 all of it
(Rajbhandari et al. 2020, arXiv 1910.02054, sections 3 and 5). What is divided is first padded to a multiple of N; stage 3
does so unit by unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playbook.planning.recipes import BytesPerParameter


@dataclass(frozen=True)
class UnitSize:
    """Parameters that ZeRO-3 gathers together: the embedding, a block, the head.

    ``experts`` more of them are spread over expert-parallel ranks already, and have fewer replicas. A unit that is needed
    ``again`` in backward is gathered a second time; the embedding is not needed there, and the head, with which backward
    begins, has stayed.
    """

    parameters: int
    again: bool = True
    experts: int = 0


@dataclass(frozen=True)
class Kept:
    """Bytes that the fullest rank keeps between steps, padding included; gradients as of the end of backward."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def kept(
    units: Sequence[UnitSize],
    replicas: int,
    zero: int,
    states: BytesPerParameter,
    *,
    experts: int | None = None,
    apart: bool = False,
) -> Kept:
    """Bytes of each kind on the fullest of ``replicas`` ranks under ZeRO ``zero``; so many have the same ``experts``.

    ``apart``: see `share_of`.
    """
    experts = replicas if experts is None else experts
    share = share_of(units, replicas, zero, experts=experts, apart=apart)
    whole = sum(unit.parameters + unit.experts for unit in units)
    if zero:  # flat vectors, padded
        dense = share_of([UnitSize(u.parameters) for u in units], replicas, zero, apart=apart)
        whole = dense * replicas + (share - dense) * experts
    return Kept(
        states.parameters * (share if zero >= 3 else whole),
        states.gradients * (share if zero >= 2 else whole),
        (states.master + states.optimizer) * (share if zero >= 1 else whole),
    )


def share_of(
    units: Sequence[UnitSize], replicas: int, zero: int, *, experts: int | None = None, apart: bool = False
) -> int:
    """Parameters in the largest share of one rank: a part of all of them together or, in stage 3, of each unit.

    ``apart`` pads each unit by itself in all stages: those of a pipeline's stages, which are complete one by one.
    """
    if zero < 3 and not apart:
        units = [UnitSize(sum(u.parameters for u in units), experts=sum(u.experts for u in units))]
    return sum(-(-u.parameters // replicas) - (-u.experts // (experts or replicas)) for u in units)
