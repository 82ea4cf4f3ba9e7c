"""What blocks keep in CPU memory: what that saves, how long the copies take, and who says it in flags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playbook.errors import ConfigError
from playbook.hardware import load as load_cluster
from playbook.layout import Layout, recomputed
from playbook.planning.flags import FRAMEWORKS, emit
from playbook.planning.jobs import run_of
from playbook.planning.memory import predict
from playbook.planning.simulator import simulate
from playbook.shapes import load


def test_inputs_of_all_blocks_but_the_one_that_runs_are_elsewhere():
    layout = Layout(cp=8, zero=3, recompute="full+offload")
    given = {"seq": 1_048_576, "recipe": "autocast", "fused": {"linear-cross-entropy"}}
    peaks = [
        predict(load("qwen3-8b"), layout.replace(recompute=r), **given).peak for r in ("full", "full+offload")
    ]
    assert peaks[0] - peaks[1] == 35 * 1_048_576 // 8 * 4096 * 4


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_copies_cost_what_computation_does_not_hide(recompute):
    shape, cluster = load("llama3-8b"), load_cluster("h100-8").with_gpus(8)
    away = "offload" if recompute == "none" else f"{recompute}+offload"
    plain = Layout(dp=8, zero=1, recompute=recompute)
    given = {"seq": 4096, "limit": False}
    step = simulate(shape, plain, cluster, **given)
    slow = replace(cluster, accelerator=replace(cluster.accelerator, host_bandwidth=1e9))
    away_step = simulate(shape, plain.replace(recompute=away), slow, **given)
    kept = sum(part.value for part in step.memory.stages[0].parts if "block" in part.name)
    # Both ways over a link so slow that the copies alone take longer, each beside one pass.
    compute = away_step.breakdown["compute"]
    assert 2 * kept / 1e9 < compute <= 2 * kept / 1e9 + step.breakdown["compute"]
    fast = replace(cluster, accelerator=replace(cluster.accelerator, host_bandwidth=1e15))
    assert simulate(shape, plain.replace(recompute=away), fast, **given).seconds == pytest.approx(
        step.seconds
    )


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "playbook"])
def test_frameworks_do_not_say_it(framework):
    job = {"model": "llama3-8b", "cluster": "h100-8", "gpus": 8, "global_batch": 8, "seq": 4096}
    run = run_of({**job, "layout": "dp=8,zero=1,recompute=full+offload", "micro_batch": 1})
    text = emit(framework, run)
    assert "recompute=full+offload: what is kept stays on the GPU" in text
    assert "--recompute-modules" not in text


def test_it_stands_beside_all_or_modules():
    assert recomputed("full+offload") == {"full", "offload"}
    assert recomputed("core_attn+offload:2") == {"core_attn", "offload"}
    for wrong in ("none+offload", "full+mlp+offload", "offload+"):
        with pytest.raises(ConfigError, match="recompute") as error:
            recomputed(wrong)
        assert "\n" not in str(error.value)
