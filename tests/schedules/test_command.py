"""``playbook schedule``: the object of --json, the text, and one sentence for every mistake."""

from __future__ import annotations

import json

import pytest
from counted import calls

from playbook.cli import main
from playbook.schedules.catalogue import make
from playbook.schedules.timeline import simulate


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["schedule", *words]) == 0
    return capsys.readouterr().out


def test_json(capsys):
    flags = ("zb-h1", "--stages", "4", "--microbatches", "8", "--times", "f=1,b=1,w=1,comm=0", "--json")
    found = json.loads(said(capsys, *flags))
    numbers = ("makespan", "span", "bubble_fraction", "bubble_fraction_span", "bubble_ratio")
    assert [found[key] for key in numbers] == [27, 27, 3 / 27, 3 / 27, 3 / 24]
    assert found["peak_in_flight"] == [4, 4, 4, 4]
    assert found["ranks"][0][0] == {"op": "F", "stage": 0, "microbatch": 0, "start": 0, "end": 1}
    assert len(found["ranks"]) == 4


@pytest.mark.parametrize("name", ["dualpipe", "zb-v", "interleaved"])
def test_what_json_prints_can_be_read_again(capsys, tmp_path, name):
    flags = ["--vpp", "2"] if name == "interleaved" else []
    first = said(capsys, name, *flags, "--times", "comm=0.5", "--json")
    file = tmp_path / "mine.json"
    file.write_text(first)
    assert json.loads(said(capsys, str(file), "--times", "comm=0.5", "--json")) == json.loads(first)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "zb-h2", "dualpipe", "dualpipev"])
def test_the_bubble_on_paper_is_the_simulated_one(capsys, name):
    flags = ["--vpp", "2"] if name == "interleaved" else []
    text = said(capsys, name, *flags, "--times", "f=2,b=2,w=1")
    told, simulated = text.partition(", on paper: ")[2].split("\n")[0].split("; simulated: ")
    assert told.split(" = ")[1] == simulated


def test_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = said(capsys, "1f1b", "--stages", "2", "--microbatches", "2", "--why").splitlines()
    assert text[:7] == [
        "1f1b: 2 ranks, 2 micro-batches",
        "rank 0 F0 F1 ······BW0-- ···BW1--",
        "rank 1 ···F0 BW0-- F1 BW1--",
        "makespan 9, longest span of a rank 9, work of the busiest 6",
        "bubble 33.33% of the makespan; if steps overlap 33.33% of the span",
        "bubble of the makespan, on paper: (p − 1)·(f + b + w) = 3; simulated: 3",
        "ranks wait, all together: 1 fill (the first micro-batch has not come yet), 3 dependency (another rank is not "
        "done), 2 drain (it is done, others are not)",
    ]
    assert text[7] == "activations of a stage and micro-batch, at most at once, by rank: 2, 1"
    assert "rank 0 waits with BW of micro-batch 0 on stage 0 for BW of micro-batch 0 on stage 1" in text[8]
    assert "the step hangs on these 6 actions:" in text


def test_a_picture_is_no_wider_for_an_action_that_is_far_longer(capsys, monkeypatch):
    """Nor is it ever that long while it is made: it would not fit into memory."""
    monkeypatch.setenv("COLUMNS", "60")
    flags = ("--stages", "2", "--microbatches", "2", "--times", "f=1,b=1e15,w=1")
    picture = said(capsys, "zb-h1", *flags).splitlines()[1:3]
    assert [len(line) for line in picture] == [60, 60]
    assert all(line.endswith("…") for line in picture)


def test_times_by_stage_and_messages(capsys):
    times = "f=1/1/2/1,b=1.5,w=0.5,comm=0.1,transfer=0.2,overlap=no"
    found = json.loads(said(capsys, "1f1b", "--times", times, "--json", "--why"))
    assert found["ranks"][2][0]["end"] - found["ranks"][2][0]["start"] == 2
    assert found["ranks"][1][0]["start"] == pytest.approx(1.3)
    assert found["idles"][0]["cause"] == "sending"


