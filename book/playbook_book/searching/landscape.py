"""What a method searches: the layouts of a problem as a few choices each, and an evaluator that counts its questions.

A layout is a point: one option for each of `CHOICES`. Combinations that cannot run are no points, and asking whether one
can is free, since `Layout.check` is arithmetic. What costs is an evaluation: the predicted seconds of a step, infinite
where the layout does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from functools import cached_property

from playbook._checks import check_int
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.planning.search import Planner, Problem, Space, candidates

#: What a layout is made of: dp follows from the GPUs, grad_acc from the batch, and vpp goes with its schedule.
CHOICES = ("tp", "cp", "pp", "ep", "etp", "pipeline", "micro_batch", "zero", "replicate", "recompute")
#: An option of each choice.
Point = tuple[Hashable, ...]


def point_of(layout: Layout) -> Point:
    """The options that a layout has taken, in the order of `CHOICES`."""
    return tuple(
        (layout.schedule, layout.vpp) if name == "pipeline" else getattr(layout, name) for name in CHOICES
    )


class Landscape:
    """All layouts of a problem that can run, and their seconds, each simulated once, whoever asks.

    Raises LayoutError where there is none.
    """

    def __init__(self, problem: Problem, space: Space | None = None):
        self.problem, self.planner = problem, Planner(problem)
        self.layouts = {point_of(layout): layout for layout in candidates(problem, space or Space())}
        if not self.layouts:
            raise LayoutError(f"no layout of this space can run on {problem.gpus} GPUs: allow more")
        columns = zip(*self.layouts, strict=True)
        self.options = tuple(tuple(dict.fromkeys(column)) for column in columns)
        self._seconds: dict[Layout, float] = {}

    def seconds(self, layout: Layout) -> float:
        """Predicted seconds of a step; infinite where it does not fit."""
        if layout not in self._seconds:
            run = self.planner.run(layout)
            self._seconds[layout] = run.seconds if run and self.planner.fits(run) else math.inf
        return self._seconds[layout]

    @cached_property
    def optimum(self) -> float:
        """Seconds of the fastest layout, infinite where none fits: all of them are simulated."""
        return min(map(self.seconds, self.layouts.values()))


class Enough(Exception):
    """Raised by an evaluator whose budget is spent."""


class Evaluator:
    """Answers a method, and notes what it asked: ``history`` are the seconds of each new layout, in order.

    A layout that was asked for before is looked up. Raises `Enough` for the evaluation after the ``budget``-th.
    """

    def __init__(self, landscape: Landscape, budget: int | None = None):
        self.landscape = landscape
        self.budget = len(landscape.layouts) if budget is None else check_int("budget", budget, ConfigError)
        self.history: list[float] = []
        self.known: dict[Layout, float] = {}

    def __call__(self, layout: Layout) -> float:
        if layout not in self.known:
            if len(self.history) >= self.budget:
                raise Enough
            self.known[layout] = self.landscape.seconds(layout)
            self.history.append(self.known[layout])
        return self.known[layout]

    def at(self, point: Point) -> float | None:
        """Seconds at a point; None, and no evaluation, where the combination cannot run."""
        layout = self.landscape.layouts.get(point)
        return None if layout is None else self(layout)

    @property
    def best(self) -> Layout:
        """The fastest layout that was asked for. Raises LayoutError where none fits."""
        found = min(self.known, key=self.known.__getitem__, default=None)
        if found is None or math.isinf(self.known[found]):
            raise LayoutError(f"none of the {len(self.history)} layouts that were tried fits: try more")
        return found

    def regrets(self) -> Iterator[float]:
        """After each evaluation, by what share the best so far is slower than the optimum."""
        best = math.inf
        for seconds in self.history:
            best = min(best, seconds)
            yield best / self.landscape.optimum - 1
