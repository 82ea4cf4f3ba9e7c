"""``playbook bench pipeline``: our schedules and torch's compute the same, and what cannot be run is said at once."""

import json

import pytest
import torch

from playbook.cli import main
from playbook_book.bench.pipeline import PAIRS, SCHEDULES, report_pipeline

SHAPE = {
    "layers": 4, "hidden": 24, "heads": 2, "vocab": 61, "kv_heads": 2, "head_dim": 12, "ffn": 40, "max_seq": 32,
    "gated": True, "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False,
}  # fmt: skip


def bench(shape: dict, *more: str) -> int:
    arguments = [
        "--model",
        json.dumps(shape),
        "--seq",
        "16",
        "--steps",
        "1",
        "--launches",
        "2",
        "--ranks",
        "2",
    ]
    return main(["bench", "pipeline", *arguments, "--device", "cpu", *more])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "pipeline.json"
    assert bench(SHAPE, "--micro-batch", "2", "--record", str(file)) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def test_every_schedule_computes_what_torchs_does(recorded):
    assert [(c["ours"], c["peer"], c["limit"]) for c in recorded["comparisons"]] == [
        (pair.ours.name, pair.peer.name, pair.limit) for pair in PAIRS
    ]
    found = {row["ours"]: row["peer"] for row in recorded["comparisons"]}
    assert found == SCHEDULES | {"naive": "ScheduleGPipe"}
    for row in recorded["comparisons"]:
        assert row["alike"], row
        assert row["ratio"] == row["ours_s"] / row["peer_s"] > 0
        assert len(row["launch_ratios"]) == recorded["launches"] == 2
        assert row["met"] == (None if row["limit"] is None else row["ratio"] <= row["limit"])


def test_both_send_each_activation_and_each_gradient_once(recorded):
    message = (
        2 * 16 * 24 * 4
    )  # (micro_batch, seq, hidden) in fp32: rank 0 of two sends one each way for each hop
    loss = 4  # summed over the ranks, around a ring
    hops = {"interleaved": 3}  # F 0→1 and 2→3, B 2→1; a V has its middle hop inside a rank
    for row in recorded["comparisons"]:
        sent = 4 * message * hops.get(row["ours"], {"zb-v": 2, "dualpipev": 2}.get(row["ours"], 1)) + loss
        assert row["ours_sent"] == row["peer_sent"] == sent, row["ours"]


def test_the_record_and_the_table_say_what_was_run(recorded):
    assert recorded["provenance"]["torch"] == torch.__version__
    found = [
        recorded[key] for key in ("backend", "ranks", "layers", "micro_batch", "seq", "grad_acc", "steps")
    ]
    assert found == ["gloo", 2, 4, 2, 16, 4, 1]
    report = report_pipeline(recorded)
    assert (
        "2 gloo ranks, 4 micro-batches of 2 × 16 tokens; medians of 1 steps in each of 2 launches" in report
    )
    for row in recorded["comparisons"]:
        line = next(line for line in report.splitlines() if line.split()[:2] == [row["ours"], row["peer"]])
        assert line.endswith((" met", " missed")) == (row["limit"] is not None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ranks", "1"], "ranks is 1, but must be at least 2"),
        (["--layers", "3"], "layers is 3, but must be at least 4: two stages on each rank"),
        (["--grad-acc", "3"], "grad_acc is 3, but must be a multiple of the 2 ranks, and at least 4"),
        (["--only", "1f1b,gpipe"], "unknown schedule 'gpipe'"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--launches", "0"], "launches must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(flags, message, capsys):
    assert bench(SHAPE, *flags) != 0
    assert message in capsys.readouterr().err


def test_a_tied_model_is_refused(capsys):
    assert bench(SHAPE | {"tied": True}) != 0
    assert "tied is True, but torch's stages share no weights" in capsys.readouterr().err
