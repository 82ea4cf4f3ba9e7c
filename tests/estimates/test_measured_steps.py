"""Steps that a GPU took, held against predictions which no fit to that GPU has touched: time and peak memory."""

import pytest

from playbook.bench import records
from playbook.layout import Layout
from playbook.planning.jobs import answer
from playbook.planning.memory import predict
from playbook.shapes import load

#: What the instrument kept alive of the step before when these peaks were measured (the record's ``note`` says so).
KEPT = 2_471_628_800
RUNS = [
    (record, run)
    for record in records("trainer")
    if record["provenance"]["gpu"] == "NVIDIA H200"
    for run in record["runs"]
]


def test_steps_of_the_trainer_on_an_h200_are_predicted_within_four_percent():
    plain = [(record, run) for record, run in RUNS if run["kernels"] == "torch" and not run["compile"]]
    assert len(plain) == 3
    for record, run in plain:
        job = {
            "model": record["model"], "cluster": "h200-8", "gpus": 1, "layout": f"recompute={run['recompute']}",
            "micro_batch": run["micro_batch"], "global_batch": run["micro_batch"] * run["grad_acc"], "seq": run["seq"],
        }  # fmt: skip
        assert answer(job)["step_s"] == pytest.approx(run["step_s"], rel=0.04)


def test_their_peaks_are_predicted_within_one_percent():
    """But where blocks are compiled: what Inductor does not keep, no plan knows."""
    eager = [(record, run) for record, run in RUNS if not run["compile"]]
    assert len(eager) == 6
    for record, run in eager:
        layout = Layout(micro_batch=run["micro_batch"], grad_acc=run["grad_acc"], recompute=run["recompute"])
        fused = run["kernels"] == "fused"
        plan = predict(load(record["model"]), layout, seq=run["seq"], device="cuda", fused=fused)
        assert plan.peak == pytest.approx(run["peak_bytes"] - KEPT * ("note" in record), rel=0.01)
