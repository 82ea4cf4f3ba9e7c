#!/usr/bin/env python
"""Stand-ins for sbatch and sacct: a job begins at once, on this machine, and sbatch does not wait for it.

The job's own srun and scontrol are those of ``tests/launch/fake_slurm.py``. Each call of sbatch leaves the script that it
was given in the working directory, as ID.sbatch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def sbatch() -> None:
    """Start the script with the variables that Slurm sets in a job of one node."""
    text, number = Path(sys.argv[1]).read_text(), os.environ["FAKE_JOB_ID"]
    nodes = re.search(r"^#SBATCH --nodes=(\d+)$", text, re.MULTILINE)
    assert nodes is not None, text
    copy = Path(f"{number}.sbatch")
    assert not copy.exists(), "submitted twice"
    copy.write_text(text)
    names = {"SLURM_JOB_ID": number, "SLURM_NNODES": nodes[1], "SLURM_JOB_NUM_NODES": nodes[1]}
    env = {**os.environ, **names, "SLURM_NTASKS": nodes[1], "SLURM_JOB_NODELIST": "127.0.0.1"}
    with Path(f"{number}.log").open("wb") as log:
        subprocess.Popen(["bash", copy], env=env, stdout=log, stderr=log, start_new_session=True)
    print(f"Submitted batch job {number}")


def sacct() -> None:
    """No more is known than that it runs."""
    print(f"JobID|State|NodeList\n{os.environ['FAKE_JOB_ID']}|RUNNING|127.0.0.1")


if __name__ == "__main__":
    {"sbatch": sbatch, "sacct": sacct}[Path(sys.argv[0]).name]()
