"""Exercises of the chapter on live recovery."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number, same


@number(
    "live-recovery.lost",
    "the share of the tokens that is lost while replicas are absent, in percent",
    praise="the number of GPUs cancels: more of them fail more often, but each time a smaller part is absent",
    otherwise="For which part of its time is one replica absent",
    tolerance=0.01,
)
def lost() -> tuple[float, dict[float, str]]:
    hours, minutes, gpus, inside = 50_000, 12, 8192, 512
    absent = minutes / 60 / hours * inside
    right = 100 * absent / (1 + absent)
    return right, {
        100 * minutes / 60 / hours * gpus: "that is as if every failure stopped all replicas",
        100 * minutes / 60 / hours: "that is one GPU by itself: any of a replica's takes the replica along",
        absent: "a percent is a hundredth",
        100 * absent / (gpus / inside): "one replica of 16 is absent, but any of the 16 may be",
    }


Sums = Sequence[Sequence[float] | None]
#: Sums of token gradients by replica, None of one that was lost, and their tokens.
CASES: tuple[tuple[Sums, list[int]], ...] = (
    ([[6.0, -3.0], [9.0, 12.0]], [3, 3]),
    ([[6.0, -3.0], None, [9.0, 12.0]], [3, 5, 3]),
    ([[6.0, -3.0], [8.0, 1.0], None, [9.0, 12.0]], [2, 5, 7, 3]),
)


@exercise("live-recovery.mean", "function", "the gradient of the mean loss over the tokens that took part")
def mean(write: Callable[..., Any]) -> str:
    for sums, tokens in CASES:
        wanted = _mean(sums, tokens)
        given = write([None if one is None else list(one) for one in sums], list(tokens))
        if not isinstance(given, list) or len(given) != len(wanted):
            raise NotYet(f"it returned {given!r}, expected a list of {len(wanted)} numbers")
        if same(given, wanted):
            continue
        here = [one is not None for one in sums]
        where = f"{sum(here)} of {len(here)} replicas took part: "
        total = [
            value * sum(n for n, is_here in zip(tokens, here, strict=True) if is_here) for value in wanted
        ]
        if same(given, [value / sum(tokens) for value in total]):
            raise NotYet(f"{where}divided by the tokens of all, also of those whose gradients are missing")
        if same(given, _of_means(sums, tokens)):
            raise NotYet(f"{where}a mean of means weighs a token the more, the fewer its replica has")
        raise NotYet(f"{where}expected {wanted[0]:.3f} as the first number, got {given[0]:.3f}")
    return "the mean of those that took part, as a run with fewer replicas from the start would have it"


def _mean(sums: Sums, tokens: Sequence[int]) -> list[float]:
    here = [(one, n) for one, n in zip(sums, tokens, strict=True) if one is not None]
    count = sum(n for _, n in here)
    return [sum(values) / count for values in zip(*(one for one, _ in here), strict=True)]


def _of_means(sums: Sums, tokens: Sequence[int]) -> list[float]:
    means = [[v / n for v in one] for one, n in zip(sums, tokens, strict=True) if one is not None]
    return [sum(values) / len(means) for values in zip(*means, strict=True)]


def _by_all(sums: Sums, tokens: Sequence[int]) -> list[float]:
    return [sum(v) / sum(tokens) for v in zip(*(one for one in sums if one is not None), strict=True)]


def _by_replicas(sums: Sums, tokens: Sequence[int]) -> list[float]:
    here = [one for one in sums if one is not None]
    return [sum(v) / len(here) for v in zip(*here, strict=True)]


answers(
    "live-recovery.mean",
    right=[_mean],
    wrong={
        "divided by the tokens of all": _by_all,
        "a mean of means": _of_means,
        "expected 2.500 as the first number, got 7.500": _by_replicas,
        "expected a list of 2 numbers": lambda sums, tokens: sum(tokens),
    },
)

#: Steps that the peer has made, of which a warm-up of eight takes more.
MADE = 5


def _replica() -> tuple[Any, Any]:
    import torch

    weight = torch.ones(3, requires_grad=True)
    adam = torch.optim.AdamW([weight], lr=0.8)
    return adam, torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min(1.0, (step + 1) / 8))


def _steps(adam: Any, schedule: Any, count: int) -> list[float]:
    """Learning rates of some steps."""
    rates = []
    for _ in range(count):
        rates.append(adam.param_groups[0]["lr"])
        weight = adam.param_groups[0]["params"][0]
        weight.grad = weight.detach().clone()
        adam.step()
        schedule.step()
    return rates


@exercise("live-recovery.rate", "repair", "the learning rate of a replica that has come back")
def rate(mended: Callable[..., Any]) -> str:
    adam, schedule = _replica()
    cached = [{k: v for k, v in group.items() if k != "params"} for group in adam.param_groups]
    _steps(adam, schedule, MADE)
    now = copy.deepcopy(adam.state_dict())  # torch takes counts of updates up as they are
    groups = [{**group, **old} for group, old in zip(now["param_groups"], cached, strict=True)]
    peer = {"adam": {**now, "param_groups": groups}, "schedule": schedule.state_dict()}
    own, its_schedule = _replica()
    mended(peer, own, its_schedule)
    wanted, found = _steps(adam, schedule, 3), _steps(own, its_schedule, 3)
    if not own.state or float(next(iter(own.state.values()))["step"]) != MADE + 3:
        raise NotYet("Adam's moments and counts of updates are not the peer's")
    if found[0] != wanted[0]:
        raise NotYet(
            f"its first step is made with a learning rate of {found[0]:.1f}, the peer's with {wanted[0]:.1f}"
        )
    if found != wanted:
        raise NotYet(
            f"later steps are made with {found[1]:.1f}, {found[2]:.1f} instead of {wanted[1]:.1f}, {wanted[2]:.1f}"
        )
    return "both make the same update of the same gradient, and stay equal bit for bit"


def _as_found(peer: dict[str, Any], adam: Any, schedule: Any) -> None:
    adam.load_state_dict(peer["adam"])
    schedule.load_state_dict(peer["schedule"])


def _with_rate(peer: dict[str, Any], adam: Any, schedule: Any) -> None:
    _as_found(peer, adam, schedule)
    for group, lr in zip(adam.param_groups, schedule.get_last_lr(), strict=True):
        group["lr"] = lr


def _ahead(peer: dict[str, Any], adam: Any, schedule: Any) -> None:
    _as_found(peer, adam, schedule)
    schedule.step()


def _once(peer: dict[str, Any], adam: Any, schedule: Any) -> None:
    adam.load_state_dict(peer["adam"])
    adam.param_groups[0]["lr"] = peer["schedule"]["_last_lr"][0]


def _rate_alone(peer: dict[str, Any], adam: Any, schedule: Any) -> None:
    schedule.load_state_dict(peer["schedule"])
    adam.param_groups[0]["lr"] = schedule.get_last_lr()[0]


answers(
    "live-recovery.rate",
    right=[_with_rate],
    wrong={
        "with a learning rate of 0.1, the peer's with 0.6": _as_found,
        "with a learning rate of 0.7, the peer's with 0.6": _ahead,
        "later steps are made with 0.2, 0.3 instead of 0.7, 0.8": _once,
        "Adam's moments and counts of updates": _rate_alone,
    },
)
