"""Pipelines without a plan, and with the simplest one: all forward, then all backward (GPipe, Huang et al. 2019)."""

from __future__ import annotations

from playbook.schedules.actions import Action, Schedule, straight


def naive(stages: int, microbatches: int) -> Schedule:
    """One micro-batch at a time, forward and backward: of ``stages`` ranks, one works."""
    order = [(op, m) for m in range(microbatches) for op in ("F", "BW")]
    ranks = tuple(tuple(Action(op, rank, m) for op, m in order) for rank in range(stages))
    return Schedule("naive", microbatches, straight(stages), ranks)


def afab(stages: int, microbatches: int) -> Schedule:
    """All forward, all backward (arXiv 1811.06965): every rank keeps the activations of all micro-batches."""
    order = [(op, m) for op in ("F", "BW") for m in range(microbatches)]
    ranks = tuple(tuple(Action(op, rank, m) for op, m in order) for rank in range(stages))
    return Schedule("afab", microbatches, straight(stages), ranks)
