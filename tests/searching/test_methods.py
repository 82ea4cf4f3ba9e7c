"""Methods of search: what they ask, how it is counted, and what they find."""

import contextlib
import itertools
import math
from random import Random

import numpy as np
import pytest

from playbook.errors import ConfigError, LayoutError
from playbook.hardware import load as load_cluster
from playbook.planning.job import Job
from playbook.planning.search import Problem, Space, candidates, search
from playbook.shapes import load
from playbook_book.searching.compare import Trial, problems, trial, trials
from playbook_book.searching.landscape import Enough, Evaluator, Landscape, point_of
from playbook_book.searching.methods import METHODS, PROVES, Policy, mutated, places, softmax

SPACE = Space(
    cp=(1,), pp=(1, 2, 4), ep=(1,), zero=(0, 1, 3), recompute=("none", "full"), vpp=(2,), micro_batch=(1, 2)
)  # fmt: skip


def landscape_of(model, gpus, batch, space=SPACE):
    return Landscape(
        Problem(Job(load(model), seq=2048), load_cluster("h100-8").with_gpus(gpus), batch), space
    )


@pytest.fixture(scope="module")
def easy():
    """Everything fits."""
    return landscape_of("llama3.2-1b", 8, 32)


@pytest.fixture(scope="module")
def tight():
    """Many layouts do not fit."""
    found = landscape_of("llama2-13b", 8, 32)
    assert 0.1 < np.mean([math.isfinite(found.seconds(one)) for one in found.layouts.values()]) < 0.9
    return found


