"""One configuration of a sweep: what its end means, and that nothing of it is left."""

from __future__ import annotations

import json

import pytest

from playbook.launch.sweep.task import Task, judge, run

SMALL = json.dumps({"layers": 1, "hidden": 16, "heads": 2, "vocab": 256, "max_seq": 64, "name": "small"})


def task(folder, *flags: str, **changes) -> Task:
    given = {"key": "k", "ranks": 1, "tokens": 64, "warmup": 2, "repeat": 1, "timeout": 300.0, **changes}
    sizes = ("--seq", "16", "--global-batch", "4", "--steps", "5", "--device", "cpu")
    return Task(folder=folder, flags=("--model", SMALL, *sizes, *flags), **given)


@pytest.mark.parametrize(
    ("status", "words", "verdict"),
    [
        (0, "", ("ok", "")),
        (
            2,
            "note: x\nplaybook train: out of memory at step 0 with micro_batch=4: make it smaller\n",
            ("oom", "out of memory at step 0 with micro_batch=4: make it smaller"),
        ),
        (
            1,
            "rank 3 | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nlast words\n",
            ("oom", "rank 3 | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        ),
        (2, "playbook train: seq is 9, but tiny has 8\n", ("refused", "seq is 9, but tiny has 8")),
        (
            1,
            "playbook train: rank 1 failed: ValueError: bad\n\nTraceback (most recent call last):\n  …\n",
            ("failed", "rank 1 failed: ValueError: bad"),
        ),
        (-9, "some words\n", ("failed", "it was killed by SIGKILL")),
        (1, "Traceback\nImportError: no module\n", ("failed", "ImportError: no module")),
        (3, "", ("failed", "it ended with status 3 and said nothing")),
    ],
)
def test_how_a_run_ended(status, words, verdict):
    assert judge(status, words) == verdict


def test_a_run_that_takes_too_long_is_ended(tmp_path):
    found = run(task(tmp_path, timeout=0.01))
    assert found["status"] == "timeout"
    assert found["reason"] == "it did not end within 0.01 s"
    assert set(found) == {"status", "reason", "host", "date"}


def test_a_run_that_train_refuses_says_why(tmp_path):
    found = run(task(tmp_path, "--steps", "0"))
    assert (found["status"], found["reason"]) == ("refused", "steps must be at least 1, got 0")
