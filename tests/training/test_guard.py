"""Spikes: which steps are none, and what each policy does of those that are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from playbook.errors import CheckpointError, ConfigError
from playbook.launch.logs import ManyLogs
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.guard import IN_A_ROW, LEAST, SpikeError, SpikeGuard
from playbook.training.saving import Checkpoints, Saving
from playbook.training.trainer import Trainer, make_trainer

SHAPE = {"layers": 2, "hidden": 16, "heads": 2, "vocab": 256, "max_seq": 64}
STEPS, BAD = 12, 6


def trainer(layout: str = "", bad: tuple[int, ...] = (), **more: Any) -> Trainer:
    """Of which the batches ``bad`` give a loss that is no number."""
    config = TrainConfig(
        steps=STEPS, global_batch=4, seq=16, device="cpu", layout=Layout.parse(layout), lr=1e-2, **more
    )
    made = make_trainer(SHAPE, load_corpus(), config, Mesh(config.layout) if layout else None)

    @contextmanager
    def around(step: int) -> Iterator[None]:
        weight = next(made.model.parameters()).data
        kept = weight.clone()
        if step + made.skipped in bad:
            weight.fill_(math.nan)
        yield
        if step + made.skipped in bad:
            weight.copy_(kept)

    made.around = around
    return made


def guarded(one: Trainer, policy: str, folder: Path | None = None, every: int = 4) -> list[tuple[int, float]]:
    """Step and loss of every step that was taken, repeated ones too."""
    saves = Checkpoints(Saving(str(folder), every, resume=True), one) if folder else None
    one.guard = guard = SpikeGuard(policy, one, saves)
    if saves:
        saves.resume()
    results = one.run(ManyLogs([guard, *([saves] if saves else [])]))
    return [(result.step, result.loss) for result in results]


def test_what_a_spike_is():
    guard = SpikeGuard("skip", trainer())
    for i in range(LEAST):  # too few to compare with: anything that is a number
        assert guard.accepts(10.0 ** (i % 3), 1.0)
    calm = SpikeGuard("skip", trainer())
    for i in range(LEAST):
        assert calm.accepts(3.0 + 0.1 * (-1) ** i, 1.0 + 0.01 * (-1) ** i)
    assert not calm.accepts(4.5, 1.0)  # so many are enough
    assert calm.accepts(3.59, 1.0)  # less than six standard deviations of 0.1 above 3
    assert not calm.accepts(4.5, 1.0)
    assert "loss is 4.5, more than 6 standard deviations" in calm.found
    assert not calm.accepts(3.0, 1.5)
    assert "gradient norm is 1.5" in calm.found
    assert not calm.accepts(math.nan, 1.0)
    assert not calm.accepts(3.0, math.inf)
    assert calm.accepts(0.1, 0.0)  # far below is no trouble
    again = SpikeGuard("skip", trainer())
    again.restore(json.loads(json.dumps(calm.state())))
    assert again.state() == calm.state()
    assert again.losses.maxlen == calm.losses.maxlen


def test_a_spike_is_skipped_and_changes_no_weight(capsys):
    one = trainer(bad=(BAD,))
    weights: list[list[torch.Tensor]] = []

    class Weights:
        def start(self, header: dict[str, Any]) -> None: ...
        def close(self, outcome: str) -> None: ...
        def step(self, record: dict[str, Any]) -> None:
            weights.append([p.detach().clone() for p in one.model.parameters()])

    one.guard = guard = SpikeGuard("skip", one)
    results = one.run(ManyLogs([guard, Weights()]))
    assert [result.skipped for result in results] == [step == BAD for step in range(STEPS)]
    assert all(torch.equal(a, b) for a, b in zip(weights[BAD - 1], weights[BAD], strict=True))
    assert not torch.equal(weights[BAD][0], weights[BAD + 1][0])
    assert (
        f"step {BAD} was a spike and not made: its loss is nan; goes on with the next batch"
        in capsys.readouterr().err
    )


def test_without_a_guard_it_is_made():
    one = trainer(bad=(BAD,))
    assert all(math.isnan(result.loss) for result in one.run()[BAD:])


def test_a_run_stops_at_a_spike():
    with pytest.raises(SpikeError, match=f"step {BAD} was a spike.*; the weights are those before it"):
        guarded(trainer(bad=(BAD,)), "stop")
    with pytest.raises(SpikeError, match=f"{IN_A_ROW + 1}th in a row"):
        guarded(trainer(bad=tuple(range(1, STEPS))), "skip")


def test_a_run_goes_back_and_passes_over_the_batches_since(tmp_path, capsys):
    steps = guarded(trainer(bad=(BAD,)), "rewind", tmp_path / "a")
    assert [step for step, _ in steps] == [*range(BAD + 1), *range(4, STEPS)]
    assert f"goes back to step 4, and on with the batches after {BAD}'s" in capsys.readouterr().err
    # A run that has always had the other batches from there on has the same losses.
    other = trainer()
    for step, loss in steps[:4]:
        assert other.step().loss == loss, step
    other.skipped = BAD + 1 - 4
    assert [(r.step, r.loss) for r in other] == steps[BAD + 1 :]
    # So has one that goes on from a checkpoint after it: what was passed over, and what spikes are told by, is there.
    for path in (tmp_path / "a").glob(f"step-*{STEPS}"):
        path.rename(tmp_path / "last")
    again = trainer(bad=(BAD,))
    assert guarded(again, "rewind", tmp_path / "a") == steps[-4:]
    assert again.skipped == other.skipped


@pytest.mark.parametrize(
    ("again", "steps"),
    [
        (
            BAD + 2,
            [*range(BAD + 1), 4, 5, *range(4, STEPS)],
        ),  # the checkpoint knows nothing of those passed over since
        (BAD + 6, [*range(BAD + 1), *range(4, 10), *range(8, STEPS)]),  # the next one knows of the first ones
    ],
)
def test_a_run_that_goes_back_twice_meets_no_batch_again(tmp_path, again, steps):
    one, asked = trainer(bad=(BAD, again)), []
    around = one.around

    def noted(step: int) -> Any:
        asked.append((step, step + one.skipped))
        assert len(asked) < 2 * STEPS, "it goes back again and again"
        return around(step)

    one.around = noted
    guarded(one, "rewind", tmp_path)
    assert asked == [(s, b) for b, s in enumerate(steps)]
    assert one.skipped == len(steps) - STEPS


def test_what_a_skipped_step_has_seen_is_in_no_scale():
    """FP8 scales what comes next by the largest values of the steps before."""
    spiked, calm = trainer(bad=(1,), fp8="delayed"), trainer(fp8="delayed")
    spiked.guard = SpikeGuard("skip", spiked)
    assert [spiked.step().skipped for _ in range(3)] == [False, True, False]
    calm.step()
    calm.skipped = 1  # the batch of the spike
    calm.step()
    (found,), (expected,) = spiked.engine.histories, calm.engine.histories
    assert expected.steps.any()
    assert torch.equal(found.steps, expected.steps)


def test_there_must_be_a_checkpoint_to_go_back_to(tmp_path):
    with pytest.raises(CheckpointError, match="has none yet to go back to"):
        guarded(trainer(bad=(2,)), "rewind", tmp_path)
    with pytest.raises(ConfigError, match="give --checkpoint DIR"):
        SpikeGuard("rewind", trainer())
    with pytest.raises(ConfigError, match="on_spike 'skpi'"):
        SpikeGuard("skpi", trainer())


def test_ranks_go_back_together(ranks, tmp_path):
    alone = guarded(trainer(bad=(BAD,)), "rewind", tmp_path / "alone")

    def work(layout: str, folder: Path) -> list[tuple[int, float]]:
        from playbook import launch

        with launch.process_group():
            return guarded(trainer(layout, (BAD,)), "rewind", folder)

    for layout in ("dp=2", "tp=2"):
        found = ranks(work, layout, tmp_path / layout, ranks=2)
        for result in found:
            assert [step for step, _ in result.value] == [step for step, _ in alone]
            losses = [loss for _, loss in result.value]
            assert losses == pytest.approx([loss for _, loss in alone], abs=2e-6, nan_ok=True)
