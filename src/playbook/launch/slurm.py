"""A batch script for Slurm: any ``playbook`` command, or a script of one's own, as the ranks of many nodes.

Slurm starts one torchrun on each node, and torchrun a rank for each of its GPUs. The torchruns meet on the first node
of the job (the c10d rendezvous) and count the ranks through all nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from playbook._checks import check_fields
from playbook.errors import LaunchError

_TIME = re.compile(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}")
_NAME = re.compile(r"[\w.,:@+/-]+")
_SIGNAL = re.compile(r"((R|B|RB):)?\w+(@\d+)?")


@dataclass(frozen=True)
class SlurmJob:
    """What a job asks Slurm for. Raises ``LaunchError`` for a field that Slurm would not understand."""

    nodes: int = 1
    gpus_per_node: int = 8
    cpus_per_gpu: int = 8
    time: str = "01:00:00"
    job_name: str = "playbook"
    partition: str | None = None
    account: str | None = None
    setup: tuple[
        str, ...
    ] = ()  # shell lines that each node runs first: `source venv/bin/activate`, `module load cuda`
    container: str | None = None  # an image, for clusters with pyxis
    logs: str = "logs"  # folder: a folder for each job, a file for each node
    requeue: bool = False  # start again after a node has failed
    signal: str | None = None  # as in `TERM@120`: sent so many seconds before the time is up

    def __post_init__(self) -> None:
        check_fields(self, LaunchError)
        self._must(_TIME, "time", "minutes, hours:minutes:seconds or days-hours, such as 02:30:00")
        for name in ("job_name", "partition", "account"):
            self._must(_NAME, name, "one word of letters, digits and . , : @ + / -")
        self._must(
            _SIGNAL, "signal", "a signal and how many seconds before the end it comes, such as TERM@120"
        )
        for line in self.setup:
            if not line.strip() or "\n" in line:
                raise LaunchError(f"setup is {line!r}, but must be one line of shell")
        if not self.logs or re.search(r"[%\n]", self.logs):
            raise LaunchError(f"logs is {self.logs!r}, but must be the path of a folder, without %")
        if self.container is not None and not self.container.strip():
            raise LaunchError(f"container is {self.container!r}, but must name an image")

    @property
    def ranks(self) -> int:
        """Ranks of the job: one for each GPU."""
        return self.nodes * self.gpus_per_node

    def _must(self, pattern: re.Pattern[str], name: str, valid: str) -> None:
        value = getattr(self, name)
        if value is not None and not pattern.fullmatch(value):
            raise LaunchError(f"{name} is {value!r}, but must be {valid}")


def sbatch_script(command: Sequence[str], job: SlurmJob) -> str:
    """The text of a script for ``sbatch`` that runs ``command`` as one rank for each GPU.

    ``command`` is what follows ``playbook`` on the command line, ``["train", "--model", "llama3-8b", …]``, or a script of
    Python and its arguments, ``["work.py", …]``. Each argument arrives as it is given here, whatever it contains.
    """
    if not command or not command[0]:
        raise LaunchError("command is missing: name a playbook command, such as train, or a script.py")
    # After `--`: torchrun would take a flag of the program, such as --log, for one of its own that is cut short.
    program = ["-m", "--", "playbook", *command]
    if PurePath(command[0]).suffix == ".py":
        program = ["--", *command]
    if any("\0" in argument for argument in program):
        raise LaunchError("command holds a NUL character, which no argument of a command can")
    return _TEMPLATE.format(
        requests="\n".join(f"#SBATCH {request}" for request in _requests(job)),
        threads=job.cpus_per_gpu,
        logs=shlex.quote(job.logs),
        setup="".join(f"  {line}\n" for line in job.setup),
        gpus=job.gpus_per_node,
        srun=" \\\n  ".join(_srun(job)),
        program=shlex.join(program),
    )


def _requests(job: SlurmJob) -> list[str]:
    """What sbatch reads at the top of the script."""
    optional = {"partition": job.partition, "account": job.account, "signal": job.signal}
    return [
        f"--job-name={job.job_name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus_per_node}",
        f"--cpus-per-task={job.gpus_per_node * job.cpus_per_gpu}",
        f"--time={job.time}",
        *(f"--{name}={value}" for name, value in optional.items() if value),
        *(["--requeue", "--open-mode=append"] if job.requeue else []),
    ]


def _srun(job: SlurmJob) -> list[str]:
    """Options of srun: it does not inherit the CPUs of a task, and must end all nodes when one has failed."""
    container = [
        f"--container-image={shlex.quote(job.container or '')}",
        '--container-mounts="$PWD"',
        '--container-workdir="$PWD"',
    ]
    return [
        f"srun --ntasks-per-node=1 --cpus-per-task={job.gpus_per_node * job.cpus_per_gpu} --kill-on-bad-exit=1",
        '--output="$logs/node-%n.log"' + (" --open-mode=append" if job.requeue else ""),
        *([" ".join(container)] if job.container else []),
    ]


_TEMPLATE = """\
#!/bin/bash
{requests}

set -e -o pipefail

# NCCL finds its way on most clusters. These show what it chose, and choose for it:
# export NCCL_DEBUG=INFO                # prints the networks, rings and trees that it uses
# export NCCL_SOCKET_IFNAME=eth0        # the network interface of the first contact
# export NCCL_IB_HCA=mlx5               # the InfiniBand adapters
# export TORCH_NCCL_DUMP_ON_TIMEOUT=1   # when a collective hangs, every rank writes down its last ones
export OMP_NUM_THREADS={threads}

# All nodes meet on the first, at a port that depends on the job.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export head_node="${{hosts[0]:?scontrol names no host}}"
export port=$((20000 + SLURM_JOB_ID % 10000))

logs={logs}/"$SLURM_JOB_ID"
mkdir -p -- "$logs"

# What each node does. Its own name, and whether the meeting is at its place, are said and not guessed: guesses go by
# host names, which often differ from the names in Slurm. Ranks count through the nodes in the order of their names.
# The function travels as text to the shell that srun starts on each node.
node() {{
  set -e
{setup}  exec torchrun \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={gpus} \\
    --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head_node:$port" \\
    --rdzv-conf="is_host=$((SLURM_NODEID == 0))" --local-addr="$SLURMD_NODENAME" \\
    "$@"
}}

{srun} \\
  bash -c "$(declare -f node); node \\"\\$@\\"" node \\
  {program}
"""
