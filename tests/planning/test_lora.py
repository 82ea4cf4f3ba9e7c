"""LoRA: what adapters keep and compute is what the planner says, to the byte."""

from __future__ import annotations

import pytest
import torch
from helpers import BLOCKS, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import RUNS, deepseek_shapes, shapes

from playbook.block import PARTS
from playbook.errors import PlaybookError
from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.planning.flags import FRAMEWORKS, emit
from playbook.planning.flops import step_flops
from playbook.planning.jobs import run_of, trained_parameters
from playbook.planning.memory import predict
from playbook.planning.recipes import load_recipe
from playbook.planning.simulator import simulate
from playbook.shapes import load
from playbook.training.optimizer import adamw
from playbook_book.instruments.measured import (
    SavedActivations,
    count_flops,
    gradient_bytes,
    optimizer_bytes,
    parameter_bytes,
)

#: Adapters, or parts of a model.
TRAIN = st.integers(1, 5).map("lora:{}".format) | st.sets(st.sampled_from(PARTS), min_size=1).map("+".join)


@given(
    shapes(dense=True) | deepseek_shapes(experts=False), TRAIN, st.integers(1, 3), st.integers(2, 17),
    st.sampled_from(["none", "selective", "mlp", "full", "full:1"]), st.sampled_from(["reference", "sdpa"]),
    st.sampled_from(list(RUNS)),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_one_device_is_predicted_to_the_byte(shape, train, batch, seq, recompute, attention, recipe):
    shape, run = shape.replace(train=train), RUNS[recipe]
    layout = Layout(micro_batch=batch, recompute=recompute)
    stage = predict(shape, layout, seq=seq, recipe=recipe, attention=attention, device="cpu").stages[0]
    model = Transformer(shape, attention=attention, recompute=recompute, dtype=run["dtype"])
    learning = [(p, True) for p in model.parameters() if p.requires_grad]
    optimizer = adamw(learning, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    x, y = tokens(shape, batch, seq)
    with (
        torch.autocast("cpu", dtype=run["autocast"], enabled=run["autocast"] is not None),
        SavedActivations(model, (x, y)) as saved,
    ):
        loss = model.loss(x, y)[0]
    loss.backward()
    optimizer.step()
    assert sum(p.numel() for p, _ in learning) == trained_parameters(shape)
    measured = (parameter_bytes(model), gradient_bytes(model), optimizer_bytes(optimizer), saved.bytes)
    assert (stage.parameters, stage.gradients, stage.optimizer, stage.activations) == measured


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("block", ["gpt", "llama"])
@pytest.mark.parametrize("train", ["lora:3", "attention+norms", "mlp", "head"])
def test_flops_are_those_that_run(block, recompute, train):
    """Of a frozen matrix the product for its gradient is not made."""
    shape = BLOCKS[block].replace(train=train)
    model = Transformer(shape, attention="reference", recompute=recompute)
    x, y = tokens(shape, 2, 9)
    told = step_flops(shape, 2, 9, recompute)
    assert count_flops(lambda: model.loss(x, y)[0].backward()) == told.hardware


def test_as_many_learn_as_peft_says():
    """What ``print_trainable_parameters`` of peft 0.19 prints for Llama-3-8B and target_modules="all-linear"."""
    for rank, learn, all_ in ((8, 20_971_520, 8_051_232_768), (16, 41_943_040, 8_072_204_288)):
        shape = load("llama3-8b", f"lora:{rank}")
        assert (trained_parameters(shape), shape.num_parameters) == (learn, all_)
    meta = Transformer(shape, device="meta")
    assert sum(p.numel() for p in meta.parameters() if p.requires_grad) == learn


def test_a_run_begins_at_the_loss_of_the_model_that_it_adapts():
    whole, adapted = (
        Transformer(BLOCKS["llama"].replace(train=train), seed=3) for train in ("full", "lora:4")
    )
    x, y = tokens(BLOCKS["llama"], 2, 9)
    assert torch.equal(whole.loss(x, y)[0], adapted.loss(x, y)[0])
    down = dict(adapted.named_parameters())["blocks.0.mlp.down.lora_A.weight"]
    assert 0.5 < down.abs().max() * down.shape[1] ** 0.5 <= 1  # uniform up to 1/sqrt(inputs)


def test_frozen_states_are_sharded_by_stage_3_alone():
    shape, plain = load("llama3-8b", "lora:16"), load("llama3-8b")
    for zero in range(4):
        stage = predict(shape, Layout(dp=8, zero=zero), seq=1024).stages[0]
        assert stage.gradients * (8 if zero >= 2 else 1) == 2 * trained_parameters(shape)
        assert stage.optimizer * (8 if zero else 1) == 12 * trained_parameters(shape)
        whole = 2 * shape.num_parameters
        assert stage.parameters == (whole // 8 if zero == 3 else whole)
    assert shape.num_parameters == plain.num_parameters + trained_parameters(shape)


def test_a_step_takes_less_time_and_sends_fewer_gradients():
    cluster, layout = load_cluster("h100-8").with_gpus(8), Layout(dp=8, zero=1)
    full, lora = (
        simulate(load("llama3-8b", train), layout, cluster, seq=2048) for train in ("full", "lora:16")
    )
    assert 0.6 < lora.breakdown["compute"] / full.breakdown["compute"] < 0.8  # 4N and a little of 6N
    assert lora.breakdown["optimizer"] < full.breakdown["optimizer"] / 100
    assert lora.breakdown["dp_exposed"] < full.breakdown["dp_exposed"] / 10


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_say_it_or_say_that_they_do_not(framework):
    job = {
        "model": "llama3-8b",
        "train": "lora:16",
        "cluster": "h100-8",
        "layout": "dp=8,zero=3",
        "seq": 4096,
    }
    text = emit(framework, run_of(job))
    assert ("--train lora:16" in text) == (framework == "playbook")
    assert ("NOT EXPRESSED: train=lora:16" in text) == (framework != "playbook")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"train": "lora"},
            r"train must be full, lora:16 or parts of embedding\+\S*, got 'lora'",
        ),
        ({"train": "lora:0"}, "got 'lora:0'"),
        ({"model": "mixtral-8x7b"}, "train is lora:16, which leaves nothing to experts"),
        ({"recipe": load_recipe("bf16-mixed").with_fp8("tensorwise")}, "train is lora:16, .* fp8=tensorwise"),
        ({"fused": "all"}, "train is lora:16, .* linear-cross-entropy"),
        (
            {"layout": Layout(tp=2, sp=True, tensor_overlap="chunked")},
            "tensor_overlap is 'chunked', but train=lora:16",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(given, words):
    shape = {"model": "llama3-8b", "train": "lora:16"} | {
        k: v for k, v in given.items() if k in ("model", "train")
    }
    with pytest.raises(PlaybookError, match=words) as error:
        predict(
            load(shape["model"], shape["train"]), seq=64, **{k: v for k, v in given.items() if k not in shape}
        )
    assert "\n" not in str(error.value)
