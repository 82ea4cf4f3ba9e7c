"""Exercises of the chapter on scaling laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import sub
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, function, number
from playbook_book.scaling_laws import BESIROGLU, HOFFMANN_UNROUNDED, Law


@number(
    "scaling-laws.size",
    "parameters for a cluster, three weeks and 20 tokens per parameter",
    praise="parameters grow with the square root of GPUs and of days: four times the cluster, twice the model",
    otherwise="How many FLOPs are there, and how many per parameter?",
    tolerance=2e-3,
)
def size() -> tuple[float, dict[float, str]]:
    from playbook.hardware import ACCELERATORS

    peak, seconds = ACCELERATORS["h100"].peak(), 21 * 86400
    compute = 512 * peak * 0.4 * seconds
    right = math.sqrt(compute / 6 / 20)
    recomputed = math.sqrt(compute / 8 / 20)
    return right, {
        20 * right: "that is the tokens",
        compute: "that is the compute, in FLOPs",
        recomputed: "an MFU counts what the model needs, and recomputation is no part of that",
        math.sqrt(compute / 2 / 20): "that is forward alone: backward takes twice as much",
        math.sqrt(compute / 20): "each parameter takes more than one FLOP for a token",
        math.sqrt(compute / 0.4 / 6 / 20): "that is at the whole peak, which no run reaches",
        math.sqrt(2) * right: "that peak is for structured sparsity, and training is dense",
        BESIROGLU.optimum(compute).parameters: "that is the optimum of a law; here the ratio is given",
    }


#: Law, parameters and tokens that give the loss, tokens served.
_SERVED = (
    (BESIROGLU, 70e9, 1.4e12, 0.0),
    (BESIROGLU, 70e9, 1.4e12, 2e12),
    (BESIROGLU, 8e9, 160e9, 1e13),
    (HOFFMANN_UNROUNDED, 30e9, 2e12, 5e12),
)


@exercise("scaling-laws.lifetime", "function", "the size of least compute over training and serving")
def lifetime(write: Callable[..., Any]) -> str:
    for law, parameters, tokens, served in _SERVED:
        loss = law.loss(parameters, tokens)
        given = write(law, loss, served)
        case = f"a loss of {loss:.3f} and {served:.3g} tokens served"
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise NotYet(f"{case}: expected a number of parameters, got {given!r}")
        right = _least(law, loss, served, 2)
        if math.isclose(given, right, rel_tol=0.01):
            continue
        for inference, hint in (
            (0, "what is served costs nothing here"),
            (6, "a served token goes forward alone"),
        ):
            if math.isclose(given, _least(law, loss, served, inference), rel_tol=0.01):
                raise NotYet(f"{case}: {hint}")
        if given <= _wall(law, loss):
            raise NotYet(f"{case}: {given:.4g} parameters never reach that loss")
        more = _cost(law, loss, served, 2, given) / _cost(law, loss, served, 2, right)
        size = "large" if given > right else "small"
        raise NotYet(f"{case}: {given:.4g} parameters are too {size}, and cost {more:.4f} times the least")
    return "the more a model is to serve, the smaller it should be, and the longer it should train"


def _wall(law: Law, loss: float) -> float:
    """Parameters that reach ``loss`` with unlimited data."""
    return float((law.a / (loss - law.entropy)) ** (1 / law.alpha))


def _cost(law: Law, loss: float, served: float, inference: float, parameters: float) -> float:
    return parameters * (6 * law.tokens_for(loss, parameters) + inference * served)


def _least(law: Law, loss: float, served: float, inference: float) -> float:
    """Where the cost is least: golden sections of ln N between the wall and the optimum of training alone."""
    low, high = math.log(_wall(law, loss) * 1.0001), math.log(law.cheapest(loss).parameters * 1.01)
    golden = (math.sqrt(5) - 1) / 2
    while high - low > 1e-6:
        left, right = high - golden * (high - low), low + golden * (high - low)
        costs = [_cost(law, loss, served, inference, math.exp(x)) for x in (left, right)]
        low, high = (low, right) if costs[0] < costs[1] else (left, high)
    return math.exp((low + high) / 2)


def _lifetime(law: Law, loss: float, served: float, *, per_token=2) -> float:
    """Down from the optimum of training alone, for as long as that is cheaper."""
    n = law.cheapest(loss).parameters
    while _cost(law, loss, served, per_token, 0.999 * n) < _cost(law, loss, served, per_token, n):
        n *= 0.999
    return n


answers(
    "scaling-laws.lifetime",
    right=[_lifetime],
    wrong={
        "2e+12 tokens served: what is served costs nothing here": partial(_lifetime, per_token=0),
        "a served token goes forward alone": partial(_lifetime, per_token=6),
        "never reach that loss": lambda law, loss, served: _wall(law, loss),
        "0 tokens served: 4.38e+10 parameters are too small, and cost 1.1": (
            lambda law, loss, served: 0.6 * law.cheapest(loss).parameters
        ),
        "expected a number of parameters, got Allocation(": lambda law, loss, served: law.cheapest(loss),
    },
)


_POINTS = [(70e9, 1.4e12, 1.95), (8e9, 160e9, 2.2), (1e9, 20e9, 6.0), (125e6, 300e9, 2.54)]
_RUNS = {
    "one run close to the law": [(70e9, 1.4e12, BESIROGLU.loss(70e9, 1.4e12) * math.exp(5e-4))],
    "one run far from the law": [(1e9, 20e9, 1.9)],
    "a run that diverged": [_POINTS[2]],
    "four runs": _POINTS,
}


def _another_sum(given: Any, wanted: float) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return f"expected a number, got {given!r}"
    return f"{given:.4g}, {'more' if given > wanted else 'less'} than the sum of Huber losses"


def _huber(r: float, *, least=-1e-3, offset=5e-4) -> float:
    return r * r / 2 if least <= r <= 1e-3 else 1e-3 * (abs(r) - offset)


def _of_logarithms(predicted: float, loss: float) -> float:
    return math.log(predicted) - math.log(loss)


@function(
    "scaling-laws.objective",
    "a fit that a single bad run can move",
    kind="repair",
    cases=[(BESIROGLU, points) for points in _RUNS.values()],
    case=lambda law, points: next(name for name, runs in _RUNS.items() if runs == points),
    praise="a run that failed pulls as hard as one that is slightly off, and no harder",
    otherwise=_another_sum,
)
def objective(law: Law, points: Any, *, difference=_of_logarithms, pull=_huber) -> float:
    return sum(pull(difference(law.loss(n, d), loss)) for n, d, loss in points)


answers(
    "scaling-laws.objective",
    wrong={
        "a run that is worse than the law counts as close to it: take the size of the difference": (
            partial(objective, pull=partial(_huber, least=-math.inf))
        ),
        "squares of differences between losses: a failed run outweighs all others": (
            partial(objective, difference=sub, pull=lambda r: r * r)
        ),
        "logarithms, but still squared far from the law, too": partial(objective, pull=lambda r: r * r / 2),
        "Huber's loss, but of differences between losses instead of their logarithms": (
            partial(objective, difference=sub)
        ),
        "far from the law, half of delta is missing, and the two parts do not meet": (
            partial(objective, pull=partial(_huber, offset=0))
        ),
        "linear close to the law, too: there Huber's loss is half the square": (
            partial(objective, pull=lambda r: 1e-3 * abs(r))
        ),
        "that is the mean, which is so small that an optimizer may stop early": (
            lambda law, points: objective(law, points) / len(points)
        ),
    },
)


@exercise(
    "scaling-laws.throughput",
    "repair",
    "tokens and MFU of a log that are right until tensor parallelism is on",
)
def throughput(mended: Callable[..., Any]) -> str:
    from playbook.layout import Layout

    n, micro_batch, seq, seconds, peak = 8.03e9, 2, 4096, 7.5, 989e12
    for text in ("dp=8", "dp=8,grad_acc=4", "dp=4,tp=2", "dp=2,pp=4,grad_acc=8", "dp=2,cp=4,grad_acc=2"):
        layout = Layout.parse(text)
        tokens, mfu = mended(n, layout, micro_batch, seq, seconds, peak)
        right = layout.dp * layout.grad_acc * micro_batch * seq
        if not math.isclose(tokens, right, rel_tol=1e-9):
            if math.isclose(tokens, right * layout.cp, rel_tol=1e-9):
                raise NotYet(
                    f"{text}: {tokens:,} tokens; ranks along cp have different tokens of the same samples"
                )
            raise NotYet(f"{text}: {tokens:,} tokens, {tokens / right:.4g} times those of the global batch")
        share = 6 * n * right / seconds / (layout.world_size * peak)
        if not math.isclose(mfu, share, rel_tol=1e-9):
            raise NotYet(
                f"{text}: the tokens are right, but the MFU is {mfu / share:.4g} times what "
                f"{layout.world_size} GPUs make of them"
            )
    return "tokens are those of the global batch, and every GPU counts in the peak"


def _throughput(
    n: float,
    layout: Any,
    micro_batch: int,
    seq: int,
    seconds: float,
    peak: float,
    *,
    replicas=None,
    gpus=None,
) -> tuple[float, float]:
    tokens = (replicas or layout.dp) * layout.grad_acc * micro_batch * seq
    return tokens, 6 * n * tokens / seconds / ((gpus or layout.world_size) * peak)


answers(
    "scaling-laws.throughput",
    right=[_throughput],
    wrong={
        "dp=4,tp=2: 65,536 tokens, 2 times those of the global batch": (
            lambda n, layout, *others: _throughput(n, layout, *others, replicas=layout.world_size)
        ),
        "dp=2,cp=4,grad_acc=2: 131,072 tokens; ranks along cp have different tokens": (
            lambda n, layout, *others: _throughput(n, layout, *others, replicas=layout.dp * layout.cp)
        ),
        "dp=4,tp=2: the tokens are right, but the MFU is 2 times": (
            lambda n, layout, *others: _throughput(n, layout, *others, gpus=layout.dp)
        ),
        "dp=8,grad_acc=4: 65,536 tokens, 0.25 times": (
            lambda n, layout, *others: _throughput(n, layout.replace(grad_acc=1), *others)
        ),
    },
)
