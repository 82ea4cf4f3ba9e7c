"""The schedule visualizer's function: what it draws is what the simulation gives; schedules by hand; real runs."""

from __future__ import annotations

import json
import shlex

import pytest
from playbook_widgets.compute.building import Board
from playbook_widgets.compute.published_pipelines import MEASURED
from playbook_widgets.compute.visualizer import compute
from playbook_widgets.compute.visualizer_setting import read

from playbook.cli import main
from playbook.schedules.catalogue import NAMES, make
from playbook.schedules.timeline import Times, simulate

LETTERS = {"F": "F", "B": "B", "W": "W", "X": "BW"}


def first(inputs: dict) -> dict:
    result = compute(inputs)
    assert "error" not in result, result["error"]
    return result["sides"][0]


def actions(side: dict) -> list[list[dict]]:
    """What ``--json`` prints of a drawn timeline."""
    s = side["slots"]
    return [
        [
            {
                "op": LETTERS[s["op"][i]],
                **{key: s[key][i] for key in ("stage", "microbatch", "start", "end")},
            }
            for i in range(*side["offsets"][rank : rank + 2])
        ]
        for rank in range(side["ranks"])
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_what_is_drawn(name, capsys):
    """Times by slice of the model, messages, chunks: the command line has them by stage."""
    inputs = {
        "schedule": name,
        "f": "1/1/1/2",
        "w": 0.5,
        "comm": 0.25,
        "transfer": 0.125,
        "overlap": name != "1f1b",
    }
    result = compute(inputs)
    side = result["sides"][0]
    assert main([*shlex.split(result["command"])[1:], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ranks"] == actions(side)
    assert {key: printed[key] for key in side["numbers"]} == pytest.approx(side["numbers"])
    assert [peak * side["full"] for peak in printed["peak_in_flight"]] == pytest.approx(side["peaks"])
    waits = side["ranks"] * side["numbers"]["makespan"] - sum(
        e - s
        for s, e in {
            (r, a["start"]): (a["start"], a["end"]) for r, rank in enumerate(printed["ranks"]) for a in rank
        }.values()
    )
    assert sum(side["causes"].values()) == pytest.approx(waits)


def test_paths_and_gaps_lead_to_slots():
    side = first({"schedule": "zb-v", "stages": 5, "microbatches": 12, "comm": 0.3})
    ends, idle = side["slots"]["end"], side["idle"]
    assert ends[side["path"][-1]] == pytest.approx(side["numbers"]["makespan"])
    assert side["path_work"] < side["numbers"]["makespan"]  # messages lie between
    for rank, end, following, text in zip(idle["rank"], idle["end"], idle["next"], idle["text"], strict=True):
        assert text.startswith(f"rank {rank} ")
        assert following < 0 or side["slots"]["start"][following] >= end - 1e-9


def test_measured_presets_are_the_published_ones():
    row = MEASURED[3]
    result = compute({"schedule": "1f1b", "times": "6.2b-8x24", "stages": 8, "microbatches": 24})
    assert result["unit"] == "ms"
    assert result["sides"][0]["numbers"]["bubble_fraction_span"] == pytest.approx(row.rates["1f1b"], abs=5e-4)
    assert result["values"]["rest"] == round(row.rest, 4)


def test_two_schedules_do_the_same_work_and_the_sentence_compares_them():
    result = compute({"schedule": "1f1b", "compare": "zb-v", "limit": 3})
    assert [side["numbers"]["ideal"] for side in result["sides"]] == [24, 24]
    assert "too much for rank 0. ZB-V takes 25.5, 22.7% less, and keeps as much." in result["answer"]


def test_the_largest_is_light():
    result = compute({"schedule": "zb-h2", "compare": "1f1b", "stages": 32, "microbatches": 256, "comm": 0.1})
    assert len(json.dumps(result)) < 2_000_000
    assert result["sides"][1]["idle"]["text"] is None  # 16 000 gaps: the page says them itself


@pytest.mark.parametrize(
    ("inputs", "field", "message"),
    [
        ({"stages": 33}, "stages", "stages must be at most 32, got 33"),
        (
            {"schedule": "zb-h2", "microbatches": 3},
            "microbatches",
            "microbatches is 3, but zb-h2 on 4 stages",
        ),
        ({"schedule": "2f2b"}, "schedule", "unknown schedule '2f2b'"),
        ({"compare": "2f2b"}, "compare", "unknown compare '2f2b'"),
        ({"f": "1/2/3"}, "f", "f has 3 times, but the model is cut into 4 stages"),
        ({"w": "much"}, "w", "w must be a number, or one by stage as in 1/1/2, of at least 0, got 'much'"),
        ({"rest": 1.5}, "rest", "rest must be a number from 0 to 1, got 1.5"),
        ({"speed": 1}, "speed", "speed is not a setting of the schedule visualizer"),
        ({"own": "0Q1"}, "own", "own has '0Q1', but an action is written 0F3"),
        (
            {"own": "1F0"},
            "own",
            "own: F of micro-batch 0 on stage 1 needs F of micro-batch 0 on stage 0, which rank 0 has",
        ),
        ({"trace": {"ranks": [[{"start": 0}]]}}, "trace", "trace is {"),
    ],
)
def test_refusals_name_the_control(inputs, field, message):
    error = compute(inputs)["error"]
    assert error["field"] == field
    assert error["message"].startswith(message)


# --- by hand


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipe", "interleaved"])
def test_what_is_rebuilt_by_hand_is_known(name):
    """In the order of time, every action can be placed; from a text, too."""
    plan = make(name, 2, 4, 2 if name == "interleaved" else 1)
    slots = [(s.start, s.end, rank, s.action) for rank, line in enumerate(simulate(plan).ranks) for s in line]
    board = Board(plan)
    for _, _, rank, action in sorted(slots, key=lambda slot: slot[:3]):
        assert not board.refusal(rank, action)
        board.place(rank, action)
    board = compute({"schedule": name, "stages": 2, "microbatches": 4, "own": board.text()})["board"]
    assert board["complete"]
    assert name in board["known"].split(" or ")
    assert not any(board["ranks"])


def test_a_click_takes_what_can_start_first_and_ends_in_a_whole_schedule():
    """Rank after rank, as long as something is possible: no dead end, and never more than fits."""
    text, found = "", compute({"own": "", "stages": 3, "microbatches": 4, "limit": 2})
    for _ in range(3 * 4 * 2):
        word = next(best for _, best in found["board"]["best"] if best)
        text = f"{text}.{word}".strip(".")
        found = compute({"own": text, "stages": 3, "microbatches": 4, "limit": 2})
    assert found["board"]["complete"]
    assert max(found["sides"][0]["peaks"]) <= 2


def test_too_much_memory_is_refused_by_hand():
    assert (
        compute({"own": "0F0.0F1", "schedule": "zb-1p", "stages": 1})["error"]["field"] == "own"
    )  # it has a limit
    ranks = compute({"own": "0F0", "limit": 1})["board"]["ranks"]
    reasons = {word: refused for word, *_, refused in ranks[0]}
    assert reasons["0F1"].endswith(
        "keep the activations of 2 micro-batches, but 1 fit: something must go backward first"
    )


# --- real runs


def test_a_run_lies_below_what_its_own_times_predict():
    """Three tenths late on one rank, and everything from 100 s on: the prediction does not know of it."""
    side = first({"schedule": "zb-h1", "f": 1.5, "comm": 0})
    late = [
        [{**a, "start": a["start"] + 100.3, "end": a["end"] + 100.3} for a in rank] for rank in actions(side)
    ]
    late[0] = [{**a, "start": a["start"] - 0.3, "end": a["end"] - 0.3} for a in late[0]]
    trace = {"name": "zb-h1", "unit": "s", "ranks": late}
    result = compute({"trace": trace, "path": True})
    predicted, measured = (s["numbers"]["makespan"] for s in result["sides"])
    assert (predicted, measured) == pytest.approx(
        (side["numbers"]["makespan"], side["numbers"]["makespan"] + 0.3)
    )
    assert [s["label"] for s in result["sides"]] == ["Predicted", "Measured"]
    assert (result["unit"], result["values"]["f"], result["command"]) == ("s", 1.5, "")
    assert f", {0.3 / measured:.1%} less." in result["answer"]


def test_a_schedule_without_times_is_timed():
    data = make("interleaved", 2, 4, 2).to_json()
    result = compute({"trace": data, "w": 0.5})
    assert len(result["sides"]) == 1
    assert (
        result["sides"][0]["numbers"]["makespan"]
        == simulate(make("interleaved", 2, 4, 2), Times(0.5, 0.5, 0.25)).makespan
    )
    assert result["answer"].startswith("It is interleaved.")
    del data["ranks"][0][-1]
    assert "is missing: rank 0 must do it" in compute({"trace": data})["error"]["message"]


def test_reading_gives_the_cap_that_zero_bubble_schedules_keep_to():
    assert read({"schedule": "zb-2p", "stages": 6}).cap == 12
    assert read({"schedule": "zb-1p", "limit": "9"}).cap == 9