@pytest.fixture(params=["easy", "tight"])
def landscape(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_method_finds_a_layout_that_fits(name, seed, landscape):
    ask = Evaluator(landscape)
    METHODS[name](ask, Random(seed))
    assert landscape.problem.run(ask.best).step().fits
    assert landscape.seconds(ask.best) == pytest.approx(landscape.problem.run(ask.best).step().seconds)


@pytest.mark.parametrize("name", [*PROVES, "random"])
def test_methods_that_prove_find_the_optimum(name, landscape):
    ask = Evaluator(landscape)
    METHODS[name](ask, Random(0))
    assert min(ask.history) == landscape.optimum
    assert search(landscape.problem, SPACE, top=1).best.step.seconds == pytest.approx(landscape.optimum)


@pytest.mark.parametrize("name", ["exhaustive", "random"])
def test_these_ask_for_every_layout_once(name, landscape):
    ask = Evaluator(landscape)
    METHODS[name](ask, Random(0))
    assert len(ask.history) == len(landscape.layouts)
    assert set(ask.known) == set(landscape.layouts.values())


def test_bounds_ask_for_few(landscape):
    found = trial("bounds", "", landscape)
    assert len(found.regrets) < len(landscape.layouts) / 4


def test_bounds_are_at_most_the_seconds(landscape):
    for layout in landscape.layouts.values():
        bound = landscape.planner.bound(layout, layout.recompute)
        assert bound <= landscape.seconds(layout) * (1 + 1e-9)


def test_an_evaluator_counts_each_layout_once_and_stops(easy):
    ask, (first, second, third, *_) = Evaluator(easy, budget=2), easy.layouts.values()
    assert ask(first) == ask(first) == easy.seconds(first)
    assert len(ask.history) == 1
    ask(second)
    with pytest.raises(Enough):
        ask(third)
    assert ask(first) == easy.seconds(first)  # what is known costs nothing
    assert ask.history == [easy.seconds(first), easy.seconds(second)]


def test_what_cannot_run_is_no_evaluation(easy):
    ask, point = Evaluator(easy), point_of(next(iter(easy.layouts.values())))
    assert ask.at((999, *point[1:])) is None
    assert ask.history == []
    assert ask.at(point) == ask.history[0]


def test_what_does_not_fit_is_infinite_and_counted(tight):
    ask = Evaluator(tight)
    too_large = next(
        one for one in tight.layouts.values() if not tight.problem.run(one).step(limit=False).fits
    )
    assert ask(too_large) == math.inf
    assert ask.history == [math.inf]
    with pytest.raises(LayoutError, match="none of the 1 layouts that were tried fits"):
        _ = ask.best


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_asks_the_same(name, tight):
    first, again = (trial(name, "", tight, seed=3, budget=40).regrets for _ in range(2))
    assert first == again
    assert len(first) <= 40


@pytest.mark.parametrize("name", ["evolution", "policy gradient"])
def test_methods_that_learn_ask_for_better_layouts_as_they_go_on(name, landscape):
    order = sorted(landscape.layouts.values(), key=landscape.seconds)
    place, early, late = {one: i for i, one in enumerate(order)}, [], []
    for seed in range(12):
        ask = Evaluator(landscape, 40)
        with contextlib.suppress(Enough):
            METHODS[name](ask, Random(seed))
        places_asked = [place[one] for one in ask.known]
        early += places_asked[:12]
        late += places_asked[-12:]
    assert np.mean(late) < np.mean(early)


def test_the_oldest_is_removed(easy):
    """Real et al. 2019: not the worst, nor the youngest. Parents are drawn from those that are alive."""
    alive = []

    class Notes(Random):
        def sample(self, population, k):
            if isinstance(population, list) and isinstance(population[0][1], tuple):
                alive.append([point for _, point in population])
            return super().sample(population, k)

    METHODS["evolution"](Evaluator(easy), Notes(0))
    assert len(alive) > 12
    for before, now in itertools.pairwise(alive):
        assert now[:-1] == before[1:]


def test_mutated_points_can_run_and_differ(easy):
    ask, rng = Evaluator(easy), Random(0)
    for point in list(easy.layouts)[::7]:
        child = mutated(point, ask, rng)
        assert child in easy.layouts
        assert child != point


def test_one_layout_has_no_other():
    space = Space(tp=(1,), cp=(1,), pp=(1,), zero=(1,), recompute=("none",), micro_batch=(1,))
    only = landscape_of("llama3.2-1b", 8, 32, space)
    (point,) = only.layouts
    assert mutated(point, Evaluator(only), Random(0)) == point
    for name in METHODS:
        assert trial(name, "", only).regrets == (0,)


def test_a_policy_learns_what_is_rewarded(easy):
    policy = Policy(Evaluator(easy), np.random.default_rng(0))
    taken = policy.samples(8)
    before = [softmax(logits) for logits in policy.logits]
    rewards = np.zeros(8)
    rewards[3] = 1
    policy.learn(taken, rewards, 0.1)
    for column, chance, logits, all_taken in zip(
        taken[3], before, policy.logits, zip(*taken, strict=True), strict=True
    ):
        assert logits.sum() == pytest.approx(0)
        if all_taken.count(column) == 1 and len(logits) > 1:
            assert softmax(logits)[column] > chance[column]


def test_a_step_of_the_policy_is_the_gradient_of_the_expected_log_probability(easy):
    policy = Policy(Evaluator(easy), np.random.default_rng(1))
    taken, rewards, eps = policy.samples(8), np.arange(8.0), 1e-5
    advantages, before = rewards - rewards.mean(), [logits.copy() for logits in policy.logits]

    def objective(which, logits):
        return sum(
            a * math.log(softmax(logits)[one[which]]) for a, one in zip(advantages, taken, strict=True)
        )

    policy.learn(taken, rewards, 1.0)
    for which, logits in enumerate(before):
        for i in range(len(logits)):
            shift = eps * np.eye(len(logits))[i]
            slope = (objective(which, logits + shift) - objective(which, logits - shift)) / (2 * eps)
            assert policy.logits[which][i] - logits[i] == pytest.approx(slope, abs=1e-6)


def test_rewards_are_places():
    assert places([3.0, 1.0, math.inf, 1.0]).tolist() == [0.5, 0.75, 0.0, 0.75]
    assert places([math.inf, math.inf]).tolist() == [0, 0]


def test_trials_count_to_within_a_share():
    one = Trial("", "", 0, (math.inf, 0.5, 0.02, 0.005, 0.0), 9)
    assert (one.evaluations(), one.evaluations(0.1), one.evaluations(0)) == (4, 3, 5)
    assert (one.regret(2), one.regret(99)) == (0.5, 0.0)
    assert Trial("", "", 0, (0.5,), 9).evaluations() == math.inf


def test_regrets_are_those_of_the_best_so_far(tight):
    ask = Evaluator(tight)
    METHODS["random"](ask, Random(0))
    regrets = list(ask.regrets())
    assert regrets == sorted(regrets, reverse=True)
    assert regrets[-1] == 0
    assert min(ask.history[:10]) == pytest.approx((1 + regrets[9]) * tight.optimum)


def test_seeds_are_for_methods_that_have_one(easy):
    found = trials([("easy", easy)], seeds=range(2), budget=10)
    assert sorted({(one.method, one.seed) for one in found}) == sorted(
        (name, seed)
        for name in METHODS
        for seed in ((0, 1) if name in ("random", "evolution", "policy gradient") else (0,))
    )


def test_there_are_twenty_problems_that_have_layouts():
    found = dict(problems())
    assert len(found) == 20
    assert all(problem.gpus % 8 == 0 for problem in found.values())


def test_bad_input_is_named():
    with pytest.raises(LayoutError, match="no layout of this space can run on 8 GPUs"):
        landscape_of("llama3.2-1b", 8, 32, Space(tp=(16,)))
    with pytest.raises(ConfigError, match="budget must be"):
        Evaluator(landscape_of("llama3.2-1b", 8, 8, Space(tp=(8,), cp=(1,))), budget=0)


def test_a_point_says_all_of_a_layout(easy):
    assert all(point_of(one) == point for point, one in easy.layouts.items())
    assert len(set(easy.layouts.values())) == len(easy.layouts)


def test_every_layout_that_can_run_is_a_point_of_its_own():
    """On two nodes ZeRO shards over one or both of them, and experts are cut as attention is, or whole."""
    space = Space(cp=(1,), tp=(2,), pp=(1,), ep=(4,), etp=(0, 1), zero=(1, 3), micro_batch=(1,))
    found = landscape_of("qwen3-30b-a3b", 16, 32, space)
    every = list(candidates(found.problem, space))
    assert {(one.replicate, one.etp) for one in every} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert set(found.layouts.values()) == set(every)
