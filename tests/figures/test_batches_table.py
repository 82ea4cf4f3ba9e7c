"""Steps of a schedule are what taking the steps one by one counts; published totals come out."""

import pytest

from playbook.errors import ConfigError
from playbook_book.batches import RUNS, BatchPhase, BatchSchedule, optimizer_steps


def walk(schedule: BatchSchedule) -> int:
    """Take every step: read the batch size off the corners at the tokens seen so far."""
    corners = list(schedule.corners())
    lines = list(zip(corners[::2], corners[1::2], strict=True))
    seen, steps = 0.0, 0
    while seen < schedule.tokens:
        for (x0, y0), (x1, y1) in lines:
            if x0 <= seen < x1:
                seen += y0 + (y1 - y0) * (seen - x0) / (x1 - x0)
                steps += 1
                break
        else:
            break
    return steps


@pytest.mark.parametrize("name", RUNS)
def test_steps_equal_a_walk_through_the_run(name):
    assert RUNS[name].steps == pytest.approx(walk(RUNS[name]), rel=1e-4)


def test_palm_comes_to_its_published_steps_and_tokens():
    assert RUNS["PaLM 540B"].steps == pytest.approx(255_000)
    assert RUNS["PaLM 540B"].tokens == pytest.approx(780e9, rel=0.05)


def test_deepseek_ends_at_what_is_called_sixty_million():
    run = RUNS["DeepSeek-V3"]
    assert run.last_batch == 62_914_560
    assert run.tokens == 14.8e12
    assert run.stages[0].tokens == 469e9


def test_gpt3_ramps_from_32k_tokens_and_takes_more_steps_for_it():
    run = RUNS["GPT-3 175B"]
    assert (run.stages[0].batch, run.last_batch, run.tokens) == (32_000, 3.2e6, 300e9)
    assert run.steps == pytest.approx(107_444, abs=1)
    assert optimizer_steps(300e9, 1, 3_200_000) == 93_750


def test_a_constant_run_is_a_division():
    assert optimizer_steps(1e6, 10, 100) == 1000
    assert BatchPhase(100, 5, 5).steps == 20


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (1, 1, -2)])
def test_sizes_of_nothing_are_refused(values):
    with pytest.raises(ConfigError, match="must be above 0"):
        BatchPhase(*values)