def test_exact(capsys):
    pytest.importorskip("scipy")
    flags = (
        "--stages",
        "4",
        "--microbatches",
        "12",
        "--limit",
        "6",
        "--rest",
        "0.5",
        "--times",
        "f=2,b=2,w=1",
    )
    found = json.loads(said(capsys, "exact", *flags, "--json"))
    told = found["solver"]
    assert (told["time"], told["heuristic"], told["optimal"], told["better"]) == (62, 63, True, True)
    assert found["span"] == 62
    text = said(capsys, "zb-exact", "--stages", "4", "--microbatches", "8", "--limit", "8")
    assert "solver: the heuristic's schedule is as short as work and messages allow" in text


@pytest.mark.parametrize("name", ["zb-v", "interleaved"])  # with the most actions
def test_the_largest_asks_little_of_python(capsys, name):
    """A quarter of a second where nothing else runs: at most that of half as many micro-batches, twice."""
    flags = [name, "--stages", "32", *(["--vpp", "2"] if name == "interleaved" else [])]
    half, whole = (calls(said, capsys, *flags, "--microbatches", str(m)) for m in (128, 256))
    assert whole < 1_200_000
    assert whole < 2 * half
    assert said(capsys, *flags, "--microbatches", "256").startswith(f"{name}: 32 ranks")


DEADLOCK = {
    "ranks": [
        [{"op": op, "stage": 0, "microbatch": m} for m in (0, 1) for op in ("F", "BW")],
        [{"op": op, "stage": 1, "microbatch": m} for op, m in (("F", 1), ("F", 0), ("BW", 0), ("BW", 1))],
    ]
}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["1f2b"], "unknown schedule '1f2b'; did you mean 1f1b"),
        (
            ["zb-h2", "--microbatches", "3"],
            "microbatches is 3, but zb-h2 on 4 stages fills its pipeline with 7",
        ),
        (["1f1b", "--limit", "3"], "rank 0 keeps the activations of 4 micro-batches with F of micro-batch 3"),
        (
            ["interleaved", "--vpp", "2", "--limit", "5"],
            "rank 0 keeps the activations of 11 passes through one of its stages",
        ),
        (["zb-1p", "--limit", "x"], "limit is 'x', but must be a number of at least 0, or one by rank"),
        (["zb-1p", "--rest", "2"], "rest is 2, but must be from 0 to 1"),
        (["1f1b", "--times", "f=-1"], "times has 'f=-1', but a time is a number from 0 to 1e15"),
        (["1f1b", "--times", "f=1/2"], "f has 2 times, but the schedule has 4 stages"),
        (
            ["1f1b", "--times", "g=1"],
            "times has 'g=1', but must be f=, b=, w=, comm=, fb=, transfer= or overlap=",
        ),
        (["1f1b", "--times", "overlap=maybe"], "times has 'overlap=maybe', but overlap must be yes or no"),
        *(
            (
                words,
                f"and vpp=1 make at least {actions:,} actions, but at most 2,000,000 are allowed",
            )
            for words, actions in (
                (["1f1b", "--stages", "2147483647"], 2 * 2147483647 * 2 * 2147483647),
                (["1f1b", "--microbatches", "2147483647"], 2 * 4 * 2147483647),
                (["exact", "--microbatches", "2147483647"], 2 * 4 * 2147483647),
                (["zb-1p", "--stages", "1000", "--microbatches", "1001"], 2_002_000),
            )
        ),
        (
            ["interleaved", "--vpp", "10000000"],
            "stages=4, microbatches=8 and vpp=10000000 make at least 640,000,000 actions",
        ),
        (["exact", "--stages", "0"], "stages must be at least 1, got 0"),
        (["exact", "--time-limit", "0"], "time_limit is 0, but must be a finite number of seconds above 0"),
        (["missing.json"], "missing.json is no schedule: "),
        (["mine.json", "--stages", "2"], "stages is 2, but mine.json says it already: leave it out"),
        (
            ["mine.json"],
            "the schedule cannot go on: rank 0 waits with BW of micro-batch 0 on stage 0 for B of micro-batch 0",
        ),
    ],
)
def test_one_sentence_for_every_mistake(capsys, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps(DEADLOCK))
    assert main(["schedule", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_a_run_drawn_over_its_prediction_has_the_same_actions(capsys):
    """What --json calls ranks is what a measured trace calls ranks."""
    found = json.loads(said(capsys, "1f1b", "--json"))
    line = simulate(make("1f1b", 4, 8))
    assert [[a["start"] for a in r] for r in found["ranks"]] == [[s.start for s in r] for r in line.ranks]
