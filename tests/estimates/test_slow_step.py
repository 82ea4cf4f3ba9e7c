"""The recipe for a slow step: its rows in order, with what the repository's records say beside them."""

import re

from playbook.bench import records
from playbook_book import slow_step


def test_rows_are_numbered_and_fit_the_header():
    rows = slow_step.rows()
    assert [row[0] for row in rows] == [str(i) for i in range(1, len(rows) + 1)]
    assert {len(row) for row in rows} == {len(slow_step.HEADER)}


def test_each_remedy_gained_where_it_was_measured():
    """Utilisation rises from remedy to remedy, times fall, and FP8 gains on wide products alone."""
    gains = [row[3] for row in slow_step.rows()]
    for text in gains[3:5]:
        shares = [int(share) for share in re.findall(r"(\d+)%", text)]
        assert len(shares) == 3
        assert shares == sorted(shares)
    slow, fast = re.findall(r"(\d+) → (\d+) TFLOP/s", gains[1])[0]
    assert int(slow) < int(fast)
    wide, narrow = (re.findall(r"[\d.]+", part) for part in re.findall(r"× ([\d.]+–[\d.]+)", gains[6]))
    assert max(map(float, wide)) < 1 < min(map(float, narrow))


def test_the_thresholds_separate_what_is_recorded():
    """A GPU that waits is below the limit of the first row, one that works above it; cuBLAS is above that of products."""
    steps = [one for record in records("profile") for one in record["steps"] if one["model"] == "llama3.2-1b"]
    busy = {one["recipe"]: one["kernel_seconds"] / one["seconds"] for one in steps}
    assert busy[""] > 0.9 > max(share for recipe, share in busy.items() if recipe)
    assert all(float(share) >= 200 / 3 for share in re.findall(r"(\d+)%", slow_step.rows()[5][3]))


def test_without_records_there_are_dashes(tmp_path):
    assert {row[3] for row in slow_step.rows(tmp_path)} == {"–"}
