"""What a rank sends in a step under data parallelism and ZeRO, as a formula of any number of parameters.

``planning/traffic.py`` has the messages of a model and a layout; a test holds the two together. The paper's traffic of
2Ψ, 2Ψ, 3Ψ elements (Rajbhandari et al. 2020, arXiv 1910.02054, section 7) is that of a step with *one* micro-batch. A
rank that keeps a share of the gradients has no place to add up whole ones, so stages 2 and 3 reduce them in every
micro-batch, and stage 3 gathers the parameters again in each. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from playbook.planning.sharding import UnitSize, share_of


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
