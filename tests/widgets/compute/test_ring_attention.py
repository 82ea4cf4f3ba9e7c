"""The ring-attention widget's function: steps, bytes and times against what they stand for."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace

import pytest
from playbook_widgets.compute.ring_attention import MODELS, compute, read, read_tokens
from playbook_widgets.compute.ring_steps import steps_of

from playbook.cli import main
from playbook.collectives.links import AlphaBeta
from playbook.commands import train
from playbook.layout import Layout
from playbook.layout.fields import CONTEXT
from playbook.layout.tokens import PLACEMENT, TokenRanges
from playbook.shapes import PRESETS
from playbook_book.context_cost import context_traffic

WAYS = [
    (context, kind) for context in CONTEXT for kind in PLACEMENT if (context, kind) != ("ulysses", "zigzag")
]


@pytest.mark.parametrize(("context", "placement"), WAYS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_are_those_that_real_ranks_are_held_to(context, placement, ranks):
    for model in ("llama3-8b", "gpt3-175b"):
        traffic = context_traffic(PRESETS[model], Layout(cp=ranks), 1000, context, itemsize=2)
        for backward, told in ((False, traffic.forward), (True, traffic.backward)):
            inputs = {"context": context, "placement": placement, "ranks": ranks, "seq": 1000, "model": model}
            steps = steps_of(read({**inputs, "backward": backward}))
            assert sum(step.sent for step in steps) == told, (model, backward)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_keys_make_a_round_and_gradients_follow_a_step_behind(ranks, backward):
    steps = compute({"ranks": ranks, "backward": backward})["steps"]
    assert len(steps) == ranks + backward
    for number, step in enumerate(steps[:ranks]):
        assert [part["sources"] for part in step["ranks"]] == [[(r - number) % ranks] for r in range(ranks)]
    moved = [[what for what, _ in step["moves"]] for step in steps]
    assert [("kv" in what) for what in moved] == [n < ranks - 1 for n in range(len(steps))]
    assert [("dkv" in what) for what in moved] == [backward and n >= 2 for n in range(len(steps))]
    if backward:
        assert (steps[-1]["does"], steps[-1]["compute"]) == ("home", 0)
        assert dict(steps[2]["moves"])["dkv"] == 2 * compute({"ranks": ranks})["share"]  # fp32 beside bf16


@pytest.mark.parametrize("context", ["ring", "gather"])
@pytest.mark.parametrize("placement", PLACEMENT)
@pytest.mark.parametrize("causal", [True, False])
def test_pieces_cover_the_mask_once(context, placement, causal):
    inputs = {"context": context, "placement": placement, "causal": causal, "ranks": 4, "seq": 32}
    result, ranges = compute(inputs), TokenRanges(placement, 32, 4, causal)
    owner = {token: rank for rank in range(4) for part in ranges.ranges(rank) for token in part}
    found: Counter[tuple[int, int]] = Counter()
    for block in result["blocks"]:
        for q0, q1, k0, k1, triangle in block["pieces"]:
            pairs = [(q, k) for q in range(q0, q1) for k in range(k0, k1) if not triangle or k - k0 <= q - q0]
            assert all((owner[q], owner[k]) == (block["rank"], block["source"]) for q, k in pairs)
            found.update(pairs)
    assert found == Counter((q, k) for q in range(32) for k in range(32) if k <= q or not causal)
    assert result["work"]["pairs"] == [ranges.work(rank) for rank in range(4)]


def test_the_busiest_rank_and_the_time():
    contiguous, zigzag = (compute({"placement": kind}) for kind in PLACEMENT)
    assert zigzag["work"]["balance"] == 1
    assert contiguous["work"]["balance"] == pytest.approx(1.75, abs=1e-3)
    # A rank is busy for pairs x heads x 2 products of 2·head_dim FLOPs; here the messages hide.
    busy = TokenRanges("contiguous", 8192, 4).work(3) * 32 * 4 * 128 / (0.5 * 989e12)
    assert contiguous["seconds"] == pytest.approx(busy)
    assert contiguous["exposed"] == 0
    # Backward: five products for the two of forward.
    backward = compute({"placement": "contiguous", "backward": True})
    assert backward["compute"] == pytest.approx(2.5 * busy)
    assert [step["idle"] for step in contiguous["steps"]] == [[], [0], [0, 1], [0, 1, 2]]
    assert contiguous["rivals"][1] | {"context": "", "placement": ""} == {
        "context": "", "placement": "", "balance": 1, "held": zigzag["held"],
        **{key: zigzag[key] for key in ("seconds", "compute", "message", "exposed", "sent")},
    }  # fmt: skip


def test_messages_that_do_not_hide_show():
    result = compute({"bandwidth": 1, "seq": 2048})
    link = result["link"]["alpha"] + result["share"] / 1e9
    assert [step["message"] for step in result["steps"]] == pytest.approx([link] * 3 + [0])
    for step in result["steps"]:
        assert step["end"] == pytest.approx(step["start"] + max(step["compute"], step["message"]))
    assert result["seconds"] == pytest.approx(result["compute"] + result["exposed"])
    assert "a rank waits for keys" in result["answer"]
    for context in ("gather", "ulysses"):
        alone = compute({"context": context})
        assert alone["exposed"] == pytest.approx(alone["message"])
        assert "in which nobody computes" in alone["answer"]


@pytest.mark.parametrize(("backward", "messages"), [(False, (3, 1)), (True, (1, 3))])
def test_ulysses_exchanges_three_tensors_for_one(backward, messages):
    """To each other rank q, k and v, and back the output; backward its gradient first. A message takes a second."""
    setting = read({"context": "ulysses", "placement": "contiguous", "ranks": 4, "backward": backward})
    steps = steps_of(replace(setting, link=AlphaBeta(1.0, 0.0)))
    assert [step.message for step in steps] == [3 * messages[0], 0, 3 * messages[1]]


def test_padding_is_the_trainers():
    result = compute({"seq": 1001, "ranks": 3})
    assert (result["padded"], result["values"]["seq"]) == (Layout(cp=3).padded(1001), 1001)
    assert sum(end - first for mine in result["ranges"] for first, end in mine) == result["padded"]


@pytest.mark.parametrize(
    ("inputs", "field", "words"),
    [
        ({"ranks": 1}, "ranks", "ranks must be at least 2, got 1"),
        ({"ranks": 17}, "ranks", "ranks must be at most 16, got 17"),
        ({"ranks": 16, "context": "ulysses"}, "ranks", "ranks must divide kv_heads = 8 for Ulysses, got 16"),
        ({"seq": "long"}, "seq", "seq must be a number of tokens such as 8192 or 128k, got 'long'"),
        ({"seq": 8}, "seq", "seq must be from 32 to 4194304 tokens, got 8"),
        ({"context": "ulysses", "placement": "zigzag"}, "placement", "make it contiguous"),
        ({"placement": "striped"}, "placement", "unknown placement 'striped'"),
        ({"context": "rings"}, "context", "unknown context 'rings'"),
        ({"kv_heads": 5}, "kv_heads", "kv_heads must divide heads = 32, got 5"),
        ({"itemsize": 3}, "itemsize", "itemsize must be 2 or 4 bytes, got 3"),
        ({"bandwidth": 0}, "bandwidth", "bandwidth must be a number above 0"),
        ({"tflops": 10**6}, "tflops", "tflops must be from 0.001 to 10000 TFLOP/s"),
        ({"model": "deepseek-v3"}, "model", "unknown model 'deepseek-v3'"),
        ({"cluster": "h100"}, "cluster", "a cluster of it is h100-8"),
        ({"causal": 1}, "causal", "causal must be true or false, got 1"),
        ({"speed": 1}, "speed", "speed is not a setting of the ring-attention widget"),
    ],
)  # fmt: skip
def test_what_cannot_be_names_its_control(inputs, field, words):
    error = compute(inputs)["error"]
    assert error["field"] == field
    assert words in error["message"]


def test_tokens_as_people_write_them():
    for text, count in ((8192, 8192), ("8 192", 8192), ("128k", 131_072), ("1M", 2**20)):
        assert read_tokens(text) == count


def test_code_and_command_say_the_same(monkeypatch):
    runs = []
    monkeypatch.setattr(train, "_run", lambda args, shape, config: runs.append((shape, config)) or 0)
    for inputs in (
        {"placement": "contiguous"},
        {"heads": 6, "kv_heads": 2},
        {"context": "gather", "itemsize": 4},
    ):
        result = compute(inputs)
        made, counts = result["code"].split("\n")
        names: dict = {}
        exec(made, names)
        assert eval(counts, names) == result["work"]["pairs"]
        assert main(shlex.split(result["command"])[1:]) == 0
        shape, config = runs[-1]
        values = result["values"]
        assert (shape.heads, shape.n_kv_heads) == (values["heads"], values["kv_heads"])
        how = {name: values[name] for name in ("context", "placement")}
        assert config.layout.of_step() == Layout(cp=values["ranks"], **how)
        assert config.seq == values["seq"]
    assert compute({"causal": False})["command"] == ""  # nothing is trained without a mask
    assert compute({"model": "gpt2"})["command"] == ""  # 1024 learned positions


def test_every_model_works():
    for name in MODELS:
        result, shape = compute({"model": name, "ranks": 2}), PRESETS[name]
        assert result["values"]["heads"] == shape.heads
        assert result["share"] == 4096 * shape.n_kv_heads * 2 * shape.qk_dim * 2
