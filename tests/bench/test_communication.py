"""``playbook bench communication``: ours and torch's take the same steps, and send the bytes of the formulas."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from playbook import launch
from playbook.cli import main
from playbook.model.transformer import Transformer
from playbook.planning.communication import ring_bytes_sent
from playbook.shapes import load
from playbook_book.bench.communication import GROUPS, pairs, report_communication
from playbook_book.bench.contest import TOLERANCE

SHAPE = {"layers": 2, "hidden": 24, "heads": 3, "vocab": 61, "ffn": 40, "max_seq": 32}
RANK, PERIOD = 2, 3
PAIRS = pairs(RANK, PERIOD)
SETTINGS = {pair.peer.name: pair.peer.settings for pair in PAIRS.values()}


def bench(shape: dict, *more: str) -> int:
    arguments = ["--model", json.dumps(shape), "--seq", "16", "--steps", "3", "--device", "cpu"]
    sizes = ["--rank", str(RANK), "--period", str(PERIOD), "--launches", "1"]
    return main(["bench", "communication", *arguments, *sizes, *more])


#: What ranks gave back, by group and how many they were.
GIVEN: dict[tuple[str, int], launch.Ranks] = {}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "folder" / "communication.json"
    run = launch.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            launch, "run", lambda *a, **b: GIVEN.setdefault((a[1][0].name, b["ranks"]), run(*a, **b))
        )
        assert bench(SHAPE, "--ranks", "2,3", "--record", str(file)) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def rows(result: dict, group: str | None = None) -> list[dict]:
    return [c for g in result["groups"] if group in (None, g["name"]) for c in g["comparisons"]]


def test_the_record_says_what_was_run_and_where(recorded):
    assert recorded["provenance"]["torch"] == torch.__version__
    assert (recorded["backend"], recorded["threads_per_rank"], recorded["steps"]) == ("gloo", 1, 3)
    assert (recorded["rank"], recorded["period"], recorded["peers"]) == (RANK, PERIOD, SETTINGS)
    runs = [(g["ranks"], g["name"], g["seq"], g["grad_acc"]) for g in recorded["groups"]]
    names = [("powersgd", 16, 1), ("local", 16, PERIOD)]
    assert runs == [(ranks, *rest) for ranks in (2, 3) for rest in names]
    for group in recorded["groups"]:
        (row,) = group["comparisons"]
        pair = PAIRS[group["name"]]
        assert (row["ours"], row["peer"], row["limit"]) == (pair.ours.name, pair.peer.name, pair.limit)


def test_ours_and_the_peer_take_the_same_steps(recorded):
    """Not only the first, in which all weights are the same still: the loss of a later one is another."""
    for row in rows(recorded):
        assert max(row["loss_difference"], row["norm_difference"]) < TOLERANCE, row
        assert row["ratio"] == row["ours_s"] / row["peer_s"] == row["launch_ratios"][0] > 0
        assert row["alike"]
        assert row["met"] == (row["ratio"] <= row["limit"] and row["sent_ratio"] <= row["limit"])


def test_bytes_are_those_of_factors_and_of_one_average_in_a_round(recorded):
    parameters = [p.shape for p in Transformer(load(SHAPE)).parameters()]
    low = [s for s in parameters if len(s) == 2 and RANK * sum(s) < s.numel()]
    whole = sum(s.numel() for s in parameters if s not in low)
    assert low
    first, second = (RANK * sum(s[i] for s in low) for i in (0, 1))
    for group in recorded["groups"]:
        (row,) = group["comparisons"]

        def sent(elements: int, ranks: int = group["ranks"]) -> int:
            return ring_bytes_sent("all_reduce", elements, 4, ranks, 0)

        if group["name"] == "local":
            total = sum(s.numel() for s in parameters)
            assert row["ours_sent"] == row["peer_sent"] == sent(total)
        else:
            extra = row["ours_sent"] - sent(first + whole) - sent(second)
            assert 0 <= extra <= 2 * 4  # the norm of gradients, if ranks agree on it
            assert row["peer_sent"] == sent(whole) + sent(first) + sent(second)


def test_the_report_shows_every_pair_and_the_verdicts(recorded):
    report = report_communication(recorded)
    assert "powersgd: PowerSGD of rank 2 beside torch's hook of DDP" in report
    assert "local: local steps beside torch's post-local SGD: rounds of 3 steps" in report
    assert f"3 gloo ranks, {PERIOD} × 1 × 16 tokens on each; medians of 3 steps" in report
    assert report.count(" met") + report.count(" missed") == 4
    assert all(f"\n{name}: {text}" in report for name, text in SETTINGS.items())
    assert "ours sends at most 1.0" in report


def test_some_groups_alone_and_what_is_wrong(recorded, capsys, monkeypatch):
    wrong = json.loads(json.dumps(recorded))
    rows(wrong, "local")[0].update(alike=False, met=False)
    assert "other steps than the peer's" in report_communication(wrong)
    monkeypatch.setattr(launch, "run", lambda *a, **b: GIVEN[a[1][0].name, b["ranks"]])
    assert bench(SHAPE, "--ranks", "2", "--only", "local", "--launches", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [(c["ours"], len(c["launch_ratios"])) for c in rows(result)] == [("local steps", 2)]
    assert list(GROUPS) == ["powersgd", "local"]


def test_a_ratio_of_bytes_meets_the_limit_too(recorded, monkeypatch, capsys):
    """Times of the same ranks, of whom ours sends twice as much."""
    (((tracks,),), *_) = GIVEN["local", 2].values
    ours = dataclasses.replace(tracks["local steps"], seconds=[1e-9] * 3, sent=2 * tracks["local steps"].sent)
    found = SimpleNamespace(values=[[[tracks | {"local steps": ours}]]] * 2)
    monkeypatch.setattr(launch, "run", lambda *a, **b: found)
    assert bench(SHAPE, "--ranks", "2", "--only", "local", "--json") == 0
    (row,) = rows(json.loads(capsys.readouterr().out))
    assert row["ratio"] < row["limit"] < row["sent_ratio"] == 2
    assert row["alike"]
    assert not row["met"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--rank", "0"], "rank must be at least 1, got 0"),
        (["--period", "0"], "period must be at least 1, got 0"),
        (["--seq", "33"], "seq is 33, but this model has positions for at most max_seq=32 tokens"),
        (["--ranks", "1,2"], "ranks is 1, but must be at least 2"),
        (["--ranks", "some"], "ranks must be numbers"),
        (["--only", "locals"], "unknown group 'locals'; did you mean local?"),
        (["--device", "tpu"], "device is 'tpu', but must be cpu or cuda"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(flags, message, capsys):
    assert bench(SHAPE, *flags) != 0
    assert message in capsys.readouterr().err
