"""The files through which a launch and its ranks tell each other how far they are."""

import os
from pathlib import Path
from types import SimpleNamespace

from playbook.launch.job import Job, environment


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


def test_ranks_on_gpus_share_out_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    threads = [
        environment(None, *args)["OMP_NUM_THREADS"]
        for args in (("gloo", 4), ("nccl", 1), ("nccl", 8), ("nccl", 32))
    ]
    assert threads == ["1", "16", "2", "1"]
    assert environment({"OMP_NUM_THREADS": "3"}, "nccl", 1)["OMP_NUM_THREADS"] == "3"
