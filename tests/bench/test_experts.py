"""``playbook bench experts``: all who are compared compute the same, and send what they should."""

import json

import pytest
import torch

from playbook import launch
from playbook.cli import main
from playbook_book.bench.contest import TOLERANCE, report_groups, ways
from playbook_book.bench.experts import GROUPS, HIDDEN, LAYERS, LAYOUTS, ON_RANKS, PAIRS

pytest.importorskip("transformers")
SHAPE = {
    "layers": 2, "hidden": 24, "heads": 4, "vocab": 61, "ffn": 40, "max_seq": 32, "gated": True, "activation": "silu",
    "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False,
    "moe": {"experts": 8, "top_k": 2, "ffn": 20, "balance_loss": 0.01},
}  # fmt: skip
SEQ = 16
#: What is asked of each peer, by name.
SETTINGS = {one.name: one.settings for pairs in PAIRS.values() for one in ways(pairs) if one.settings}


def bench(shape: dict, *more: str) -> int:
    arguments = ["--model", json.dumps(shape), "--seq", str(SEQ), "--tokens", "12", "--steps", "1"]
    return main(["bench", "experts", *arguments, "--launches", "1", "--device", "cpu", *more])


#: What ranks gave back, by group.
GIVEN: dict[str, launch.Ranks] = {}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "folder" / "experts.json"
    run = launch.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run", lambda *a, **b: GIVEN.setdefault(a[1][0].name, run(*a, **b)))
        assert bench(SHAPE, "--record", str(file)) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def rows(result: dict, group: str | None = None) -> list[dict]:
    return [c for g in result["groups"] if group in (None, g["name"]) for c in g["comparisons"]]


def test_the_record_says_what_was_run_and_where(recorded):
    assert recorded["provenance"]["torch"] == torch.__version__
    assert (recorded["backend"], recorded["threads_per_rank"], recorded["steps"]) == ("gloo", 1, 1)
    assert recorded["peers"] == SETTINGS
    runs = [(g["name"], g["ranks"], g["micro_batch"], g["seq"]) for g in recorded["groups"]]
    assert runs == [("layer", 1, 1, 12)] * len(LAYERS) + [("dispatch", 4, 1, SEQ), ("layout", 4, 4, SEQ)]
    for group in recorded["groups"]:
        found = [(c["ours"], c["peer"], c["limit"]) for c in group["comparisons"]]
        assert found == [(pair.ours.name, pair.peer.name, pair.limit) for pair in PAIRS[group["name"]]]
    sizes = LAYERS[0]
    weights = sizes.experts * HIDDEN * (1 + 3 * sizes.ffn)
    assert recorded["groups"][0]["parameters"] == weights


def test_ours_and_the_peer_compute_the_same(recorded):
    for row in rows(recorded):
        assert max(row["loss_difference"], row["norm_difference"]) < TOLERANCE, row
        assert row["ratio"] == row["ours_s"] / row["peer_s"] == row["launch_ratios"][0] > 0
        assert row["alike"]
        assert row["met"] == (None if row["limit"] is None else row["ratio"] <= row["limit"])


def test_bytes_are_those_that_dispatch_needs(recorded):
    """Gathered: tokens there and results back, their gradients the other way; rows to their experts are fewer."""
    assert all(row["ours_sent"] == row["peer_sent"] == 0 for row in rows(recorded, "layer"))
    rows_sent, two_steps = rows(recorded, "dispatch")
    row, others, k = 4 * HIDDEN, 3, ON_RANKS.top_k
    gathered = 4 * row + 2 * 4 * k + 8 * k  # weights go there, and their gradients back; choices are int64
    assert rows_sent["peer_sent"] == others * SEQ * gathered
    counts = others * ON_RANKS.experts // 4 * 8
    there_and_back = rows_sent["ours_sent"] - counts
    assert there_and_back % (2 * row) == 0  # each message, and its gradient
    assert 0 < there_and_back < rows_sent["peer_sent"]
    assert two_steps["peer_sent"] == rows_sent["ours_sent"]


def test_the_report_shows_every_pair_and_the_verdicts(recorded):
    report = report_groups(recorded)
    assert "  top-2 of 16 experts of 256 × 172, 2,117,632 parameters, 4 gloo ranks" in report
    assert "1 gloo ranks, 1 × 1 × 12 tokens on each; medians of 1 steps" in report
    assert f"4 gloo ranks, 1 × 4 × {SEQ} tokens together" in report
    assert report.endswith("1 launches of so many steps; ratios of single ones are up to 0.00 apart")
    assert report.count(" met") + report.count(" missed") == 2 * len(LAYERS) + 1
    assert all(f"\n{name}: {text}" in report for name, text in SETTINGS.items())


def test_some_groups_alone_and_what_is_wrong(recorded, capsys, monkeypatch):
    wrong = json.loads(json.dumps(recorded))
    rows(wrong, "dispatch")[0].update(alike=False, met=False)
    assert "other steps than the peer's" in report_groups(wrong)
    monkeypatch.setattr(launch, "run", lambda *a, **b: GIVEN[a[1][0].name])
    assert bench(SHAPE, "--only", "layout", "--launches", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [(c["ours"], c["peer"], len(c["launch_ratios"])) for c in rows(result)] == [(*LAYOUTS, 2)]
    assert list(GROUPS) == ["layer", "dispatch", "layout"]


@pytest.mark.parametrize(
    ("shape", "flags", "message"),
    [
        ({}, ["--steps", "0"], "steps must be at least 1, got 0"),
        ({}, ["--launches", "0"], "launches must be at least 1, got 0"),
        ({}, ["--seq", "33"], "seq is 33, but this model has positions for at most max_seq=32 tokens"),
        ({}, ["--tokens", "0"], "max_seq"),
        ({}, ["--tokens", "some"], "tokens must be numbers"),
        ({}, ["--only", "layers"], "unknown group 'layers'; did you mean layer or layout?"),
        ({}, ["--device", "tpu"], "device is 'tpu', but must be cpu or cuda"),
        ({"moe": None}, [], "this model has no experts"),
        ({"moe": SHAPE["moe"] | {"experts": 6}}, [], "ep must divide moe.experts = 6"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(shape, flags, message, capsys):
    assert bench(SHAPE | shape, *flags) != 0
    assert message in capsys.readouterr().err
