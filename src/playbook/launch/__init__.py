"""Real ranks from a notebook cell, a test or the command line: warm in a blink, cold through torchrun, the same results.

    ranks = launch.run(work, ranks=4)           # each rank calls work(); ranks[2].value is what it returned in rank 2
    with launch.process_group() as world:       # inside work, or in any script that torchrun runs
        ...                                     # world.rank, world.size, world.device

``%load_ext playbook.launch`` brings the cell magic ``%%torchrun -n 4``; ``slurm.py`` and
``kubernetes.py`` take a command to a cluster.

A command that torchrun started as several ranks is among its peers already (``RANK`` is set): it uses ``process_group``,
and ``run`` refuses. One that a reader started launches its own ranks with ``run``.
"""

from typing import Any

from playbook.errors import LaunchError
from playbook.launch.group import World, backend, init, process_group, settle
from playbook.launch.ranks import Rank, RankError, Ranks
from playbook.launch.run import prepare, run

__all__ = [
    "LaunchError",
    "Rank",
    "RankError",
    "Ranks",
    "World",
    "backend",
    "init",
    "prepare",
    "process_group",
    "run",
    "settle",
]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext playbook.launch``: registers ``%%torchrun``."""
    from playbook.launch.magic import load

    load(shell)
