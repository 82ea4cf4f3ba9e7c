"""A log whose writer was killed in the middle of a line goes on after the last whole one."""

from __future__ import annotations

import json

import pytest

from playbook.launch.logs import end_json_log, open_log, read_json_log

WHOLE = ['{"event": "start"}', '{"event": "step", "step": 0, "loss": 5.5}']


@pytest.mark.parametrize("torn", ["", '{"event": "st', '{"event": "step", "step": 1, "loss": 5.4}'])
def test_what_comes_next_is_no_part_of_a_line_that_is_not_whole(tmp_path, torn):
    log = tmp_path / "a.jsonl"
    log.write_text("".join(f"{line}\n" for line in WHOLE) + torn)
    end_json_log(log, "failed")
    more = open_log(log, more=True)
    more.start({})
    more.step({"step": 1, "loss": 5.25})
    more.close("finished")
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == [
        "start", "step", "failed", "start", "step", "finished"
    ]  # fmt: skip
    assert [record["loss"] for record in read_json_log(log)] == [5.5, 5.25]


def test_a_table_goes_on_after_its_last_whole_row(tmp_path):
    log = tmp_path / "a.csv"
    log.write_text("step,loss\n0,5.5\n1,5.")
    more = open_log(log, more=True)
    more.step({"step": 1, "loss": 5.25})
    more.close("finished")
    assert log.read_text().split() == ["step,loss", "0,5.5", "1,5.25"]
