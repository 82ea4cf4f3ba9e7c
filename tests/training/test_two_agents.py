"""Two torchruns whose ranks are killed, while they train and while they save: they go on to the losses of a quiet run.

And one that goes on alone when the other is lost for good.
"""

from __future__ import annotations

import signal

import pytest
import two_agents


@pytest.mark.slow
def test_ranks_of_two_agents_are_killed_and_the_losses_are_those_of_a_quiet_run(tmp_path, record_property):
    train, steps, kills = two_agents.train_flags("dp=2,zero=3"), 12, 2
    found = two_agents.killed(tmp_path, train, 1, steps, kills, seed=0)
    assert found.statuses == [0, 0], found.said
    assert (sum(found.by_agent), found.while_saving) == (kills, kills // 2)
    assert set(found.steps) == set(two_agents.quiet(tmp_path, train, steps))
    assert "Connection refused" not in found.said
    record_property("measured", f"ranks killed: {kills}; steps done again: {len(found.steps) - steps}")


@pytest.mark.slow
def test_an_agent_that_is_lost_for_good_leaves_the_other_to_go_on_with_fewer_ranks(tmp_path):
    train, steps = two_agents.train_flags("dp=4,zero=2"), 12
    found = two_agents.lost(tmp_path, train, 2, steps, "step-7")
    assert found.statuses == [0, -signal.SIGKILL], found.said
    expected = {step: numbers for step, *numbers in two_agents.quiet(tmp_path, train, steps)}
    assert [step for step, *_ in found.steps] == [*range(8), *range(6, steps)], found.said
    # Half as many ranks add up in another order.
    assert all(numbers == pytest.approx(expected[step], rel=1e-5) for step, *numbers in found.steps)
