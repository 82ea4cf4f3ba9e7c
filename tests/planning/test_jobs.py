"""Jobs: what can be asked as JSON, and one sentence for what cannot."""

import json

import pytest

from playbook.planning.jobs import answer, run_of

JOB = {
    "model": "llama3-8b", "cluster": "h100-8", "gpus": 16, "layout": "tp=2,sp,pp=2", "micro_batch": 1, "global_batch": 64,
    "seq": 4096,
}  # fmt: skip


def test_what_is_left_of_gpus_and_batch_is_filled_in():
    run = run_of(JOB)
    assert (run.layout.dp, run.layout.grad_acc, run.layout.world_size, run.layout.global_batch) == (
        4,
        16,
        16,
        64,
    )
    assert (
        run_of({**JOB, "layout": "dp=2,tp=2,pp=2,grad_acc=3", "gpus": 8, "global_batch": 6}).layout.grad_acc
        == 3
    )
    experts = run_of({**JOB, "model": "mixtral-8x7b", "layout": "ep=8", "gpus": 64})
    assert (experts.layout.dp, experts.layout.ep) == (64, 8)


def test_an_answer_has_the_keys_of_simulate():
    found = answer(json.dumps(JOB))
    assert set(found) == {
        "step_s", "step_interval_s", "tokens_per_s_per_gpu", "mfu", "hfu", "memory", "breakdown_s",
    }  # fmt: skip
    assert set(found["memory"]) == {"peak", "capacity", "fits", "verdict"}
    assert (found["memory"]["fits"], found["memory"]["verdict"]) == (True, "fits")
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_s"])
    assert found["tokens_per_s_per_gpu"] == pytest.approx(64 * 4096 / 16 / found["step_s"])


def test_clusters_may_have_fields_of_their_own():
    base = answer(JOB)
    for more, faster in (
        ({"memory_bandwidth": 8e12}, True), ({"inter_bandwidth": 1e9}, False), ({"intra_bandwidth": 1e10}, False),
        ({"peak_flops": 2e15}, True), ({"peak_flops": {"bf16": 5e14}}, False), ({"gpus_per_node": 2}, False),
    ):  # fmt: skip
        found = answer({**JOB, "cluster": {"base": "h100-8", **more}})
        assert (found["step_s"] < base["step_s"]) is faster
    assert (
        answer({**JOB, "cluster": {"base": "h100-8", "memory_bytes": 141e9}})["memory"]["capacity"]
        == 141 * 10**9
    )


def test_precisions_and_kernels():
    seconds = {
        name: answer({**JOB, "limit": False, **more})["step_s"]
        for name, more in {
            "bf16": {}, "fp8": {"precision": "fp8"}, "blockwise": {"precision": "fp8:blockwise"},
            "fp16": {"precision": "fp16"}, "plain": {"fused": False}, "written": {"attention": "reference"},
            "hidden": {"overlap": {"dp": True, "tp": True}},
        }.items()
    }  # fmt: skip
    assert seconds["fp8"] < seconds["bf16"] == seconds["fp16"]
    blackwell = {"cluster": "b200-8", "limit": False}
    names = "nvfp4,wide=0", "nvfp4", "fp8:mxfp8", "bf16"
    there = [answer({**JOB, **blackwell, "precision": name})["step_s"] for name in names]
    assert there == sorted(there)
    assert len(set(there)) == 4
    assert seconds["blockwise"] < seconds["bf16"]
    assert seconds["hidden"] < seconds["bf16"]
    assert seconds["plain"] > seconds["bf16"]
    assert seconds["written"] > seconds["bf16"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "nope"}, "unknown model 'nope'"),
        ({"cluster": "h1000-8"}, "unknown cluster 'h1000-8'; did you mean h100-8"),
        ({"cluster": "h100"}, "cluster 'h100' is a single accelerator"),
        ({"cluster": {"memory_bytes": 3}}, "cluster must be a name or an object with a base"),
        ({"cluster": {"base": "h100-8", "memory": 3}}, "unknown field of a cluster 'memory'"),
        ({"cluster": {"base": "h100-8", "inter_bandwidth": -1}}, "inter_bandwidth must be"),
        ({"gpus": 0}, "gpus must be at least 1, got 0"),
        ({"gpus": 12, "global_batch": 63}, "gpus must be a multiple of the 8 of a node"),
        ({"gpus": 6}, "gpus must be a multiple of tp * cp * pp = 4, got 6"),
        ({"layout": "dp=2"}, "dp * cp * tp * pp must be gpus = 16, got 2"),
        ({"layout": "tp=x"}, "tp must be an integer, got 'x'"),
        ({"layout": "px=2"}, "unknown layout field 'px'"),
        ({"global_batch": 6}, "global_batch must be a multiple of dp * micro_batch = 4, got 6"),
        ({"seq": 0}, "seq must be at least 1"),
        ({"precision": "fp7"}, "unknown precision 'fp7'"),
        ({"precision": "nvfp4"}, "dtype must be one of bf16, fp16, tf32, fp32, fp8 on h100, got 'fp4'"),
        ({"attention": "slow"}, "attention must be flash or reference, got 'slow'"),
        ({"fused": 1}, "fused must be true or false, got 1"),
        ({"overlap": {"dp": 1}}, "overlap must be an object"),
        ({"overlap": {"px": True}}, "overlap has 'px'"),
        ({"stage_layers": "8"}, "stage_layers must be a list of whole numbers"),
        ({"context": "rings"}, "context must be one of ring, gather, ulysses"),
        ({"micro_batches": 1}, "unknown key of a job 'micro_batches'; did you mean micro_batch"),
        ({"calibration": "h1000"}, "unknown calibration 'h1000'"),
        ({"layout": ""}, "layout dp=16,grad_acc=4 needs "),
    ],
)
def test_one_sentence_for_what_cannot_be_answered(change, sentence):
    found = answer({**JOB, **change})
    assert sentence in found["error"]
    assert "\n" not in found["error"]
    if change.get("layout") == "":
        assert found["memory"]["fits"] is False


def test_torn_lines():
    for line in ('{"model": "llama3', "[1, 2]", "3", '{"model": "llama3-8b"}'):
        assert set(answer(line, 7)) == {"error"}
    assert "job 7" in answer("[1, 2]", 7)["error"]
