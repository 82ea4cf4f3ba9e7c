"""What a new replica gets from a peer, in bytes: what `recovery/healing.py` sends. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from playbook.planning.job import Job
from playbook.planning.messages import FP32, Sender, WeightSet


def healed(job: Job, rank: int, stepped: bool = True) -> int:
    """Bytes that a new ``rank`` gets: weights as they lie, padding included; moments and masters of its own leaves, each
    with a count of steps, once the optimizer has ``stepped``; and routers' biases.

    AdamW's alone, with moments in fp32, and without delayed scaling in FP8.
    """
    layout = job.layout
    # A replica of one rank shards nothing.
    alone = layout.world_size == layout.replicate
    here = Sender(job.relayout(zero=0) if alone else job, rank)
    states = here.recipe.states
    total = sum(_kept(one, here.layout.zero) for one in (*here.sets, *here.frozen)) * states.parameters
    for elements in (n for one in here.sets for n in _leaves(one, here.layout.zero)) if stepped else ():
        total += elements * (states.master + states.optimizer) + FP32
    experts = here.shape.moe.experts if here.shape.moe else 0
    return total + len(here.expert_layers) * experts * FP32


def _kept(one: WeightSet, zero: int) -> int:
    """Elements of a set's weights that a rank keeps."""
    if not zero:
        return sum(_leaves(one, 0))
    whole = sum(map(len, one.buckets))
    return whole // one.shards[0] if zero == 3 else whole


def _leaves(one: WeightSet, zero: int) -> Iterator[int]:
    """Elements of each tensor that a rank's optimizer updates."""
    if zero:
        yield from (len(s) for bucket in one.buckets for s in bucket.segments(one.shards[1]))
    else:
        yield from (weight.elements for unit in one.units for weight in unit.weights)
