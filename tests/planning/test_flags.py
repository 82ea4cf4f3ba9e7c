"""Layouts in the words of frameworks."""

import json
import shlex
import tomllib

import pytest

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.planning.flags import FRAMEWORKS, emit
from playbook.shapes import load

LAYOUT = Layout.parse(
    "dp=4,tp=4,pp=4,sp,zero=1,schedule=interleaved,vpp=5,grad_acc=8,micro_batch=2,recompute=selective"
)


def flags(text):
    words = shlex.split(text.replace("\\\n", " "))
    found, name = {}, None
    for word in words:
        if word.startswith("--"):
            name = word
            found[name] = True
        elif name:
            found[name] = word
    return found


def test_megatron():
    found = flags(emit("megatron", load("llama3-70b"), LAYOUT, 8192))
    sizes = {
        "tensor-model-parallel-size": "4",
        "pipeline-model-parallel-size": "4",
        "num-layers-per-virtual-pipeline-stage": "4",
    }
    assert {name: found[f"--{name}"] for name in sizes} == sizes
    assert found["--micro-batch-size"] == "2"
    assert found["--global-batch-size"] == str(LAYOUT.global_batch) == "64"
    assert found["--recompute-granularity"] == "selective"
    assert found["--sequence-parallel"] is True
    assert found["--use-distributed-optimizer"] is True
    assert "--context-parallel-size" not in found
    sharded = flags(
        emit("megatron", load("llama3-8b"), Layout.parse("dp=8,zero=3,cp=2,recompute=full"), 8192)
    )
    assert sharded["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert sharded["--context-parallel-size"] == "2"
    experts = flags(emit("megatron", load("mixtral-8x7b"), Layout.parse("dp=8,ep=8,zero=1"), 4096))
    assert experts["--expert-model-parallel-size"] == "8"


def test_torchtitan_is_a_file_that_reads():
    found = tomllib.loads(emit("torchtitan", load("llama3-70b"), LAYOUT.replace(zero=3), 8192))
    assert found["parallelism"]["data_parallel_shard_degree"] == 4
    assert found["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert found["activation_checkpoint"]["mode"] == "selective"
    assert found["training"] == {"seq_len": 8192, "local_batch_size": 16, "global_batch_size": 64}
    plain = tomllib.loads(emit("torchtitan", load("llama3-8b"), Layout(dp=8), 8192))
    assert plain["parallelism"]["data_parallel_replicate_degree"] == 8


def test_deepspeed_is_json_behind_what_it_cannot_say():
    text = emit("deepspeed", load("llama3-70b"), LAYOUT, 8192)
    comment, _, config = text.partition("\n")
    assert comment.startswith("//")
    assert "tensor parallel=4" in comment
    found = json.loads(config)
    assert found["train_batch_size"] == 64
    assert found["zero_optimization"]["stage"] == 1
    assert found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * LAYOUT.dp == 64


def test_playbook_reads_its_own():
    text = emit("playbook", load("llama3-70b"), LAYOUT, 8192)
    words = shlex.split(text)
    assert Layout.parse(words[words.index("--layout") + 1]) == LAYOUT


@pytest.mark.parametrize(
    ("framework", "text", "sentence"),
    [
        ("megatron", "pp=4,schedule=zb-v,grad_acc=8,vpp=2", "Megatron-LM has no schedule=zb-v"),
        ("torchtitan", "pp=4,schedule=zb-h2,grad_acc=8", "torchtitan has no schedule=zb-h2"),
        ("deepspeed", "pp=4,dp=2,zero=2,grad_acc=8", "DeepSpeed's pipelines go with zero=0 or 1"),
        ("jax", "dp=2", "framework must be one of megatron, torchtitan, deepspeed, playbook, got 'jax'"),
    ],
)
def test_what_a_framework_cannot_do(framework, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        emit(framework, load("llama3-70b"), Layout.parse(text), 4096)


def test_every_framework_says_something():
    for framework in FRAMEWORKS:
        assert emit(framework, load("llama3-8b"), Layout(dp=8, zero=1), 4096)
