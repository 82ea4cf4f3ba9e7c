"""Wrong answers that readers of the chapter on the simulator may well give, and what they are told."""

import pytest

from playbook.block import DENSE
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.operations import Sizes, block
from playbook.shapes import load
from playbook_book.exercises import grade

COMPUTE = 8 * 72 * 8192**2 * 4096 / 8 / 200e12  # of a micro-batch on a stage
SENT = 8 * 4 * 2 * 7 / 8 * 2 * 8192 * 4096 / 240e9
RIGHT = 7 * (COMPUTE + SENT)


def by_waves(m, n, k, processors, peak):
    tiles = -(-m // 128) * -(-n // 256)
    return -(-tiles // processors) * processors * 2 * 128 * 256 * k / peak


def without_waves(m, n, k, processors, peak):
    return 2 * m * n * k / peak


def whole_tiles_alone(m, n, k, processors, peak):
    return -(-m // 128) * -(-n // 256) * 2 * 128 * 256 * k / peak


def whole_waves_alone(m, n, k, processors, peak):
    return -(-m * n // (128 * 256 * processors)) * processors * 2 * 128 * 256 * k / peak


def turned(m, n, k, processors, peak):
    return by_waves(n, m, k, processors, peak)


def whole_peak(m, n, k, processors, peak):
    return by_waves(m, n, k, processors, peak) / processors


def one_flop(m, n, k, processors, peak):
    return by_waves(m, n, k, processors, peak) / 2


def milliseconds(m, n, k, processors, peak):
    return by_waves(m, n, k, processors, peak) * 1000


def nothing(m, n, k, processors, peak):
    return None


def right_step(forward, backward, micro_batches, full, reduce, window, factors):
    passes = micro_batches * ((2 if full else 1) * forward + backward)
    return max(factors) * passes + max(0.0, reduce - window)


def planted(forward, backward, micro_batches, full, reduce, window, factors):
    passes = micro_batches * (forward + backward)
    return sum(factors) / len(factors) * passes + reduce


def two_left(forward, backward, micro_batches, full, reduce, window, factors):
    passes = micro_batches * ((2 if full else 1) * forward + backward)
    return sum(factors) / len(factors) * passes + reduce


def one_left(forward, backward, micro_batches, full, reduce, window, factors):
    passes = micro_batches * ((2 if full else 1) * forward + backward)
    return sum(factors) / len(factors) * passes + max(0.0, reduce - window)


def hides_too_much(forward, backward, micro_batches, full, reduce, window, factors):
    passes = micro_batches * ((2 if full else 1) * forward + backward)
    return max(factors) * passes + reduce - window


def slow_messages(forward, backward, micro_batches, full, reduce, window, factors):
    passes = micro_batches * ((2 if full else 1) * forward + backward)
    return max(factors) * (passes + max(0.0, reduce - window))


def held_out(tables, fit, error):
    found = {}
    for name, rows in tables.items():
        others = [row for other, its in tables.items() if other != name for row in its]
        found[name] = error(fit(others), rows)
    return found


def fitted_to_all(tables, fit, error):
    every = [row for rows in tables.values() for row in rows]
    return {name: error(fit(every), rows) for name, rows in tables.items()}


def fitted_to_itself(tables, fit, error):
    return {name: error(fit(rows), rows) for name, rows in tables.items()}


def a_row_left_out(tables, fit, error):
    found = {}
    for name, rows in tables.items():
        every = [row for its in tables.values() for row in its]
        found[name] = error(fit([row for row in every if row != rows[0]]), rows)
    return found


def on_the_rest(tables, fit, error):
    found = {}
    for name in tables:
        others = [row for other, its in tables.items() if other != name for row in its]
        found[name] = error(fit(others), others)
    return found


def next_table(tables, fit, error):
    names = list(tables)
    return {
        name: error(fit(tables[names[(i + 1) % len(names)]]), tables[name]) for i, name in enumerate(names)
    }


def a_list(tables, fit, error):
    return list(held_out(tables, fit, error).values())


@pytest.mark.parametrize(
    ("name", "answer"), [("term", RIGHT), ("waves", by_waves), ("step", right_step), ("leak", held_out)]
)
def test_right_answers(name, answer):
    verdict = grade(f"simulator.{name}", answer)
    assert verdict.right, verdict.text


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("term", 7 * COMPUTE, "a pass of a stage has messages in it"),
        ("term", 32 * SENT, "the bubble is longer"),
        ("term", 16 * SENT, "in forward alone"),
        ("term", 32 * COMPUTE, "what comes second"),
        ("term", 7 / 32, "the question is for seconds"),
        ("term", 8 * (COMPUTE + SENT), "p − 1 passes"),
        ("term", RIGHT / 3, "as long as forward and backward"),
        ("term", 7 * (8 * COMPUTE + SENT), "an eighth"),
        ("term", 100.0, "too large. Find the seconds of one micro-batch"),
        ("waves", without_waves, "as if no tile and no wave"),
        ("waves", whole_tiles_alone, "tiles are whole, but waves are not"),
        ("waves", whole_waves_alone, "waves are whole, but tiles are not"),
        ("waves", turned, "not the other way around"),
        ("waves", whole_peak, "its part of the peak"),
        ("waves", one_flop, "two FLOPs"),
        ("waves", milliseconds, "off by a factor of 1000"),
        ("waves", nothing, "expected seconds"),
        ("step", planted, "full recomputation: the step is 4 s shorter"),
        ("step", two_left, "there is time to hide them: the step is 1.5 s longer"),
        ("step", one_left, "a slow rank among four: the step is 2.25 s shorter"),
        ("step", hides_too_much, "less time than there is to hide them: the step is 1 s shorter"),
        ("step", slow_messages, "a slow rank, and gradients: the step is 0.5 s longer"),
        ("step", lambda **_: "12 s", "expected seconds"),
        ("leak", fitted_to_all, "the error of blocks: the fit had seen b1, b2"),
        ("leak", fitted_to_itself, "the error of blocks: the fit had seen b1, b2"),
        ("leak", a_row_left_out, "the error of blocks: the fit had seen b2"),
        ("leak", on_the_rest, "is computed on s1, s2, s3, not on its own rows"),
        ("leak", next_table, "the fit had not seen s1, s2, s3, s4, though it might have"),
        ("leak", a_list, "expected an error for each of them by its name"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"simulator.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text, verdict.text


def test_the_products_of_the_number_are_those_that_the_library_counts():
    """A block of 12 h² weights, one eighth of it on each rank."""
    shape = load({"layers": 1, "hidden": 8192, "heads": 64, "vocab": 256, "max_seq": 4096})
    passes = block(Sizes(Job(shape, Layout(tp=8), seq=4096)), DENSE)
    work = sum(
        o.work
        for part in (passes.forward, passes.inputs, passes.weights)
        for o in part
        if o.kind == "product"
    )
    assert 8 * work / 200e12 == pytest.approx(COMPUTE)
