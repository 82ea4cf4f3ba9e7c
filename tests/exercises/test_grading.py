"""Grading: an answer that is missing, right, wrong in a known way, or no answer at all; and what is kept of it."""

import json

import pytest

from playbook.cli import main
from playbook.errors import ConfigError
from playbook_book.exercises import NotYet, check, exercises, grade, progress
from playbook_book.exercises.exercise import close_to


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state directory of the test's own: what a reader solved stays as it is."""
    monkeypatch.setattr("platformdirs.user_state_path", lambda name: tmp_path / name)
    return tmp_path / "playbook" / "exercises.json"


RIGHT = 2 * 7 * 124_439_808 / 8 * 4


def test_dots_and_unwritten_functions_are_no_answer_yet():
    def unwritten(loss_sum, count, add):
        raise NotImplementedError

    assert grade("data-parallel.bytes", ...).text == "no answer yet: put yours in place of the three dots"
    verdict = grade("data-parallel.scale", unwritten)  # raised in ranks
    assert not verdict.right
    assert verdict.text == "no answer yet: write the function in place of the line that raises"


def test_what_a_readers_function_raises_reaches_the_reader():
    def broken(loss_sum, count, add):
        return 1 / 0

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        grade("data-parallel.scale", broken)


def test_a_number_is_right_to_a_thousandth_or_gets_its_hint():
    close_to(1000.5, 1000)
    for given, text in (
        (2000, "twice"),
        (999_999, "999,999 is too large. Think"),
        (1, "1 is too small. Think"),
    ):
        with pytest.raises(NotYet, match=text):
            close_to(given, 1000, {2000: "twice"}, otherwise="Think again.")
    for given in ("1000", True, None):
        with pytest.raises(NotYet, match="the answer is a number, and this is"):
            close_to(given, 1000)
    with pytest.raises(NotYet, match="nan is too strange"):
        close_to(float("nan"), 1000)


def test_a_right_answer_is_recorded_once_and_a_solution_never(state, capsys):
    check("data-parallel.bytes", RIGHT, record=False)
    check("data-parallel.bytes", 1)
    assert not state.exists()
    check("data-parallel.bytes", RIGHT)
    first = state.read_text()
    assert list(json.loads(first)) == ["data-parallel.bytes"]
    check("data-parallel.bytes", RIGHT)
    assert state.read_text() == first
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines] == ["✓", "✗", "✓", "✓"]


def test_a_check_goes_on_where_nothing_can_be_kept(state, capsys):
    state.parent.mkdir()
    state.write_text("[]")
    check("data-parallel.bytes", RIGHT)
    out, err = capsys.readouterr()
    assert out.startswith("✓ data-parallel.bytes")
    assert err.startswith("(not recorded: ")
    assert state.read_text() == "[]"  # what a reader has there is not lost
    with pytest.raises(ConfigError, match="should hold the exercises that you solved"):
        progress.solved()


def test_the_command_lists_exercises_and_what_is_solved(capsys):
    progress.note("data-parallel.scale")
    assert main(["exercises", "data-parallel"]) == 0
    text = capsys.readouterr().out
    assert "✓ data-parallel.scale" in text
    assert "· data-parallel.bytes" in text
    assert text.strip().endswith(f"1 of {len(exercises('data-parallel'))} solved")
    assert main(["exercises", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["exercises"]
    assert [row["name"] for row in rows] == list(exercises())
    assert {row["name"] for row in rows if row["solved"]} == {"data-parallel.scale"}


def test_a_file_of_the_pages_and_what_is_kept_here_are_joined_both_ways(state, tmp_path, capsys):
    file = tmp_path / "playbook-exercises.json"
    file.write_text('{"zero.bytes": "2026-01-02", "zero.owned": "2026-03-04"}')
    state.parent.mkdir()
    state.write_text('{"zero.owned": "2026-02-03", "tensor.bytes": "2026-05-06"}')
    both = {"zero.owned": "2026-02-03", "tensor.bytes": "2026-05-06", "zero.bytes": "2026-01-02"}
    for new in ("1 solved exercises were new here, 1 in", "0 solved exercises were new here, 0 in"):
        assert main(["exercises", "zero", "--progress", str(file)]) == 0
        out, err = capsys.readouterr()
        assert new in err
        assert out.strip().endswith("2 of 3 solved")
        assert json.loads(file.read_text()) == json.loads(state.read_text()) == both
    fresh = tmp_path / "folder" / "new.json"
    assert main(["exercises", "--progress", str(fresh)]) == 0
    assert json.loads(fresh.read_text()) == both


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"zero.bytes": 3}', '{"zero.bytes": "today"}', '{"zero": "2026-01-02"}', "\xff", "{" * 9999],
)
def test_what_is_no_file_of_progress_changes_nothing(text, state, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text(text, encoding="latin-1")
    progress.note("zero.bytes")
    before = state.read_text()
    assert main(["exercises", "--progress", str(file)]) == 2
    assert "should hold the exercises that you solved, and cannot be read" in capsys.readouterr().err
    assert (file.read_text(encoding="latin-1"), state.read_text()) == (text, before)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["exercises", "data-paralel"],
            "unknown chapter with exercises 'data-paralel'; did you mean data-parallel",
        ),
    ],
)
def test_unknown_names_end_with_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"unknown exercise .data-parallel.byte."):
        grade("data-parallel.byte", 1)
