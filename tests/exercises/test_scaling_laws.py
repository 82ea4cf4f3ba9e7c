"""Wrong answers that readers of the chapter on scaling laws may well give, and what they are told."""

import math

import pytest

from playbook.estimates.scaling_laws import BESIROGLU
from playbook.hardware import ACCELERATORS
from playbook_book.exercises import grade

COMPUTE = 512 * ACCELERATORS["h100"].peak() * 0.4 * 21 * 86400
SIZE = math.sqrt(COMPUTE / 120)


def lifetime(law, loss, served, per_token=2):
    n = law.cheapest(loss).parameters

    def cost(n):
        return n * (6 * law.tokens_for(loss, n) + per_token * served)

    while cost(0.999 * n) < cost(n):
        n *= 0.999
    return n


def training_alone(law, loss, served):
    return law.cheapest(loss).parameters


def served_is_trained(law, loss, served):
    return lifetime(law, loss, served, 6)


def at_the_wall(law, loss, served):
    return (law.a / (loss - law.entropy)) ** (1 / law.alpha)


def far_too_small(law, loss, served):
    return 0.6 * law.cheapest(loss).parameters


def an_allocation(law, loss, served):
    return law.cheapest(loss)


def residuals(law, points):
    return [math.log(law.loss(n, d)) - math.log(loss) for n, d, loss in points]


def huber(r, delta=1e-3):
    return r * r / 2 if abs(r) <= delta else delta * (abs(r) - delta / 2)


def objective(law, points):
    return sum(map(huber, residuals(law, points)))


def planted_objective(law, points):
    return sum((law.loss(n, d) - loss) ** 2 for n, d, loss in points)


def squares_of_logs(law, points):
    return sum(r * r / 2 for r in residuals(law, points))


def huber_of_losses(law, points):
    return sum(huber(law.loss(n, d) - loss) for n, d, loss in points)


def averaged(law, points):
    return objective(law, points) / len(points)


def always_linear(law, points):
    return sum(1e-3 * abs(r) for r in residuals(law, points))


def without_half(law, points):
    return sum(r * r / 2 if abs(r) <= 1e-3 else 1e-3 * abs(r) for r in residuals(law, points))


def signed(law, points):
    return sum(r * r / 2 if r <= 1e-3 else huber(r) for r in residuals(law, points))


def doubled(law, points):
    return 2 * objective(law, points)


def throughput(n, layout, micro_batch, seq, seconds, peak, replicas=None, gpus=None):
    tokens = (replicas or layout.dp) * layout.grad_acc * micro_batch * seq
    return tokens, 6 * n * tokens / seconds / ((gpus or layout.world_size) * peak)


def planted_throughput(n, layout, *rest):
    return throughput(n, layout, *rest, replicas=layout.world_size)


def with_cp(n, layout, *rest):
    return throughput(n, layout, *rest, replicas=layout.dp * layout.cp)


def of_one_replica(n, layout, *rest):
    return throughput(n, layout, *rest, gpus=layout.dp)


def without_accumulation(n, layout, *rest):
    return throughput(n, layout.replace(grad_acc=1), *rest)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("size", 20 * SIZE, "that is the tokens"),
        ("size", COMPUTE, "that is the compute"),
        ("size", math.sqrt(COMPUTE / 160), "recomputation is no part of that"),
        ("size", math.sqrt(COMPUTE / 40), "that is forward alone"),
        ("size", math.sqrt(COMPUTE / 20), "more than one FLOP"),
        ("size", math.sqrt(COMPUTE / 48), "at the whole peak"),
        ("size", math.sqrt(2) * SIZE, "structured sparsity"),
        ("size", BESIROGLU.optimum(COMPUTE).parameters, "here the ratio is given"),
        ("size", 1e9, "1e+09 is too small. How many FLOPs are there"),
        ("lifetime", training_alone, "2e+12 tokens served: what is served costs nothing here"),
        ("lifetime", served_is_trained, "a served token goes forward alone"),
        ("lifetime", at_the_wall, "never reach that loss"),
        ("lifetime", far_too_small, "0 tokens served: 4.38e+10 parameters are too small, and cost 1.1"),
        ("lifetime", an_allocation, "expected a number of parameters, got Allocation("),
        ("objective", planted_objective, "one run close to the law: squares of differences between losses"),
        ("objective", squares_of_logs, "one run far from the law: logarithms, but still squared"),
        ("objective", huber_of_losses, "Huber's loss, but of differences between losses"),
        ("objective", averaged, "four runs: that is the mean"),
        ("objective", always_linear, "one run close to the law: linear close to the law, too"),
        ("objective", without_half, "one run far from the law: far from the law, half of delta is missing"),
        ("objective", signed, "take the size of the difference"),
        ("objective", doubled, "more than the sum of Huber losses"),
        ("throughput", planted_throughput, "dp=4,tp=2: 65,536 tokens, 2 times those of the global batch"),
        ("throughput", with_cp, "dp=2,cp=4,grad_acc=2: 131,072 tokens; ranks along cp have different tokens"),
        ("throughput", of_one_replica, "dp=4,tp=2: the tokens are right, but the MFU is 2 times"),
        ("throughput", without_accumulation, "dp=8,grad_acc=4: 65,536 tokens, 0.25 times"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"scaling-laws.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [("size", SIZE), ("lifetime", lifetime), ("objective", objective), ("throughput", throughput)],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"scaling-laws.{name}", answer).right
