"""The files through which a launch and its ranks tell each other how far they are."""

import os
from pathlib import Path
from types import SimpleNamespace

from playbook.launch.job import Job


def test_the_process_of_a_rank_is_not_known_before_its_number_is_whole(tmp_path, monkeypatch):
    """Process 0 would be everybody in the launcher's group: a shell, a notebook's kernel."""
    job = SimpleNamespace(ranks=1, path=lambda rank, kind: tmp_path / f"{rank}.{kind}")
    write, seen = Path.write_text, []

    def slowly(path, text):
        for length in range(len(text) + 1):
            write(path, text[:length])
            seen.append(Job.pids(job))

    monkeypatch.setattr(Path, "write_text", slowly)
    Job.save_pid(job, 0)
    assert set(map(len, seen)) == {0}
    assert Job.pids(job) == {0: os.getpid()}
