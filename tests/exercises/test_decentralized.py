"""Wrong answers that readers of the chapter on gossip and local steps may well give, and what they are told."""

import math

import pytest
import torch

from playbook.decentralized.topology import metropolis, uniform
from playbook_book.exercises import grade

GAP = 2 / 3 * (1 - math.cos(2 * math.pi / 100))
RIGHT = math.log(100) / -math.log(1 - GAP)


def one_peer(i, step, n):
    hop = 1 << step % (n.bit_length() - 1)
    return (i - hop) % n, (i + hop) % n


def hypercube(i, step, n):
    other = i ^ (1 << step % (n.bit_length() - 1))
    return other, other


def same_direction(i, step, n):
    hop = 1 << step % (n.bit_length() - 1)
    return (i + hop) % n, (i + hop) % n


def ring(i, step, n):
    return (i + 1) % n, (i - 1) % n


def linear(i, step, n):
    hop = 1 + step % (n.bit_length() - 1)
    return (i - hop) % n, (i + hop) % n


def without_turns(i, step, n):
    return (i - 2**step) % n, (i + 2**step) % n


def beyond_the_last(i, step, n):
    return i + 1, i - 1


def one_number(i, step, n):
    return (i + 1) % n


# ---- weights


def dense(mixing, n):
    rows = [[0.0] * n for _ in range(n)]
    for i, row in enumerate(mixing):
        for j, weight in row:
            rows[i][j] = weight
    return rows


def by_metropolis(n, edges):
    return dense(metropolis(n, edges), n)


def planted(n, edges):
    return dense(uniform(n, edges), n)


def by_column(n, edges):
    return [list(row) for row in zip(*planted(n, edges), strict=True)]


def nobody(n, edges):
    return [[float(i == j) for j in range(n)] for i in range(n)]


def all_to_all(n, edges):
    return [[1 / n] * n for _ in range(n)]


def laplacian_with_a_step_too_long(n, edges):
    rows = nobody(n, edges)
    for i, j in edges:
        rows[i][j] += 0.5
        rows[j][i] += 0.5
        rows[i][i] -= 0.5
        rows[j][j] -= 0.5
    return rows


def by_largest_degree(n, edges):
    rows = nobody(n, edges)
    for i, j in edges:
        for a, b in ((i, j), (j, i)):
            rows[a][b] += 1 / n
            rows[a][a] -= 1 / n
    return rows


# ---- local steps


def trained(local=lambda m, mean: m, meet=lambda x, m, mean: (mean(x), mean(m))):
    def train(x, gradient, mean, rounds, period, lr, beta):
        m = torch.zeros_like(x)
        for step in range(rounds * period):
            m = local(beta * m + gradient(x), mean)
            x = x - lr * m
            if (step + 1) % period == 0:
                x, m = meet(x, m, mean)
        return x

    return train


def at_the_beginning_of_a_round(x, gradient, mean, rounds, period, lr, beta):
    m = torch.zeros_like(x)
    for step in range(rounds * period):
        if step % period == 0:
            x, m = mean(x), mean(m)
        m = beta * m + gradient(x)
        x = x - lr * m
    return x


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ring", RIGHT), ("ring", math.ceil(RIGHT)), ("ring", math.log(100) / GAP), ("partners", one_peer),
        ("partners", hypercube), ("weights", by_metropolis), ("weights", by_largest_degree), ("local", trained()),
    ],
)  # fmt: skip
def test_right_answers(name, answer):
    verdict = grade(f"decentralized.{name}", answer)
    assert verdict.right, verdict.text


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("ring", 1 / GAP, "falls to 1/e"),
        ("ring", 50, "very thin"),
        ("ring", RIGHT / 2, "for a tenth"),
        ("ring", math.log(100) / -math.log(1 - 1.5 * GAP), "the factor 2/3"),
        ("ring", 100 / GAP, "a matter of logarithms"),
        ("ring", 7, "too small"),
        ("partners", same_direction, "both wait for ever"),
        ("partners", ring, "away from the average"),
        ("partners", linear, "away from the average"),
        ("partners", without_turns, "talks to itself"),
        ("partners", beyond_the_last, "names node"),
        ("partners", one_number, "expected (to, source)"),
        ("weights", planted, "column 0 adds up to 1.75"),
        ("weights", by_column, "row 0 adds up to 1.75"),
        ("weights", nobody, "nodes still differ by 1"),
        ("weights", all_to_all, "which is no neighbour"),
        ("weights", laplacian_with_a_step_too_long, "less than 0"),
        ("weights", lambda n, edges: [[1.0]], "rows of"),
        ("local", trained(local=lambda m, mean: mean(m)), "is not local"),
        ("local", trained(meet=lambda x, m, mean: (mean(x), m)), "momenta are not averaged"),
        ("local", trained(meet=lambda x, m, mean: (mean(x), 0 * mean(m))), "momenta begin anew"),
        ("local", trained(meet=lambda x, m, mean: (x, mean(m))), "x is not averaged"),
        ("local", trained(meet=lambda x, m, mean: (mean(x), mean(m) / len(m))), "off by up to"),
        ("local", at_the_beginning_of_a_round, "x is off"),
        ("local", lambda *_: None, "returns the x of all nodes"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"decentralized.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text
