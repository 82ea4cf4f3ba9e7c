"""Exercises of the chapter on the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, function, number


@number(
    "simulator.term",
    "the seconds of the largest term beside computation",
    praise="the bubble, and messages make each pass in it longer",
    otherwise="Find the seconds of one micro-batch on a stage first: products, then messages",
    tolerance=0.01,
)
def term() -> tuple[float, dict[float, str]]:
    h, tokens, tp, pp, micro_batches, blocks = 8192, 4096, 8, 8, 32, 64
    speed, bandwidth = 200e12, 240e9
    here = blocks // pp
    compute = here * 72 * h**2 * tokens / tp / speed  # forward and twice that backward, 2 FLOPs for a weight
    message = 2 * (tp - 1) / tp * 2 * h * tokens / bandwidth
    sent = here * 4 * message
    right = (pp - 1) * (compute + sent)
    return right, {
        (pp - 1) * compute: "almost: a pass of a stage has messages in it, and the bubble is made of passes",
        micro_batches * sent: "that is the waiting for tensor parallelism; the bubble is longer",
        micro_batches * sent / 2: "that is tensor parallelism in forward alone; and the bubble is longer",
        micro_batches * compute: "that is computation; the question is what comes second",
        (pp - 1) / micro_batches: "that is a ratio to the time without a bubble; the question is for seconds",
        pp * (compute + sent): "with p stages, p − 1 passes are waited for, not p",
        right / 3: "a bubble is as long as forward and backward of p − 1 micro-batches",
        7 * (compute * tp + sent): "products of a rank are an eighth of those of a block: tensor parallelism",
    }


@answers_made("simulator.term")
def _counted() -> tuple[list[Any], dict[str, Any]]:
    """A block of 12 h² weights, one eighth of it on each rank."""
    from playbook.block import DENSE
    from playbook.layout import Layout
    from playbook.planning.job import Job
    from playbook.planning.operations import Sizes, block
    from playbook.shapes import load

    shape = load({"layers": 1, "hidden": 8192, "heads": 64, "vocab": 256, "max_seq": 4096})
    passes = block(Sizes(Job(shape, Layout(tp=8), seq=4096)), DENSE)
    products = [one for one in (*passes.forward, *passes.inputs, *passes.weights) if one.kind == "product"]
    sent = 4 * 2 * 7 / 8 * 2 * 8192 * 4096 / 240e9
    return [7 * 8 * (sum(one.work for one in products) / 200e12 + sent)], {}


def _not_seconds(given: Any, wanted: float) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return f"expected seconds, got {given!r}"
    return f"off by a factor of {given / wanted:.4g}"


@function(
    "simulator.waves",
    "the seconds of a product that is computed tile by tile, in waves",
    cases=(
        (1024, 4096, 1024, 128, 100e12),
        (128, 256, 512, 1, 1e12),
        (1000, 4096, 4096, 128, 100e12),
        (1025, 4096, 2048, 132, 400e12),
        (4096, 2304, 1000, 108, 312e12),
        (2048, 12288, 12288, 132, 989e12),
        (64, 8192, 8192, 108, 312e12),
    ),
    case="({0}×{2})·({2}×{1}) on {3} multiprocessors".format,
    praise="whole tiles in whole waves",
    otherwise=_not_seconds,
)
def waves(m: int, n: int, k: int, processors: int, peak: float) -> float:
    tiles = -(-m // 128) * -(-n // 256)
    return -(-tiles // processors) * 2 * 128 * 256 * k * processors / peak


def _whole_tiles(m: int, n: int, k: int, processors: int, peak: float) -> float:
    return -(-m // 128) * -(-n // 256) * 2 * 128 * 256 * k / peak


def _whole_waves(m: int, n: int, k: int, processors: int, peak: float) -> float:
    return -(-m * n // (128 * 256 * processors)) * processors * 2 * 128 * 256 * k / peak


answers(
    "simulator.waves",
    wrong={
        "that is as if no tile and no wave were cut off": lambda m, n, k, p, peak: 2 * m * n * k / peak,
        "tiles are whole, but waves are not: the last one takes as long as a full one": _whole_tiles,
        "waves are whole, but tiles are not: one at the edge takes as long as a full one": _whole_waves,
        "tiles are 128 rows high and 256 columns wide, not the other way around": (
            lambda m, n, *others: waves(n, m, *others)
        ),
        "a multiprocessor has its part of the peak, not all of it": (
            lambda m, n, k, processors, peak: waves(m, n, k, processors, peak) / processors
        ),
        "a product has two FLOPs for each m · n · k": lambda *given: waves(*given) / 2,
    },
)


_STEPS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("one rank, nothing recomputed, nothing to send", {}, 12.0),
    ("full recomputation", {"full": True}, 16.0),
    ("gradients that take as long as there is time to hide them", {"reduce": 1.5, "window": 1.5}, 12.0),
    ("gradients that take less time than there is to hide them", {"reduce": 0.5, "window": 1.5}, 12.0),
    ("gradients that take longer than there is time to hide them", {"reduce": 2.0, "window": 1.5}, 12.5),
    ("gradients that nothing hides", {"reduce": 2.0}, 14.0),
    ("a slow rank among four", {"factors": [1.0, 1.0, 1.25, 1.0]}, 15.0),
    ("a slow rank, and gradients", {"factors": [1.5, 1.0], "reduce": 2.0, "window": 1.0}, 19.0),
    (
        "all of it",
        {"full": True, "factors": [1.0, 1.25], "reduce": 3.0, "window": 1.0},
        22.0,
    ),
)


@exercise("simulator.step", "repair", "a simulator with three faults")
def step(mended: Callable[..., Any]) -> str:
    usual: dict[str, Any] = {
        "forward": 1.0, "backward": 2.0, "micro_batches": 4, "full": False, "reduce": 0.0, "window": 0.0,
        "factors": [1.0],
    }  # fmt: skip
    for name, change, right in _STEPS:
        given = mended(**{**usual, **change})
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise NotYet(f"{name}: expected seconds, got {given!r}")
        if abs(given - right) > 1e-9 * right:
            side = "longer" if given > right else "shorter"
            raise NotYet(f"{name}: the step is {abs(given - right):g} s {side} than it should be")
    return "forward twice, what is hidden left out, and the slowest rank"


def _step(
    forward: float,
    backward: float,
    micro_batches: int,
    full: bool,
    reduce: float,
    window: float,
    factors: list[float],
    *,
    again=1,
    exposed=lambda rest: max(0.0, rest),
    of_all=max,
) -> float:
    passes = micro_batches * ((1 + again * full) * forward + backward)
    return of_all(factors) * passes + exposed(reduce - window)


answers(
    "simulator.step",
    right=[_step],
    wrong={
        "full recomputation: the step is 4 s shorter": partial(_step, again=0),
        "there is time to hide them: the step is 1.5 s longer": (
            lambda window, **others: _step(window=0, **others)
        ),
        "a slow rank among four: the step is 2.25 s shorter": partial(_step, of_all=fmean),
        "less time than there is to hide them: the step is 1 s shorter": (
            partial(_step, exposed=lambda rest: rest)
        ),
        "expected seconds": lambda **_: "12 s",
    },
)


class _Fits:
    """A fit that remembers, in what it returns, the rows that it was given."""

    def __init__(self) -> None:
        self.done = 0

    def fit(self, rows: Sequence[str]) -> tuple[str, ...]:
        self.done += 1
        return tuple(rows)

    @staticmethod
    def error(fitted: tuple[str, ...], rows: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return fitted, tuple(rows)
