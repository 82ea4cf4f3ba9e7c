"""``playbook bench final-losses``: methods that send less end where all-reduce ends, with an eighth of its bytes.

All begin with the same steps of whole gradients. Here, of so short a run, these are many, so that bytes are those of the
steps after; from the very first step on none of the methods keeps up.
"""

from __future__ import annotations

import json

import pytest

from playbook.cli import main
from playbook.planning.communication import ring_bytes_sent
from playbook.shapes import load
from playbook_book.bench.final_losses import report_final_losses

SHAPE = '{"name":"one layer","layers":1,"hidden":32,"heads":4,"vocab":256,"max_seq":64,"dropout":0.0}'
START, STEPS, RANKS = 48, 84, 4
METHODS = [
    "local:H=9", "slowmo:H=9,momentum=0.3", "diloco:H=9,lr=0.9,momentum=0.3", "gossip:one-peer-exp", "powersgd:r=2",
    "topk:0.1",
]  # fmt: skip


def bench(*more: str) -> int:
    return main(["bench", "final-losses", "--model", SHAPE, "--seq", "16", "--global-batch", "32", *more])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "losses.json"
    run = ["--lr", "0.02", "--ranks", str(RANKS), "--steps", str(STEPS), "--start", str(START)]
    methods = [flag for how in METHODS for flag in ("--method", how)]
    assert bench(*run, *methods, "--record", str(file)) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def test_final_losses_are_those_of_all_reduce_with_an_eighth_of_the_bytes(recorded, record_property):
    (group,) = recorded["groups"]
    whole, *others = group["rows"]
    assert [row["method"] for row in others] == METHODS
    step = ring_bytes_sent("all_reduce", load(SHAPE).num_parameters, 4, RANKS, 0)
    assert (group["sent_in_start"], whole["sent"]) == (START * step, (STEPS - START) * step)
    fewer = {row["method"]: whole["sent"] / row["sent"] for row in others}
    told = {row["method"]: f"{row['loss']:.3f} ({fewer[row['method']]:.1f}×)" for row in others}
    record_property("measured", f"all-reduce {whole['loss']:.3f}, {told}")
    assert group["same_on_all_ranks"]
    assert group["loss_after_start"] - whole["loss"] > 0.1  # there was something to learn
    for row in others:
        assert row["loss"] < whole["loss"] + 0.05, row
    assert sum(ratio >= 8 for ratio in fewer.values()) >= 3, fewer


def test_the_report_has_a_line_for_each(recorded):
    report = report_final_losses(recorded)
    whole, *others = recorded["groups"][0]["rows"]
    for row in others:
        (line,) = [line.split() for line in report.splitlines() if line.split()[:1] == [row["method"]]]
        assert line[1:3] == [f"{row['loss']:.3f}", f"{row['loss'] - whole['loss']:+.3f}"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--start", "5", "--steps", "5"], "start is 5, but must be below steps=5"),
        (["--ranks", "3"], "global_batch is 32, but must be"),
        (["--ranks", "1"], "the layout has one replica"),
        (["--method", "telepathy"], "data_parallel must be one of"),
        (["--ranks", "3", "--global-batch", "6", "--method", "gossip:hypercube"], "hypercube"),
        (["--model", SHAPE.replace("256", "17")], "vocab is 17, but the text has tokens from 0 to 255"),
        (["--device", "cuda"], "device is 'cuda', but"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys, flags, said):
    assert bench(*flags) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
