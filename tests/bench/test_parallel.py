"""``playbook bench parallel``: ours and torch's train alike, and the report says what was found."""

import json

import pytest
import torch

from playbook.bench.parallel import ROUNDS, Track, compared, report_parallel
from playbook.bench.peers import PEERS
from playbook.cli import main
from playbook.layout import Layout
from playbook.planning.memory import predict
from playbook.planning.sharding import traffic
from playbook.shapes import load

SHAPE = {
    "layers": 2,
    "hidden": 24,
    "heads": 3,
    "vocab": 61,
    "kv_heads": 1,
    "head_dim": 8,
    "ffn": 40,
    "max_seq": 32,
}
LLAMA = {
    "gated": True,
    "activation": "silu",
    "norm": "rmsnorm",
    "positions": "rotary",
    "bias": False,
    "tied": False,
}
PAIRS = [pair for turns in ROUNDS for pair in turns.pairs()]


def bench(shape: dict, *more: str) -> int:
    arguments = ["--model", json.dumps(shape), "--seq", "16", "--steps", "2", "--device", "cpu", *more]
    return main(["bench", "parallel", *arguments])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "folder" / "parallel.json"
    assert bench(SHAPE | LLAMA, "--ranks", "2", "--grad-acc", "2", "--record", str(file)) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_record_says_what_was_run_and_where(recorded):
    assert recorded["provenance"]["torch"] == torch.__version__
    assert (recorded["backend"], recorded["ranks"], recorded["threads_per_rank"]) == ("gloo", 2, 1)
    assert (recorded["micro_batch"], recorded["seq"], recorded["grad_acc"], recorded["steps"]) == (
        1,
        16,
        2,
        2,
    )
    assert recorded["parameters"] == load(SHAPE | LLAMA).num_parameters
    assert recorded["peers"].keys() == PEERS.keys()
    assert [(c["ours"], c["peer"]) for c in recorded["comparisons"]] == PAIRS


@pytest.mark.parametrize(("ours", "peer"), PAIRS)
def test_ours_and_the_peer_take_the_same_steps(recorded, ours, peer):
    row = next(c for c in recorded["comparisons"] if (c["ours"], c["peer"]) == (ours, peer))
    assert row["loss_difference"] < 1e-5
    assert row["norm_difference"] < 1e-4
    assert row["ratio"] == row["ours_s"] / row["peer_s"] > 0


def test_bytes_are_those_of_the_formulas(recorded):
    """From stage 1 on an all-reduced scalar comes on top, the squares of a norm: 4 bytes from each of two ranks."""
    sent = {c["ours"]: c["ours_sent"] for c in recorded["comparisons"]}
    shape = load(SHAPE | LLAMA)
    units = predict(shape, Layout(dp=2), seq=16, recipe="fp32", device="cpu").stages[0].counts.units
    stages = {"bucketed": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}
    for name, zero in stages.items():
        found = traffic(units, 2, zero, weight_bytes=4, gradient_bytes=4, grad_acc=2)
        assert sent[name] == found.total + (4 if zero else 0)
    assert sent["naive"] == sent["overlapped"] == sent["bucketed"]
    assert sent["ZeRO-3, kept"] < sent["ZeRO-3"]


def test_other_blocks_train_alike(tmp_path, capsys):
    """GPT-2's, with a tied head; its dropout is turned off."""
    assert bench(SHAPE | {"kv_heads": 3, "dropout": 0.1}, "--ranks", "3", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert all(c["loss_difference"] < 1e-5 and c["norm_difference"] < 1e-4 for c in result["comparisons"])


def test_a_step_is_as_slow_as_its_slowest_rank():
    ours = [Track([1.0, 5.0, 2.0], [8.0], [4.0], 10), Track([3.0, 1.0, 1.0], [8.0], [4.0], 11)]
    peer = [Track([4.0, 4.0, 4.0], [8.0], [5.0], 20), Track([1.0, 1.0, 8.0], [8.0], [5.0], 21)]
    row = compared(ours, peer)  # steps of 3, 5 and 2 seconds against 4, 4 and 8
    assert (row["ours_s"], row["peer_s"], row["ratio"]) == (3, 4, 0.75)
    assert row["turn_ratio_quartiles"] == [0.5, 0.75, 1.0]  # of 3/4, 5/4 and 2/8
    assert (row["ours_sent"], row["peer_sent"]) == (10, 20)
    assert row["loss_difference"] == 0
    assert row["norm_difference"] == pytest.approx(0.2)


def test_the_report_shows_every_pair_and_the_settings(recorded):
    report = report_parallel(recorded).splitlines()
    assert len(report) == 2 + len(PAIRS) + len(PEERS)
    assert "2 gloo ranks, 2 × 1 × 16 tokens on each; medians of 2 steps" in report[0]
    for line, (ours, peer) in zip(report[2:], PAIRS, strict=False):
        assert line.split(peer)[0].strip() == ours
    assert any("gradient_as_bucket_view=True" in line for line in report)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ranks", "1"], "ranks is 1, but must be at least 2"),
        (["--steps", "0"], "steps is 0, but must be at least 1"),
        (["--grad-acc", "0"], "grad_acc is 0, but must be at least 1"),
        (["--seq", "33"], "seq is 33, but this model has positions for at most max_seq=32 tokens"),
        (["--device", "tpu"], "device is 'tpu', but must be cpu or cuda"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(flags, message, capsys):
    assert bench(SHAPE | LLAMA, *flags) != 0
    assert message in capsys.readouterr().err
