"""Two torchruns of which a rank is killed while it saves, and which go on to the losses of a quiet run.

Then one of them is lost for good, and the other goes on alone.
"""

from __future__ import annotations

import signal

import pytest
import two_agents

TRAIN, STEPS = two_agents.train_flags("dp=2,zero=3"), 8


@pytest.fixture
def quiet(tmp_path) -> list[tuple[int, float, float]]:
    """The run without a fault."""
    return two_agents.quiet(tmp_path, TRAIN, STEPS)


@pytest.mark.slow
def test_a_rank_of_two_agents_is_killed_and_then_an_agent_is_lost_for_good(tmp_path, quiet, record_property):
    found = two_agents.killed(tmp_path, [*TRAIN, "--elastic"], 1, STEPS, kills=1, seed=0, lost="step-5")
    assert found.statuses == [0, -signal.SIGKILL], found.said
    assert (sum(found.by_agent), found.while_saving) == (1, 1)
    assert "Connection refused" not in found.said
    together, alone = found.steps[:-4], found.steps[-4:]
    assert set(together) == set(quiet[:6])
    # Half as many ranks add up in another order.
    assert [step for step, *_ in alone] == [4, 5, 6, 7], found.said
    for (_, *numbers), (_, *expected) in zip(alone, quiet[4:], strict=True):
        assert numbers == pytest.approx(expected, rel=1e-5)
    record_property("measured", f"steps done again: {len(found.steps) - STEPS}")
