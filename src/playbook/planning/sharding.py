"""What a rank keeps, and what it sends in a step, under data parallelism and ZeRO: to the byte. Standard library only.

Ψ parameters on N replicas. Without ZeRO every replica keeps all of 2Ψ + 2Ψ + kΨ bytes (16-bit weights, 16-bit
gradients, k bytes of optimizer states). Stage 1 divides kΨ by N, stage 2 the gradients' 2Ψ, too, stage 3 all of it
(Rajbhandari et al. 2020, arXiv 1910.02054, sections 3 and 5). What is divided is first padded to a multiple of N; stage 3
does so unit by unit.

The paper's traffic of 2Ψ, 2Ψ, 3Ψ elements is that of a step with *one* micro-batch. A rank that keeps a share of the
gradients has no place to add up whole ones, so stages 2 and 3 reduce them in every micro-batch, and stage 3 gathers the
parameters again in each. That is a formula of any number of parameters; ``planning/traffic.py`` has the messages of a
model and a layout, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

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
    ep: int = 1,
    apart: bool = False,
) -> Kept:
    """Bytes of each kind on the fullest of ``replicas`` ranks under ZeRO stage ``zero``; ``ep`` cuts the experts.

    ``apart``: see `share_of`.
    """
    share = share_of(units, replicas, zero, ep=ep, apart=apart)
    whole = sum(unit.parameters + unit.experts for unit in units)
    if zero:  # flat vectors, padded
        dense = share_of([UnitSize(u.parameters) for u in units], replicas, zero, apart=apart)
        whole = dense * replicas + (share - dense) * (replicas // ep)
    return Kept(
        states.parameters * (share if zero >= 3 else whole),
        states.gradients * (share if zero >= 2 else whole),
        (states.master + states.optimizer) * (share if zero >= 1 else whole),
    )


def share_of(units: Sequence[UnitSize], replicas: int, zero: int, *, ep: int = 1, apart: bool = False) -> int:
    """Parameters in the largest share of one rank: a part of all of them together or, in stage 3, of each unit.

    ``apart`` pads each unit by itself in all stages: those of a pipeline's stages, which are complete one by one.
    """
    if zero < 3 and not apart:
        units = [UnitSize(sum(u.parameters for u in units), experts=sum(u.experts for u in units))]
    return sum(-(-u.parameters // replicas) - (-u.experts // (replicas // ep)) for u in units)


@dataclass(frozen=True)
class Traffic:
    """Bytes that each rank sends in a step, by collective.

    Where N does not divide a vector, ranks send unequal parts of it, and this is their mean.
    """

    all_reduce: Fraction = Fraction(0)
    reduce_scatter: Fraction = Fraction(0)
    all_gather: Fraction = Fraction(0)

    @property
    def total(self) -> Fraction:
        return self.all_reduce + self.reduce_scatter + self.all_gather


def traffic(
    units: Sequence[UnitSize],
    replicas: int,
    zero: int,
    *,
    weight_bytes: int = 2,
    gradient_bytes: int = 2,
    grad_acc: int = 1,
    reshard: bool = True,
) -> Traffic:
    """Traffic of gradients and parameters in a step of ``grad_acc`` micro-batches, under ZeRO stage ``zero``.

    Rings: an all-reduce of K bytes sends 2(N − 1)/N · K from every rank, a reduce-scatter or an all-gather half of it.
    ``reshard`` is how stage 3 treats weights between forward and backward: forgotten, or kept.
    """
    part = Fraction(replicas - 1, replicas)
    if zero == 0:
        return Traffic(all_reduce=2 * part * gradient_bytes * sum(unit.parameters for unit in units))
    padded = [replicas * share_of([unit], replicas, 3) for unit in units]
    if zero < 3:
        whole = part * replicas * share_of(units, replicas, zero)
        passes = grad_acc if zero == 2 else 1
        return Traffic(reduce_scatter=passes * whole * gradient_bytes, all_gather=whole * weight_bytes)
    again = [size for size, unit in zip(padded, units, strict=True) if unit.again and reshard]
    return Traffic(
        reduce_scatter=grad_acc * part * gradient_bytes * sum(padded),
        all_gather=grad_acc * part * weight_bytes * (sum(padded) + sum(again)),
    )
